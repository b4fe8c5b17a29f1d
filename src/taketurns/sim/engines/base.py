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
    """

    idle: bool
    busy_us: int

    def wake(self) -> None:
        """Look for work: something has arrived."""
        ...


EngineFactory = Callable[[int, Clock, SimScheduler, Callable[[Request], None]], SimEngine]
"""Makes an engine from its number, the clock, the scheduler, and whom to tell of finished ones."""
