# SPDX-License-Identifier: Apache-2.0
"""Cohere's rerank, versions 1 and 2: reads requests, writes results by falling relevance.

Source: Cohere's API reference, ``POST /v1/rerank`` and ``POST /v2/rerank``,
checked against the official Python client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from taketurns.dialects.cohere import meta
from taketurns.dialects.openai import cannot, decode, invalid
from taketurns.dialects.rerank import RerankRequest, checked, results_of

DOCUMENT_TOKENS_MAX = 4096
"""Tokens at which documents are cut where the request says nothing, as Cohere documents it."""

SEARCH_UNIT_DOCUMENTS = 100
"""Documents of a query that are billed as one search unit, as Cohere documents it."""


@dataclass(frozen=True, slots=True)
class CohereRerank:
    """A rerank request of Cohere's.

    Attributes:
        request: What is asked.
        version: ``1`` or ``2``.
        tokens_max: Documents longer than this many tokens are cut.
    """

    request: RerankRequest
    version: str
    tokens_max: int


class _RerankV2(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None
    max_tokens_per_doc: int | None = None
    relevant_spans: Any = None
    priority: int | None = None


class _RerankV1(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int | None = None
    rank_fields: list[str] | None = None
    return_documents: bool | None = None
    max_chunks_per_doc: int | None = None
    # Newer clients send it to version 1 too.
    max_tokens_per_doc: int | None = None
    priority: int | None = None


_V1 = msgspec.json.Decoder(_RerankV1)
_V2 = msgspec.json.Decoder(_RerankV2)


def parse_rerank(body: bytes, version: str, *, model: str, documents_max: int) -> CohereRerank:
    """Read the body of ``POST /v1/rerank`` or ``/v2/rerank``.

    Args:
        body: The body.
        version: ``1`` or ``2``.
        model: Name of the model that serves it.
        documents_max: Most documents in one request.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    if version == "2":
        two: _RerankV2 = decode(_V2, body)
        if two.relevant_spans is not None:
            raise cannot("relevant_spans", "asks for spans, which engines here don't tell")
        cut, texts = two.max_tokens_per_doc, two.documents
        query, top_n, told = two.query, two.top_n, False
    else:
        one: _RerankV1 = decode(_V1, body)
        if one.max_chunks_per_doc is not None:
            raise cannot("max_chunks_per_doc", "can't be chosen: documents are not divided")
        cut, told = one.max_tokens_per_doc, bool(one.return_documents)
        texts = [
            _rendered(document, one.rank_fields, f"documents[{index}]")
            for index, document in enumerate(one.documents)
        ]
        query, top_n = one.query, one.top_n
    if cut is not None and cut < 1:
        raise invalid("max_tokens_per_doc", f"is {cut}", "Send a number of at least 1.")
    request = checked(
        RerankRequest(model, query, texts, top_n or len(texts), told),
        top_n=top_n,
        documents_max=documents_max,
    )
    return CohereRerank(request, version, cut or DOCUMENT_TOKENS_MAX)


def _rendered(document: str | dict[str, Any], fields: Sequence[str] | None, at: str) -> str:
    """Return a document's text: its fields line by line, where some are to be ranked by."""
    if isinstance(document, str):
        return document
    if fields is None:
        text = document.get("text")
        if not isinstance(text, str):
            raise invalid(f"{at}.text", "is missing", "Send a text, or name `rank_fields`.")
        return text
    return "\n".join(f"{name}: {document[name]}" for name in fields if name in document)


def rerank_answer(asked: CohereRerank, scores: Sequence[float], answer_id: str) -> bytes:
    """Write the answer: the ``top_n`` most relevant documents, the best first.

    Args:
        asked: The request.
        scores: Relevance of each document, in their order; equal ones keep it.
        answer_id: Id of the answer.
    """
    units = -(-len(asked.request.documents) // SEARCH_UNIT_DOCUMENTS)
    told = {
        "id": answer_id,
        "results": results_of(asked.request, scores),
        "meta": meta(asked.version, search_units=units),
    }
    return msgspec.json.encode(told)
