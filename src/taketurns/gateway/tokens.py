# SPDX-License-Identifier: Apache-2.0
"""Tokenize and detokenize: by the tokenizer that the gateway counts with, or by an engine.

An engine is asked beside its slots: it does so without the model.
"""

import asyncio
from typing import NamedTuple

import msgspec

from taketurns.config import pools as facts
from taketurns.config.engines import UrlEngineConfig
from taketurns.dialects import cohere_tokens, engine_tokens
from taketurns.errors import EngineBrokenError, EngineRefusedError, RequestError
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.counting import INLINE_CHARACTERS
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.pools import Caller
from taketurns.gateway.relay import read_whole, refusal_of
from taketurns.ports.engine import GenerationCall, GenerationEngine, Tokenizer

VOCABULARY_MAX = 2**31 - 1
"""Largest id that an engine is asked for: it knows its own vocabulary."""

Pool = EmbeddingPool | GenerationPool


class _Asked(NamedTuple):
    """An engine that can be asked: itself, its kind, and its own name of the model."""

    engine: GenerationEngine
    kind: str
    model: str


async def answer_tokenize(pool: Pool, exchange: Exchange, body: bytes, _: Caller) -> Answer:
    """Answer ``POST /v1/tokenize``; its limits were asked before.

    Raises:
        RequestError: 400 or 422, naming what is wrong.
        EngineError: The engine that was asked for it failed.
    """
    text = cohere_tokens.parse_tokenize(body)
    if isinstance(pool, GenerationPool):
        asked = _engine(pool)
        told = await _ask(
            asked,
            "/tokenize",
            engine_tokens.tokenize_body(asked.kind, asked.model, text),
            exchange.record.request_id,
        )
        try:
            tokens = engine_tokens.read_tokens(asked.kind, told)
        except (msgspec.MsgspecError, ValueError) as error:
            raise EngineBrokenError(
                asked.engine.name, f"its tokens can't be read: {error}"
            ) from error
        return Answer(200, cohere_tokens.tokenize_answer(tokens))
    tokenizer = _tokenizer(pool)
    if len(text) > INLINE_CHARACTERS:
        tokens = await asyncio.to_thread(tokenizer.spell, text)
    else:
        tokens = tokenizer.spell(text)
    return Answer(200, cohere_tokens.tokenize_answer(tokens))


async def answer_detokenize(pool: Pool, exchange: Exchange, body: bytes, _: Caller) -> Answer:
    """Answer ``POST /v1/detokenize``; raises as :func:`answer_tokenize`."""
    if isinstance(pool, GenerationPool):
        asked = _engine(pool)
        ids = cohere_tokens.parse_detokenize(body, VOCABULARY_MAX)
        told = await _ask(
            asked,
            "/detokenize",
            engine_tokens.detokenize_body(asked.kind, asked.model, ids),
            exchange.record.request_id,
        )
        try:
            text = engine_tokens.read_text(told)
        except (msgspec.MsgspecError, ValueError) as error:
            raise EngineBrokenError(
                asked.engine.name, f"its text can't be read: {error}"
            ) from error
    else:
        tokenizer = _tokenizer(pool)
        ids = cohere_tokens.parse_detokenize(body, tokenizer.vocabulary_size)
        text = await asyncio.to_thread(tokenizer.decode, ids)
    return Answer(200, cohere_tokens.detokenize_answer(text))


async def _ask(asked: _Asked, path: str, body: bytes, request_id: str) -> bytes:
    engine = asked.engine
    answer = await engine.open(GenerationCall(path, body, stream=False, request_id=request_id))
    try:
        if answer.status >= 400:
            raise EngineRefusedError(engine.name, answer.status, await refusal_of(answer))
        return await read_whole(engine.name, answer)
    finally:
        await answer.aclose()


def _engine(pool: GenerationPool) -> _Asked:
    """Return an engine that can be asked: one that has slots, if any has."""
    slots = {engine.name: engine.slots for engine in pool.turns.scheduler.snapshot().engines}
    able = [
        _Asked(pool.engines[name], part.kind, part.model or pool.model.name)
        for name, part in facts.engines(pool.model.section).items()
        if isinstance(part, UrlEngineConfig) and part.kind in engine_tokens.KINDS
    ]
    if not able:
        raise _cannot(pool)
    return max(able, key=lambda asked: slots.get(asked.engine.name, 0) > 0)


def _tokenizer(pool: EmbeddingPool) -> Tokenizer:
    if pool.counter.tokenizer is None:
        raise _cannot(pool)
    return pool.counter.tokenizer


def _cannot(pool: Pool) -> RequestError:
    return RequestError(
        422,
        "unsupported_field",
        f"The gateway has no tokenizer for model {pool.model.name}.",
        param="model",
        hint="Name a model that has one.",
    )
