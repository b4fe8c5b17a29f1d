# SPDX-License-Identifier: Apache-2.0
"""The endpoints that need scores, in every dialect: rerank and score."""

from taketurns.dialects import cohere_rerank, rerank, score, tei
from taketurns.dialects.rerank import RerankRequest
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.embeddings import ENDS
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.items import Scored, ScoreRequest
from taketurns.gateway.pools import Caller
from taketurns.ports.engine import Truncate
from taketurns.system import wall_time_s


async def answer_jina(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/rerank`` of Jina and vLLM.

    Raises:
        RequestError: 400, naming the field that is wrong; else as :meth:`EmbeddingPool.score`.
    """
    request = rerank.parse_rerank(
        body, documents_max=pool.model.section.inputs_max, model=pool.model.name
    )
    scored = await _score(pool, exchange, request, caller)
    answer_id = exchange.record.request_id
    return Answer(200, rerank.rerank_answer(request, scored.scores, scored.tokens, answer_id))


async def answer_cohere_v1(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/rerank`` of Cohere's clients; raises as :func:`answer_jina`."""
    return await _answer_cohere(pool, exchange, body, caller, "1")


async def answer_cohere_v2(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v2/rerank``; raises as :func:`answer_jina`."""
    return await _answer_cohere(pool, exchange, body, caller, "2")


async def _answer_cohere(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller, version: str
) -> Answer:
    asked = cohere_rerank.parse_rerank(
        body, version, model=pool.model.name, documents_max=pool.model.section.inputs_max
    )
    scored = await _score(
        pool, exchange, asked.request, caller, truncate="end", tokens_max=asked.tokens_max
    )
    answer_id = exchange.record.request_id
    return Answer(200, cohere_rerank.rerank_answer(asked, scored.scores, answer_id))


async def answer_tei(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer TEI's ``POST /rerank``; raises as :func:`answer_jina`."""
    request, cut = tei.parse_rerank(body, documents_max=pool.model.section.inputs_max)
    scored = await _score(pool, exchange, request, caller, truncate=ENDS[cut], field="texts")
    return Answer(200, tei.rerank_answer(request, scored.scores))


async def _score(
    pool: EmbeddingPool,
    exchange: Exchange,
    request: RerankRequest,
    caller: Caller,
    *,
    truncate: Truncate | None = None,
    tokens_max: int | None = None,
    field: str = "documents",
) -> Scored:
    asked = ScoreRequest(
        [request.query],
        request.documents,
        lambda _: "query",
        lambda index: f"{field}[{index}]",
        truncate=truncate,
        document_tokens_max=tokens_max,
    )
    return await pool.score(exchange, asked, caller)


async def answer_score(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /score`` of vLLM; raises as :func:`answer_jina`."""
    request = score.parse_score(body, documents_max=pool.model.section.inputs_max)
    first, second = request.fields
    scored = await pool.score(
        exchange,
        ScoreRequest(
            request.queries,
            request.documents,
            lambda index: f"{first}[{index}]",
            lambda index: f"{second}[{index}]",
        ),
        caller,
    )
    told = score.score_answer(
        pool.model.name,
        scored.scores,
        scored.tokens,
        answer_id=exchange.record.request_id,
        created_s=wall_time_s(),
    )
    return Answer(200, told)
