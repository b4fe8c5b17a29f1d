# SPDX-License-Identifier: Apache-2.0
"""Cohere's chat, in both versions: translated, and answered by engines that know OpenAI's only."""

from taketurns.dialects import cohere_chat, cohere_chat_v1
from taketurns.dialects.cohere_answers import VoiceV1, VoiceV2
from taketurns.dialects.openai_generation import parse_chat
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.pools import Caller

SSE = "text/event-stream"


async def answer_v1(
    pool: GenerationPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer | None:
    """Answer ``POST /v1/chat``; None where it was streamed.

    Raises:
        RequestError: 400 or 422, naming the field; else as :meth:`GenerationPool.answer`.
    """
    asked = cohere_chat_v1.parse_chat(body, pool.model.name)
    # Cohere's reference has the second header, its clients send either.
    sse = any(SSE in exchange.headers.get(name, "") for name in ("accept", "accepts"))
    voice = VoiceV1(exchange.record.request_id, asked.history, sse=sse)
    return await pool.answer(exchange, parse_chat(asked.body), caller, voice)


async def answer_v2(
    pool: GenerationPool, exchange: Exchange, body: bytes, caller: Caller
) -> Answer | None:
    """Answer ``POST /v2/chat``; None where it was streamed; raises as :func:`answer_v1`."""
    asked = cohere_chat.parse_chat(body, pool.model.name)
    voice = VoiceV2(exchange.record.request_id)
    return await pool.answer(exchange, parse_chat(asked.body), caller, voice)
