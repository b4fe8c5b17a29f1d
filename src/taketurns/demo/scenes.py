# SPDX-License-Identifier: Apache-2.0
"""The demo's two scenes: a quiet tenant beside a flood, and two tiers that both have too much.

Floods come from processes of their own; the quiet tenant is the official
``openai`` package in this one.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from openai import AsyncOpenAI

from taketurns.demo.children import (
    FloodProcess,
    GatewayProcess,
    Setting,
    first_fault,
    flood,
    gateway,
)
from taketurns.demo.load import Flood, texts
from taketurns.demo.records import BatchPace, Served, count_batches, pace, read_log

GROUP = 5
"""Requests that the quiet tenant sends at a time."""

WARM_UP_GROUPS = 3
"""Groups before anything is measured: connections are opened and code is warm."""

MIDDLE = (0.25, 0.75)
"""The part of the flood over which the quiet tenant's groups are spread, by what is answered."""

Tell = Callable[[str, int], None]
"""Told a bar's name and how far it is."""


@dataclass(frozen=True, slots=True)
class Load:
    """A flood's size: requests of one text each, and how many wait at once."""

    count: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is sent.

    Attributes:
        flood: By tenant A.
        groups: Groups of five by tenant B, alone and again beside the flood.
        trial: By the trial tenant.
        enterprise: By the enterprise tenant.
    """

    flood: Load
    groups: int
    trial: Load
    enterprise: Load


FULL = Sizes(Load(10_000, 2_000), 10, Load(3_000, 1_000), Load(1_500, 300))
SMALL = Sizes(Load(600, 200), 3, Load(200, 100), Load(100, 40))


@dataclass(frozen=True, slots=True)
class Burst:
    """What scene 1 showed under one schedule.

    Attributes:
        alone_s: B's latencies on an idle gateway, from send to answer.
        beside_s: B's latencies beside A's flood.
        pace: Of batches, over the middle of A's flood.
        served: The gateway's log of A's flood and B's requests beside it.
    """

    alone_s: list[float]
    beside_s: list[float]
    pace: BatchPace
    served: list[Served]


@dataclass(frozen=True, slots=True)
class Tiers:
    """What scene 2 showed with one floor.

    Attributes:
        floor_percent: The trial tier's guaranteed share.
        batch_s: Mean time from one batch to the next, while both had work.
        served: The gateway's log.
    """

    floor_percent: int
    batch_s: float
    served: list[Served]


class QuietTenant:
    """Tenant B: sends groups of requests with the openai package, and times them.

    Args:
        client: Its client.
        seed: Of its texts.
        groups: The most groups that it sends.
    """

    def __init__(self, client: AsyncOpenAI, *, seed: int, groups: int) -> None:
        self._client = client
        self._texts = iter(texts(seed, groups * GROUP))
        self._clock = asyncio.get_running_loop().time

    async def group(self) -> list[float]:
        """Send a group at once; return the latencies once all are answered."""
        return await asyncio.gather(*(self._one(next(self._texts)) for _ in range(GROUP)))

    async def _one(self, text: str) -> float:
        begin_s = self._clock()
        await self._client.embeddings.create(model="minilm", input=text)
        return self._clock() - begin_s


async def burst(setting: Setting, sizes: Sizes, seed: int, folder: Path, tell: Tell) -> Burst:
    """Play scene 1 once: B alone, then B beside A's flood.

    Each of B's groups begins when a certain share of A's flood is answered, and
    doesn't wait for the group before: so both schedules see the same requests
    at the same points, and a slow one can't make B ask less (which would hide
    its slowness).

    Args:
        setting: How the gateway is set up.
        sizes: How much is sent.
        seed: Of all texts.
        folder: For the gateway's files.
        tell: Told of the bars ``a`` and ``b``.

    Raises:
        StartError: The gateway can't start here.
        DemoError: Some request was not answered.
    """
    async with AsyncExitStack() as stack:
        served_by = await stack.enter_async_context(gateway(setting, folder))
        client = AsyncOpenAI(
            base_url=f"http://{served_by.host}:{served_by.port}/v1",
            api_key=served_by.keys["b"],
            max_retries=0,
            timeout=3600,
        )
        await stack.enter_async_context(client)
        quiet = QuietTenant(client, seed=seed + 1, groups=WARM_UP_GROUPS + 2 * sizes.groups)
        for _ in range(WARM_UP_GROUPS):
            await quiet.group()
        alone_s = [second for _ in range(sizes.groups) for second in await quiet.group()]
        noisy = await stack.enter_async_context(
            flood(_flood(served_by, "a", sizes.flood, seed), lambda done: tell("a", done))
        )
        beside_s, measured = await _beside(served_by, noisy, quiet, sizes, tell)
    before = (WARM_UP_GROUPS + sizes.groups) * GROUP
    log = read_log(served_by.log)
    warm_up_and_alone = [request for request in log if request.tenant == "b"][:before]
    gone = set(map(id, warm_up_and_alone))
    return Burst(alone_s, beside_s, measured, [item for item in log if id(item) not in gone])


async def _beside(
    served_by: GatewayProcess,
    noisy: FloodProcess,
    quiet: QuietTenant,
    sizes: Sizes,
    tell: Tell,
) -> tuple[list[float], BatchPace]:
    """Send B's groups over the middle of A's flood; return latencies and the pace there."""
    begin, end = (share * sizes.flood.count for share in MIDDLE)
    answered = 0

    def count(task: "asyncio.Task[list[float]]") -> None:
        nonlocal answered
        if not task.cancelled() and task.exception() is None:
            answered += 1
            tell("b", answered)

    await noisy.reached(int(begin))
    before = await count_batches(served_by)
    groups = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for number in range(sizes.groups):
                await noisy.reached(int(begin + (end - begin) * number / sizes.groups))
                groups.append(tasks.create_task(quiet.group(), name=f"group {number}"))
                groups[-1].add_done_callback(count)
            await noisy.reached(int(end))
            after = await count_batches(served_by)
    except ExceptionGroup as group:
        raise first_fault(group) from None
    return [second for task in groups for second in task.result()], pace(before, after)


async def tiers(setting: Setting, sizes: Sizes, seed: int, folder: Path, tell: Tell) -> Tiers:
    """Play scene 2 once: a trial tenant's flood, into which an enterprise tenant's work comes.

    Args:
        setting: How the gateway is set up.
        sizes: How much is sent.
        seed: Of all texts.
        folder: For the gateway's files.
        tell: Told of the bars ``trial`` and ``enterprise``.

    Raises:
        StartError: The gateway can't start here.
        DemoError: Some request was not answered.
    """
    async with gateway(setting, folder) as served_by:
        first = _flood(served_by, "trial", sizes.trial, seed + 2)
        second = _flood(served_by, "enterprise", sizes.enterprise, seed + 3)
        async with flood(first, lambda done: tell("trial", done)) as trial:
            await trial.reached(sizes.trial.count // 10)
            async with flood(second, lambda done: tell("enterprise", done)) as enterprise:
                await enterprise.reached(sizes.enterprise.count // 10)
                before = await count_batches(served_by)
                await enterprise.reached(sizes.enterprise.count // 2)
                after = await count_batches(served_by)
    batch_s = pace(before, after).batch_s
    return Tiers(setting.trial_floor_percent, batch_s, read_log(served_by.log))


def _flood(served_by: GatewayProcess, tenant: str, load: Load, seed: int) -> Flood:
    return Flood(
        served_by.host,
        served_by.port,
        served_by.keys[tenant],
        load.count,
        load.in_flight,
        seed,
    )
