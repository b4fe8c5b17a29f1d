# SPDX-License-Identifier: Apache-2.0
"""Tokenize and detokenize, with the tokenizer that the gateway counts a model's tokens by."""

import asyncio

from taketurns.dialects import cohere_tokens
from taketurns.errors import RequestError
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.counting import INLINE_CHARACTERS
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.pools import Caller
from taketurns.ports.engine import Tokenizer

Pool = EmbeddingPool | GenerationPool


async def answer_tokenize(pool: Pool, _: Exchange, body: bytes, __: Caller) -> Answer:
    """Answer ``POST /v1/tokenize``; its limits were asked before.

    Raises:
        RequestError: 400 or 422, naming what is wrong.
    """
    tokenizer = _tokenizer(pool)
    text = cohere_tokens.parse_tokenize(body)
    if len(text) > INLINE_CHARACTERS:
        tokens = await asyncio.to_thread(tokenizer.spell, text)
    else:
        tokens = tokenizer.spell(text)
    return Answer(200, cohere_tokens.tokenize_answer(tokens))


async def answer_detokenize(pool: Pool, _: Exchange, body: bytes, __: Caller) -> Answer:
    """Answer ``POST /v1/detokenize``; raises as :func:`answer_tokenize`."""
    tokenizer = _tokenizer(pool)
    tokens = cohere_tokens.parse_detokenize(body, tokenizer.vocabulary_size)
    text = await asyncio.to_thread(tokenizer.decode, tokens)
    return Answer(200, cohere_tokens.detokenize_answer(text))


def _tokenizer(pool: Pool) -> Tokenizer:
    tokenizer = pool.counter.tokenizer if isinstance(pool, EmbeddingPool) else None
    if tokenizer is None:
        raise RequestError(
            422,
            "unsupported_field",
            f"The gateway has no tokenizer for model {pool.model.name}.",
            param="model",
            hint="Name a model that has one.",
        )
    return tokenizer
