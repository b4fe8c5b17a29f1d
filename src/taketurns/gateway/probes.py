# SPDX-License-Identifier: Apache-2.0
"""Asks every server again and again how it fares, and tells its pool."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from taketurns.config import pools as facts
from taketurns.config.engines import AUTO, UrlEngineConfig
from taketurns.config.served import ModelConfig
from taketurns.engines.kinds import KINDS, METRICS_PATH
from taketurns.engines.probe import EngineProbe
from taketurns.gateway.availability import Availability
from taketurns.ports.clock import Clock
from taketurns.units import us_from_s

LOG = logging.getLogger(__name__)

GAUGE_S = 1.0
"""How often an engine's gauges are read, where its slots are found."""


class Probes:
    """The probes of all engines. For one event loop.

    Args:
        clock: Says when to ask again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._probes: list[EngineProbe] = []

    def follow(
        self, tasks: asyncio.TaskGroup, pools: Iterable[tuple[ModelConfig, Availability]]
    ) -> None:
        """Ask what a configuration names, and nothing else any more.

        Args:
            tasks: Where the asking runs.
            pools: What the operator wrote of each model, and whom to tell.
        """
        self._stop()
        for probe in self._probes:
            tasks.create_task(probe.aclose())
        self._probes.clear()
        for model, availability in pools:
            for name, part in facts.engines(model).items():
                if isinstance(part, UrlEngineConfig):
                    self._ask(tasks, model, name, part, availability)

    async def aclose(self) -> None:
        """Ask nothing more."""
        self._stop()
        for probe in self._probes:
            await probe.aclose()
        self._probes.clear()

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def _ask(
        self,
        tasks: asyncio.TaskGroup,
        model: ModelConfig,
        name: str,
        part: UrlEngineConfig,
        availability: Availability,
    ) -> None:
        kind, health = KINDS[part.kind], model.health
        path = health.path or kind.health
        probe = EngineProbe(name, part.url, key=part.key or "", timeout_s=health.timeout)
        asked: list[tuple[Callable[[], Awaitable[None]], float]] = []
        if path is not None and health.interval:

            async def check() -> None:
                availability.checked(name, well=await probe.well(path))

            asked.append((check, health.interval))
        if part.slots == AUTO and kind.waiting:

            async def gauge() -> None:
                waiting = await probe.waiting(METRICS_PATH, kind.waiting)
                if waiting is not None:
                    availability.gauged(name, waiting)

            asked.append((gauge, GAUGE_S))
        if asked:
            self._probes.append(probe)
        self._tasks += [tasks.create_task(self._repeat(ask, every_s)) for ask, every_s in asked]

    async def _repeat(self, ask: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await ask()
            except Exception:
                # The border of a task: a fault in here must not end the gateway.
                LOG.exception("an engine could not be asked")
            again = asyncio.Event()
            timer = self._clock.call_at(self._clock.now_us() + us_from_s(every_s), again.set)
            try:
                await again.wait()
            finally:
                timer.cancel()
