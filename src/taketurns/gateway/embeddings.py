# SPDX-License-Identifier: Apache-2.0
"""The endpoints that need vectors: embeddings, and rerank by cosine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from taketurns.dialects import openai, rerank
from taketurns.dialects.openai import EmbeddingsRequest, invalid
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.cosine import NUMBERS_INLINE_MAX
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.items import Embedded, EmbedRequest, ScoreRequest
from taketurns.gateway.pools import Caller

Reply = Callable[[EmbeddingPool, Exchange, bytes, Caller], Awaitable[Answer]]


async def answer_embeddings(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/embeddings``.

    Raises:
        RequestError: 400, naming the field that is wrong.
        TurnRefusedError, TurnExpiredError, EngineError: See there.
    """
    section = pool.model.section
    request = openai.parse_embeddings(body, inputs_max=section.inputs_max)
    if request.dimensions is not None and not section.dimensions:
        raise invalid("dimensions", "can't be chosen for this model", "Leave it out.")
    embedded = await pool.embed(
        exchange,
        EmbedRequest(
            request.inputs, lambda index: f"input[{index}]", dimensions=request.dimensions
        ),
        caller,
    )
    if request.base64 or _numbers(embedded) <= NUMBERS_INLINE_MAX:
        return _embeddings(request, embedded)
    return await asyncio.to_thread(_embeddings, request, embedded)


async def answer_rerank(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/rerank``: a document's relevance is its vector's cosine with the query's.

    Raises:
        RequestError: 400, naming the field that is wrong.
        TurnRefusedError, TurnExpiredError, EngineError: See there.
    """
    request = rerank.parse_rerank(body, documents_max=pool.model.section.inputs_max)
    scored = await pool.score(
        exchange,
        ScoreRequest(
            [request.query],
            request.documents,
            lambda _: "query",
            lambda index: f"documents[{index}]",
        ),
        caller,
    )
    answer_id = exchange.record.request_id
    return Answer(200, rerank.rerank_answer(request, scored.scores, scored.tokens, answer_id))


ANSWERS: Mapping[str, Reply] = {"embeddings": answer_embeddings, "rerank": answer_rerank}


def _numbers(embedded: Embedded) -> int:
    return len(embedded.vectors) * len(embedded.vectors[0]) // 4


def _embeddings(request: EmbeddingsRequest, embedded: Embedded) -> Answer:
    body = openai.embeddings_answer(
        request.model, embedded.vectors, embedded.tokens, as_base64=request.base64
    )
    return Answer(200, body)
