# SPDX-License-Identifier: Apache-2.0
"""The gateway in front of infinity, beside infinity alone with its own batching."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from embed_sites import GatewaySite, Work, texts_of
from harness import measured

from taketurns.engines.batching import BatchingEngine
from taketurns.engines.minilm import MiniLmTokenizer
from taketurns.engines.openai import OpenAiEngine
from taketurns.figures import Figure
from taketurns.ports.engine import EmbedCall

Send = Callable[[str, list[str]], Awaitable[object]]

SINGLES = 15


async def beside_infinity(url: str, model: str, rounds: int) -> list[Figure]:
    """Measure texts a second, and what single texts take beside large requests.

    Args:
        url: Where infinity is; it was started with ``--url-prefix /v1``.
        model: Its name there.
        rounds: Rounds to take the median of.
    """
    tokenizer = MiniLmTokenizer()
    engine = BatchingEngine(OpenAiEngine("gpu", url), model, kind="infinity")
    await engine.start()

    async def own(_: str, texts: list[str]) -> object:
        return await engine.embed(EmbedCall(texts, None, "direct"))

    ratios, waits_own, waits_ours = [], [], []
    for number in range(rounds):
        work = texts_of(random.Random(number), tokenizer, texts=300, tenants=8)
        # It sorts a call's texts by length and pads batches of 32: it wants several in a call.
        work.tokens_max, work.items_max = 8192, 128
        alone_s = await _seconds(work, own)
        waits_own.append(await _single_ms(work, own))
        async with GatewaySite(work, engine, tokenizer=tokenizer, as_ids=False) as site:
            ratios.append(alone_s / await _seconds(work, site.send))
            waits_ours.append(await _single_ms(work, site.send))
    await engine.aclose()
    note = "all-MiniLM-L6-v2 on one thread; 300 texts of 8 tenants in requests of 1 to 60, at once"
    single = f"longest of {SINGLES} single texts, one after the other, beside the same requests"
    return [
        measured("infinity_texts_per_s_of_its_own_batching", ratios, note=note),
        measured("infinity_alone_single_text_ms", waits_own, "ms", note=single),
        measured("infinity_behind_gateway_single_text_ms", waits_ours, "ms", note=single),
    ]


async def _seconds(work: Work, send: Send) -> float:
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for tenant, texts in work.requests:
            tasks.create_task(send(tenant, texts))
    return time.perf_counter() - begin


async def _single_ms(work: Work, send: Send) -> float:
    """Return the longest time that single texts of one tenant take beside all other requests."""
    quiet = work.requests[0][0]
    others = [(tenant, texts) for tenant, texts in work.requests if tenant != quiet]
    longest = 0.0
    async with asyncio.TaskGroup() as tasks:
        flood = [tasks.create_task(send(tenant, texts)) for tenant, texts in others]
        await asyncio.sleep(0.05)
        for _ in range(SINGLES):
            if all(task.done() for task in flood):
                break
            begin = time.perf_counter()
            await send(quiet, ["a single short text"])
            longest = max(longest, time.perf_counter() - begin)
    return longest * 1e3
