# SPDX-License-Identifier: Apache-2.0
"""The endpoints that need vectors: embeddings, and rerank by cosine."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import mul

from taketurns.dialects import openai, rerank
from taketurns.dialects.openai import EmbeddingsRequest, invalid
from taketurns.gateway.batches import Embedded, EmbeddingPool
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.pools import Caller

NUMBERS_INLINE_MAX = 16 * 1024
"""Vectors up to this many numbers are worked on on the event loop: at most some milliseconds."""

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
        request.inputs,
        caller,
        dimensions=request.dimensions,
        name_of=lambda index: f"input[{index}]",
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
    embedded = await pool.embed(
        exchange,
        [request.query, *request.documents],
        caller,
        queries=1,
        name_of=lambda index: f"documents[{index - 1}]" if index else "query",
    )
    if _numbers(embedded) <= NUMBERS_INLINE_MAX:
        scores = cosines(embedded.vectors)
    else:
        scores = await asyncio.to_thread(cosines, embedded.vectors)
    answer_id = exchange.record.request_id
    return Answer(200, rerank.rerank_answer(request, scores, embedded.tokens, answer_id))


ANSWERS: Mapping[str, Reply] = {"embeddings": answer_embeddings, "rerank": answer_rerank}


def cosines(vectors: Sequence[bytes]) -> list[float]:
    """Return the cosine of the first vector with each of the others; 0 with one of no length.

    Args:
        vectors: Little-endian float32, at least one.
    """
    first, *others = (memoryview(vector).cast("f").tolist() for vector in vectors)
    length = math.hypot(*first)
    scores = []
    for other in others:
        lengths = length * math.hypot(*other)
        scores.append(sum(map(mul, first, other)) / lengths if lengths else 0.0)
    return scores


def _numbers(embedded: Embedded) -> int:
    return len(embedded.vectors) * len(embedded.vectors[0]) // 4


def _embeddings(request: EmbeddingsRequest, embedded: Embedded) -> Answer:
    body = openai.embeddings_answer(
        request.model, embedded.vectors, embedded.tokens, as_base64=request.base64
    )
    return Answer(200, body)
