# SPDX-License-Identifier: Apache-2.0
"""Scores as vLLM has them: one text against many, or pair by pair.

Source: vLLM's ``/score`` and ``/v1/score``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from taketurns.dialects.openai import decode, invalid


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A score request.

    Attributes:
        queries: One, or as many as there are documents.
        documents: At least one; as all texts not empty.
        fields: Names of the two fields that they stood in, for errors.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    fields: tuple[str, str]


Texts = str | list[str]


class _Score(msgspec.Struct, kw_only=True):
    model: str | None = None
    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    truncate_prompt_tokens: int | None = None


_SCORE = msgspec.json.Decoder(_Score)

_PAIRS = (
    ("text_1", "text_2"),
    ("data_1", "data_2"),
    ("queries", "documents"),
    ("queries", "items"),
)


def parse_score(body: bytes, *, documents_max: int) -> ScoreRequest:
    """Read the body of ``POST /score``.

    Args:
        body: The body.
        documents_max: Most pairs in one request.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Score = decode(_SCORE, body)
    if read.truncate_prompt_tokens is not None:
        raise invalid("truncate_prompt_tokens", "is not supported", "Leave it out.")
    for fields in _PAIRS:
        first, second = (getattr(read, name) for name in fields)
        if first is not None and second is not None:
            break
    else:
        raise invalid("text_1", "is missing", "Send `text_1` and `text_2`.")
    queries, documents = _texts(first, fields[0]), _texts(second, fields[1])
    if len(queries) not in {1, len(documents)}:
        raise invalid(
            fields[0],
            f"has {len(queries)} texts for {len(documents)}",
            f"Send one, or as many as in `{fields[1]}`.",
        )
    if len(documents) > documents_max:
        raise invalid(
            fields[1],
            f"has {len(documents)} entries, and the most is {documents_max}",
            "Send them in several requests.",
        )
    return ScoreRequest(queries, documents, fields)


def _texts(value: Texts, field: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not texts or not all(texts):
        raise invalid(field, "is empty or holds an empty text", "Send at least one text.")
    return texts


def score_answer(
    model: str, scores: Sequence[float], tokens: int, *, answer_id: str, created_s: int
) -> bytes:
    """Write the answer.

    Args:
        model: Name of the model.
        scores: In the order of the pairs.
        tokens: Tokens of all texts.
        answer_id: Id of the answer.
        created_s: Seconds since 1970.
    """
    data = [{"index": n, "object": "score", "score": score} for n, score in enumerate(scores)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode(
        {
            "id": answer_id,
            "object": "list",
            "created": created_s,
            "model": model,
            "data": data,
            "usage": usage,
        }
    )
