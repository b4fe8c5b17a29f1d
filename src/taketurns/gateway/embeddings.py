# SPDX-License-Identifier: Apache-2.0
"""The endpoints that need vectors, in every dialect."""

from collections.abc import Iterator, Mapping

from taketurns.dialects import cohere_embed, openai, tei
from taketurns.dialects.openai import cannot, invalid
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.items import EmbedRequest
from taketurns.gateway.pools import Caller
from taketurns.ports.engine import EmbedInput, Truncate
from taketurns.system import give_way

BYTES_AT_ONCE = 32 * 1024
"""So much is read or written before others get their turn: at most some milliseconds."""

ENDS: Mapping[str, Truncate | None] = {"NONE": None, "START": "start", "END": "end"}
"""Which end of a text is cut off, by Cohere's names."""


async def answer_openai(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/embeddings``.

    Raises:
        RequestError: 400, naming the field that is wrong; else as :meth:`EmbeddingPool.embed`.
    """
    section = pool.model.section
    request = openai.parse_embeddings(body, inputs_max=section.inputs_max)
    if request.dimensions is not None and not section.dimensions:
        raise invalid("dimensions", "can't be chosen for this model", "Leave it out.")
    inputs = await _read(request.inputs)
    asked = EmbedRequest(
        inputs,
        lambda index: f"input[{index}]",
        dimensions=request.dimensions,
        total_tokens_max=section.request_tokens_max,
    )
    embedded = await pool.embed(exchange, asked, caller)
    return await _written(
        openai.embeddings_answer(
            request.model, embedded.vectors, embedded.tokens, as_base64=request.base64
        )
    )


async def answer_cohere_v1(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v1/embed``; raises as :func:`answer_openai`, and 422."""
    return await _answer_cohere(pool, exchange, body, caller, "1")


async def answer_cohere_v2(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer ``POST /v2/embed``; raises as :func:`answer_openai`, and 422."""
    return await _answer_cohere(pool, exchange, body, caller, "2")


async def _answer_cohere(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller, version: str
) -> Answer:
    request = cohere_embed.parse_embed(body, version)
    if request.dimensions is not None and not pool.model.section.dimensions:
        raise cannot("output_dimension", "can't be chosen for this model")
    if request.tokens_max is not None and not pool.counter.exact:
        raise cannot("max_tokens", "can't be kept: this model's tokens can't be counted here")
    asked = EmbedRequest(
        request.texts,
        lambda index: f"texts[{index}]",
        dimensions=request.dimensions,
        truncate=ENDS[request.truncate],
        tokens_max=request.tokens_max,
        input_type=request.input_type,
    )
    embedded = await pool.embed(exchange, asked, caller)
    answer_id = exchange.record.request_id
    return await _written(
        cohere_embed.embed_answer(request, embedded.vectors, embedded.tokens, answer_id)
    )


async def answer_tei(
    pool: EmbeddingPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer:
    """Answer TEI's ``POST /embed``; raises as :func:`answer_openai`, and 422."""
    section = pool.model.section
    request = tei.parse_embed(body, inputs_max=section.inputs_max)
    if request.dimensions is not None and not section.dimensions:
        raise cannot("dimensions", "can't be chosen for this model")
    asked = EmbedRequest(
        await _read(request.inputs),
        lambda index: f"inputs[{index}]",
        dimensions=request.dimensions,
        truncate=ENDS[request.truncate],
    )
    embedded = await pool.embed(exchange, asked, caller)
    return await _written(tei.embed_answer(embedded.vectors))


async def _read(inputs: Iterator[EmbedInput]) -> list[EmbedInput]:
    """Return all inputs; others have their turn while a long request is read."""
    read: list[EmbedInput] = []
    size = 0
    for item in inputs:
        read.append(item)
        size += len(item)
        if size > BYTES_AT_ONCE:
            size = 0
            await give_way()
    return read


async def _written(pieces: Iterator[bytes]) -> Answer:
    """Return an answer; others have their turn while a long one is written."""
    written: list[bytes] = []
    size = 0
    for piece in pieces:
        written.append(piece)
        size += len(piece)
        if size > BYTES_AT_ONCE:
            size = 0
            await give_way()
    return Answer(200, b"".join(written))
