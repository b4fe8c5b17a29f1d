# SPDX-License-Identifier: Apache-2.0
"""Who decides whose turn it is: in this process, or for a whole fleet. Same calls for both."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refused
from taketurns.core.engine_load import EngineLoad
from taketurns.core.model import Tenant, Ticket
from taketurns.core.snapshot import Explanation, PoolSnapshot
from taketurns.core.throttle import Prediction
from taketurns.errors import StoreUnavailableError
from taketurns.ports.clock import Clock


class Stranded(NamedTuple):
    """A ticket can't be decided upon, as the coordinator doesn't answer: it was forgotten."""

    ticket: Ticket


Decision = Granted | Expired | Refused | Stranded
"""What becomes of a ticket that was submitted."""


class CoordinatorDownError(StoreUnavailableError):
    """The coordinator doesn't answer, and nothing may be decided without it: nothing was queued."""

    code = "coordinator_unavailable"

    def __init__(self) -> None:
        super().__init__("the fleet's coordinator does not answer", hint="Try again later.")


class View(Protocol):
    """A pool, to look at."""

    @property
    def queued(self) -> int:
        """Tickets that wait."""
        ...

    @property
    def running(self) -> int:
        """Tickets in flight."""
        ...

    def is_waiting(self, ticket_id: str) -> bool:
        """Tell whether a ticket of this process is queued."""
        ...

    def explain(self, ticket_id: str) -> Explanation | None:
        """Say what stands in front of a waiting ticket; None where that isn't known here."""
        ...

    def predict(
        self,
        ticket: Ticket,
        now_us: int,
        *,
        target_us: int | None = None,
        ahead: int = 0,
        counts: bool = True,
    ) -> Prediction:
        """Predict how long a ticket would wait if it were submitted next."""
        ...

    def snapshot(self) -> PoolSnapshot:
        """Return the state for people and metrics."""
        ...


class Finder(Protocol):
    """How many requests one engine should run at once, as far as is known.

    Contract: it's told of each request that this process sends, its load of what comes
    of it; :meth:`advance` is called when :meth:`next_wake_us` says so.
    """

    @property
    def slots(self) -> int:
        """The limit at present."""
        ...

    @property
    def grows(self) -> bool:
        """False where the engine's slots are set, and only refusals lower them."""
        ...

    @property
    def queue(self) -> int | None:
        """Requests thought to wait inside the engine; None: unknown."""
        ...

    @property
    def load(self) -> EngineLoad:
        """What the engine does for this process."""
        ...

    def started(self, now_us: int, *, stream: bool) -> None:
        """Count a request that is sent; ``stream``: a first byte will come long before its end."""
        ...

    def refused(self, now_us: int) -> None:
        """Note that the engine refused one more than it runs; that one has ended."""
        ...

    def restart(self, now_us: int) -> None:
        """Note that the engine is back, and may have changed."""
        ...

    def bound(
        self, least: int, most: int, *, grows: bool = True, usable_percent: int = 100
    ) -> None:
        """Change its bounds; see :meth:`taketurns.core.auto_slots.SlotFinder.bound`."""
        ...

    def next_wake_us(self) -> int | None:
        """Return when :meth:`advance` has something to do; None: it has nothing."""
        ...

    def advance(self, now_us: int) -> None:
        """Do what is due."""
        ...


class MakeFinder(Protocol):
    """Makes the finder of one engine of a pool."""

    def __call__(
        self, name: str, least: int, most: int, *, start: int, on_change: Callable[[], None]
    ) -> Finder:
        """Return it.

        Args:
            name: The engine's.
            least: Fewest slots, at least 1.
            most: Most slots, at least ``least``.
            start: Slots to begin with, where nothing is known yet.
            on_change: Called when the limit has changed, but in a call of the finder.
        """
        ...


class Coordinator(Protocol):
    """Queues tickets and grants them, fairly.

    Contract:

    * Calls are synchronous, and made on one event loop.
    * Each ticket that was submitted is decided upon once, unless
      it's cancelled before. A refusal may also be raised by ``submit`` itself.
    * A granted ticket holds a slot until it's finished.
    * Which of the waiting tickets is granted is the choice of
      :class:`taketurns.core.scheduler.Scheduler` over all that were submitted anywhere.
    """

    @property
    def clock(self) -> Clock:
        """The clock that the pool goes by."""
        ...

    @property
    def scheduler(self) -> View:
        """The pool, to look at."""
        ...

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue tickets, all or none."""
        ...

    def expect(self, ticket_id: str) -> "asyncio.Future[str]":
        """Return a future of the engine that a ticket is granted."""
        ...

    def cancel(self, ticket_ids: Sequence[str]) -> list[Ticket]:
        """Take waiting tickets out, and return those that were waiting."""
        ...

    def settle(self, ticket_id: str, cost: int) -> None:
        """Let a running ticket's charge stand at ``cost``."""
        ...

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        """Settle a running ticket for good."""
        ...

    def set_tenant(self, tenant: Tenant) -> None:
        """Set a tenant's weight and cap."""
        ...

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum."""
        ...

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine, or change how many slots it has."""
        ...

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine."""
        ...

    def finder(
        self, name: str, least: int, most: int, *, start: int, on_change: Callable[[], None]
    ) -> Finder:
        """Return what finds an engine's slots; see :class:`MakeFinder`."""
        ...

    def close(self) -> None:
        """Stop deciding."""
        ...
