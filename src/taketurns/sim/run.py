# SPDX-License-Identifier: Apache-2.0
"""One run: arrivals, a scheduler, engines and measures on a virtual clock."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from taketurns.ports.clock import VirtualClock
from taketurns.sim.engines.base import EngineFactory
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import SimScheduler, Surroundings, TenantFacts


class Observer(Protocol):
    """Learns what happens in a run."""

    def arrived(self, request: Request) -> None:
        """A request arrives."""
        ...

    def refused(self, request: Request) -> None:
        """It was refused."""
        ...

    def expired(self, request: Request) -> None:
        """Its deadline passed while it waited."""
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
    """

    scheduler: Callable[[Surroundings], SimScheduler]
    engine: EngineFactory
    engines: int
    tenants: Mapping[str, TenantFacts]
    seed: str
    end_us: int | None = None


class Run:
    """One run. Memory is bounded by what waits and runs, not by what has finished.

    Args:
        setting: What it's made of.
        arrivals: Requests in the order of their arrival.
        observer: Learns what happens.
    """

    def __init__(self, setting: Setting, arrivals: Iterator[Request], observer: Observer) -> None:
        self.clock = VirtualClock()
        self._setting = setting
        self._arrivals = arrivals
        self._observer = observer
        self.scheduler = setting.scheduler(
            Surroundings(
                self.clock,
                Random(f"scheduler {setting.seed}"),
                setting.tenants,
                setting.engines,
                self._wake,
                observer.expired,
            )
        )
        self.engines = [
            setting.engine(number, self.clock, self.scheduler, observer.finished)
            for number in range(setting.engines)
        ]
        self._next: Request | None = None

    def go(self) -> None:
        """Run to the end."""
        self._expect()
        if self._setting.end_us is None:
            self.clock.run()
        else:
            self.clock.run_until(self._setting.end_us)

    def _expect(self) -> None:
        self._next = next(self._arrivals, None)
        if self._next is not None:
            self.clock.call_at(max(self._next.arrived_us, self.clock.now_us()), self._arrive)

    def _arrive(self) -> None:
        """Take in all that arrives now, and let engines look at it together."""
        now_us = self.clock.now_us()
        request = self._next
        while request is not None and request.arrived_us <= now_us:
            self._observer.arrived(request)
            if not self.scheduler.arrived(request):
                self._observer.refused(request)
            request = next(self._arrivals, None)
        self._next = request
        if request is not None:
            self.clock.call_at(request.arrived_us, self._arrive)
        if not self.scheduler.pushes:
            for engine in self.engines:
                if not self.scheduler.waiting:
                    break
                engine.wake()

    def _wake(self, engine: int) -> None:
        # Not at once: the dispatcher is in the middle of its decisions.
        self.clock.call_at(self.clock.now_us(), self.engines[engine].wake)
