# SPDX-License-Identifier: Apache-2.0
"""Rerank as Jina and vLLM have it: reads the request, writes results by falling relevance.

Source: Jina's rerank API and vLLM's ``/v1/rerank``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from taketurns.dialects.openai import decode, invalid, too_large


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A rerank request.

    Attributes:
        model: Name that the client asked for.
        query: What the documents are compared with; not empty.
        documents: At least one, none of them empty.
        top_n: Most results wanted.
        return_documents: Results carry the documents' texts.
    """

    model: str
    query: str
    documents: Sequence[str]
    top_n: int
    return_documents: bool


class _Document(msgspec.Struct):
    text: str


class _Rerank(msgspec.Struct, kw_only=True):
    model: str | None = None
    query: str
    documents: list[str | _Document]
    top_n: int | None = None
    return_documents: bool | None = None


_RERANK = msgspec.json.Decoder(_Rerank)


def parse_rerank(body: bytes, *, documents_max: int, model: str = "") -> RerankRequest:
    """Read the body of ``POST /v1/rerank``.

    Args:
        body: The body.
        documents_max: Most documents in one request.
        model: Its name where the request leaves it out.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Rerank = decode(_RERANK, body)
    documents = [item if isinstance(item, str) else item.text for item in read.documents]
    returned = read.return_documents is not False
    return checked(
        RerankRequest(read.model or model, read.query, documents, len(documents), returned),
        top_n=read.top_n,
        documents_max=documents_max,
    )


def checked(
    request: RerankRequest, *, top_n: int | None, documents_max: int, field: str = "documents"
) -> RerankRequest:
    """Return a request whose ``top_n`` is set; all dialects check it alike.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    documents = request.documents
    if not request.query:
        raise invalid("query", "is empty", "Send a text.")
    if not documents:
        raise invalid(field, "is empty", "Send at least one text.")
    if len(documents) > documents_max:
        raise too_large(
            field,
            f"has {len(documents)} entries, and the most is {documents_max}",
            "Send them in several requests.",
        )
    for index, text in enumerate(documents):
        if not text:
            raise invalid(f"{field}[{index}]", "is empty", "Leave it out, or send a text.")
    if top_n is not None and top_n < 1:
        raise invalid("top_n", f"is {top_n}", "Send a number of at least 1.")
    return replace(request, top_n=min(top_n or len(documents), len(documents)))


def rerank_answer(
    request: RerankRequest, scores: Sequence[float], tokens: int, answer_id: str
) -> bytes:
    """Write the answer: the ``top_n`` most relevant documents, the best first.

    Args:
        request: The request.
        scores: Relevance of each document, in their order; equal ones keep it.
        tokens: Tokens of query and documents.
        answer_id: Id of the answer.
    """
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    results = results_of(request, scores)
    return msgspec.json.encode(
        {"id": answer_id, "model": request.model, "usage": usage, "results": results}
    )


def results_of(request: RerankRequest, scores: Sequence[float]) -> list[dict[str, object]]:
    """Return the results, the most relevant document first; equal ones keep their order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: request.top_n]
    results: list[dict[str, object]] = []
    for index in order:
        result: dict[str, object] = {"index": index, "relevance_score": scores[index]}
        if request.return_documents:
            result["document"] = {"text": request.documents[index]}
        results.append(result)
    return results
