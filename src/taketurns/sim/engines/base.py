# SPDX-License-Identifier: Apache-2.0
"""What a run asks of an engine model."""

from collections.abc import Callable
from typing import Protocol

from taketurns.ports.clock import Clock
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import SimScheduler


class SimEngine(Protocol):
    """Serves requests in virtual time; asks its scheduler for more when it has room.

    Attributes:
        idle: Nothing runs.
        busy_us: Time in which something ran.
        patient: It begins with all that arrives at one moment together.
    """

    idle: bool
    busy_us: int
    patient: bool

    def wake(self) -> None:
        """Look for work: something has arrived."""
        ...

    def solo_us(self, request: Request) -> float:
        """Return how long a request takes that has the engine for itself."""
        ...

    def figures(self) -> dict[str, float]:
        """Return what only the engine knows, by name; means over engines make sense."""
        ...


class EngineWatcher(Protocol):
    """Learns what an engine does."""

    def admitted(self, request: Request) -> None:
        """An engine begins with a request."""
        ...

    def finished(self, request: Request) -> None:
        """A request has its last token; told before its scheduler is."""
        ...


EngineFactory = Callable[[int, Clock, SimScheduler, EngineWatcher], SimEngine]
"""Makes an engine from its number, the clock, its scheduler and its watcher."""
