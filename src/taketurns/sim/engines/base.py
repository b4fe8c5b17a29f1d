# SPDX-License-Identifier: Apache-2.0
"""What a run asks of an engine model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine stands in a run.

    Attributes:
        number: Its number.
        clock: The run's clock.
        scheduler: Whom it asks.
        watcher: Learns what happens.
    """

    number: int
    clock: Clock
    scheduler: SimScheduler
    watcher: EngineWatcher


EngineFactory = Callable[[Place], SimEngine]
"""Makes an engine for its place."""

Profile = TypeVar("Profile")


class Engine(Generic[Profile]):
    """What every model of an engine begins with.

    Args:
        profile: How fast it is and how much it holds.
        place: Where it stands.
    """

    patient = True

    def __init__(self, profile: Profile, place: Place) -> None:
        self.number = place.number
        self.idle = True
        self.busy_us = 0
        self._profile = profile
        self._clock = place.clock
        self._scheduler = place.scheduler
        self._watcher = place.watcher
