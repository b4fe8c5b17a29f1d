# SPDX-License-Identifier: Apache-2.0
"""Text Embeddings Inference's own dialect: ``/embed`` and ``/rerank`` with bare lists as answers.

Source: TEI's OpenAPI description.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from taketurns.dialects.openai import cannot, decode, each_input, invalid
from taketurns.dialects.rerank import RerankRequest, checked
from taketurns.ports.engine import EmbedInput

Truncate = Literal["NONE", "START", "END"]


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """An embed request of TEI's.

    Attributes:
        inputs: Texts or token ids, at least one; each is read when its turn comes.
        dimensions: Length of the vectors asked for, or None.
        truncate: Which end of an input that is too long is cut off, or ``NONE``.
    """

    inputs: Iterator[EmbedInput]
    dimensions: int | None
    truncate: Truncate


class _Cut(msgspec.Struct, kw_only=True):
    model: str | None = None
    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None

    def direction(self) -> Truncate:
        if not self.truncate:
            return "NONE"
        return "START" if (self.truncation_direction or "").lower() == "left" else "END"


class _Embed(_Cut, kw_only=True, forbid_unknown_fields=True):
    inputs: msgspec.Raw
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: int | None = None


class _Rerank(_Cut, kw_only=True, forbid_unknown_fields=True):
    query: str
    texts: list[str]
    raw_scores: bool | None = None
    return_text: bool | None = None


_EMBED = msgspec.json.Decoder(_Embed)
_RERANK = msgspec.json.Decoder(_Rerank)


def parse_embed(body: bytes, *, inputs_max: int) -> EmbedRequest:
    """Read the body of ``POST /embed``.

    Args:
        body: The body.
        inputs_max: Most inputs in one request.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    read: _Embed = decode(_EMBED, body)
    if read.normalize is False:
        raise cannot("normalize", "can't be false: vectors are brought to length 1")
    if read.prompt_name is not None:
        raise cannot("prompt_name", "is not supported", "Put the prompt before the text.")
    if read.dimensions is not None and read.dimensions < 1:
        raise invalid("dimensions", f"is {read.dimensions}", "Send a number of at least 1.")
    inputs = each_input(bytes(read.inputs), "inputs", count_max=inputs_max)
    return EmbedRequest(inputs, read.dimensions, read.direction())


def embed_answer(vectors: Sequence[bytes]) -> Iterator[bytes]:
    """Write the answer, in pieces: the vectors, brought to length 1, and nothing else.

    Args:
        vectors: Little-endian float32, in the order of the inputs.
    """
    before = b"["
    for vector in vectors:
        numbers = memoryview(vector).cast("f").tolist()
        length = math.hypot(*numbers)
        told = [number / length for number in numbers] if length else numbers
        yield before + msgspec.json.encode(told)
        before = b","
    yield b"]"


def parse_rerank(body: bytes, *, documents_max: int) -> tuple[RerankRequest, Truncate]:
    """Read the body of ``POST /rerank``; return also which end of long texts is cut off.

    Args:
        body: The body.
        documents_max: Most texts in one request.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    read: _Rerank = decode(_RERANK, body)
    if read.raw_scores:
        raise cannot("raw_scores", "can't be chosen: scores are as the engine gives them")
    request = checked(
        RerankRequest("", read.query, read.texts, len(read.texts), bool(read.return_text)),
        top_n=None,
        documents_max=documents_max,
        field="texts",
    )
    return request, read.direction()


def rerank_answer(request: RerankRequest, scores: Sequence[float]) -> bytes:
    """Write the answer: all texts' scores, the best first.

    Args:
        request: The request.
        scores: Relevance of each text, in their order; equal ones keep it.
    """
    told: list[dict[str, object]] = []
    for index in sorted(range(len(scores)), key=lambda index: -scores[index]):
        ranked: dict[str, object] = {"index": index, "score": scores[index]}
        if request.return_documents:
            ranked["text"] = request.documents[index]
        told.append(ranked)
    return msgspec.json.encode(told)
