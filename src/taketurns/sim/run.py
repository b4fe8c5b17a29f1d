# SPDX-License-Identifier: Apache-2.0
"""One run: arrivals, a scheduler, engines and measures on a virtual clock."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from random import Random
from typing import Protocol

from taketurns.ports.clock import VirtualClock
from taketurns.sim.engines.base import EngineFactory, Place
from taketurns.sim.request import Client, Request
from taketurns.sim.schedulers.base import SimScheduler, Surroundings, TenantFacts

TOGETHER = 256
"""Requests that are drawn together before they arrive."""


class Observer(Protocol):
    """Learns what happens in a run."""

    def arrived(self, request: Request) -> None:
        """A request arrives."""
        ...

    def refused(self, request: Request) -> None:
        """It is refused."""
        ...

    def expired(self, request: Request, now_us: int) -> None:
        """Its deadline passed while it waited."""
        ...

    def admitted(self, request: Request) -> None:
        """An engine begins with it."""
        ...

    def finished(self, request: Request) -> None:
        """It has its last token."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run is made of.

    Attributes:
        scheduler: Makes the scheduler.
        engine: Makes an engine.
        engines: How many there are, at least 1.
        tenants: The tenants that differ from the defaults.
        seed: For schedulers that roll dice.
        end_us: Stop here; None: when everything is served.
        throttled: See :class:`~taketurns.sim.schedulers.base.Surroundings`.
    """

    scheduler: Callable[[Surroundings], SimScheduler]
    engine: EngineFactory
    engines: int
    tenants: Mapping[str, TenantFacts]
    seed: str
    end_us: int | None = None
    throttled: bool = True


class Run:
    """One run; implements :class:`~taketurns.sim.engines.base.EngineWatcher`.

    Memory is bounded by what waits and runs, not by what has finished.

    Args:
        setting: What it's made of.
        arrivals: Requests in the order of their arrival.
        observer: Learns what happens.
        clients: Who sends in closed loops.
    """

    def __init__(
        self,
        setting: Setting,
        arrivals: Iterator[Request],
        observer: Observer,
        clients: Sequence[Client] = (),
    ) -> None:
        self.clock = VirtualClock()
        self._setting = setting
        self._arrivals = arrivals
        self._observer = observer
        self._clients = clients
        self._numbers = 0
        # Engines tell the observer itself, but where someone waits for his answer.
        self.admitted = observer.admitted
        self.finished = self._finished if clients else observer.finished
        self.scheduler = setting.scheduler(
            Surroundings(
                self.clock,
                Random(f"scheduler {setting.seed}"),
                setting.tenants,
                setting.engines,
                self._wake,
                self._expired,
                setting.throttled,
            )
        )
        self.engines = [
            setting.engine(Place(number, self.clock, self.scheduler, self))
            for number in range(setting.engines)
        ]

    def go(self) -> None:
        """Run to the end."""
        # Nothing here stands in a cycle, so collections would only walk over all that waits.
        collects = gc.isenabled()
        gc.disable()
        try:
            self._go()
        finally:
            if collects:
                gc.enable()

    def _go(self) -> None:
        for client in self._clients:
            self._ask(client)
        end_us = self._setting.end_us
        last_us = float("inf") if end_us is None else float(end_us)
        clock, pushes, now_us = self.clock, self.scheduler.pushes, -1
        # Drawn many at a time, which is cheaper: what arrives depends on nothing that happens here.
        drawn = iter(lambda: list(islice(self._arrivals, TOGETHER)), [])
        for request in chain.from_iterable(drawn):
            if request.arrived_us > now_us:
                # Engines look at all that arrived at one moment together.
                if not pushes and now_us >= 0:
                    self._look()
                if request.arrived_us > last_us:
                    break
                now_us = request.arrived_us
                # What is due by then comes first.
                clock.run_until(now_us)
            self._take_in(request)
        if not pushes:
            self._look()
        if end_us is None:
            self.clock.run()
        else:
            self.clock.run_until(end_us)

    def _finished(self, request: Request) -> None:
        self._observer.finished(request)
        if request.client is not None:
            self._ask(request.client)

    def figures(self) -> dict[str, float]:
        """Return what scheduler and engines know, by name."""
        now_us = max(1, self.clock.now_us())
        busy = sum(engine.busy_us for engine in self.engines) / len(self.engines)
        found = {"busy": min(1.0, busy / now_us)} | self.scheduler.figures()
        each = [engine.figures() for engine in self.engines]
        return found | {
            name: sum(figures[name] for figures in each) / len(each) for name in each[0]
        }

    def _expired(self, request: Request) -> None:
        self._observer.expired(request, self.clock.now_us())
        if request.client is not None:
            self._ask(request.client)

    def _ask(self, client: Client) -> None:
        request = client.next(self.clock.now_us())
        if request is not None:
            request.client = client
            self.clock.call_at(request.arrived_us, partial(self._arrive_alone, request))

    def _arrive_alone(self, request: Request) -> None:
        self._take_in(request)
        if not self.scheduler.pushes:
            # Others may arrive at this very moment: let engines see them together.
            self.clock.call_at(self.clock.now_us(), self._look)

    def _take_in(self, request: Request) -> None:
        request.number = self._numbers
        self._numbers += 1
        self._observer.arrived(request)
        if not self.scheduler.arrived(request):
            self._numbers -= 1
            self._observer.refused(request)
            if request.client is not None:
                self._ask(request.client)

    def _look(self) -> None:
        for engine in self.engines:
            if not self.scheduler.waiting:
                break
            engine.wake()

    def _wake(self, engine: int) -> None:
        there = self.engines[engine]
        if there.patient:
            self.clock.call_at(self.clock.now_us(), there.wake)
        else:
            there.wake()
