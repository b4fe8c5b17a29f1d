# SPDX-License-Identifier: Apache-2.0
"""Fair turns for asyncio programs: wait for a turn, run in it, give the slot back.

    turns = Turns(PoolRules(quantum=1), [Tier("standard")])
    turns.set_engine("gpu-0", slots=8)

    async with turns.turn("acme", tier="standard") as turn:
        await run_on(turn.engine)

One object is one pool. It belongs to the event loop it's used on.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refused
from taketurns.core.model import PRIORITY_DEFAULT, PoolRules, Tenant, Ticket, Tier
from taketurns.core.own_finder import OwnFinder
from taketurns.core.scheduler import Scheduler
from taketurns.dispatch import Dispatcher
from taketurns.errors import TaketurnsError
from taketurns.ports.clock import Clock
from taketurns.ports.coordinator import Coordinator
from taketurns.system import SystemClock, new_id


class TurnRefusedError(TaketurnsError):
    """A queue is full: the request was not queued and not executed.

    Attributes:
        refused: Which bound it met.
    """

    code = "queue_full"

    def __init__(self, refused: Refused) -> None:
        super().__init__(
            f"{refused.reason.value}: {refused.queued} of {refused.limit} tickets are queued",
            hint="Try again later.",
        )
        self.refused = refused


class TurnExpiredError(TaketurnsError):
    """The deadline passed while the request waited: it was not executed."""

    code = "queue_timeout"

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(f"the deadline of ticket {ticket.id} passed before its turn came")
        self.ticket = ticket


class TurnPool(Coordinator, Protocol):
    """A pool whose turns can be waited for."""

    def turn(
        self,
        tenant: str,
        *,
        tier: str,
        cost: int = 1,
        priority: int = PRIORITY_DEFAULT,
        deadline_us: int | None = None,
        ticket_id: str | None = None,
    ) -> "Turn":
        """Return a context manager that waits for a turn, see :meth:`Turns.turn`."""
        ...

    def fail_waiting(self, error: Callable[[], TaketurnsError]) -> None:
        """Let all fail that somebody waits for, see :meth:`Turns.fail_waiting`."""
        ...


class Turns:
    """Implements :class:`TurnPool`: a pool of slots that many tenants share.

    Args:
        rules: How the pool schedules.
        tiers: Its tiers, best first.
        tenants: Tenants whose weight or cap differs from the default.
        clock: Source of time; the running loop's by default.
        on_decision: Where given, it is handed every decision, instead of those
            who wait in :meth:`turn`; it sees to it that each granted ticket is
            finished. Needed where the rules have batches.
    """

    def __init__(
        self,
        rules: PoolRules,
        tiers: Sequence[Tier],
        tenants: Iterable[Tenant] = (),
        *,
        clock: Clock | None = None,
        on_decision: Callable[[Granted | Expired], None] | None = None,
    ) -> None:
        self._clock = clock or SystemClock(asyncio.get_running_loop())
        self._scheduler = Scheduler(rules, tiers, tenants)
        self._dispatcher = Dispatcher(self._scheduler, self._clock, on_decision or self._tell)
        self._waiters: dict[str, asyncio.Future[str]] = {}

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, to look at; changes go through this object."""
        return self._scheduler

    @property
    def clock(self) -> Clock:
        """The clock that the pool goes by."""
        return self._clock

    def turn(
        self,
        tenant: str,
        *,
        tier: str,
        cost: int = 1,
        priority: int = PRIORITY_DEFAULT,
        deadline_us: int | None = None,
        ticket_id: str | None = None,
    ) -> "Turn":
        """Return a context manager that waits for a turn and holds a slot while it's open.

        Args:
            tenant: Who is charged.
            tier: The tenant's tier.
            cost: What is charged at dispatch, at least 1; settle it with
                :meth:`Turn.settle` when the real cost is known.
            priority: 0 first, 999 last, among the tenant's own.
            deadline_us: When to give up waiting, by the pool's clock.
            ticket_id: Unique id; made up where it's None.

        Raises:
            TurnRefusedError: On entry: a queue is full.
            TurnExpiredError: On entry: the deadline passed first.
        """
        return Turn.ask(
            self,
            tenant,
            tier=tier,
            cost=cost,
            priority=priority,
            deadline_us=deadline_us,
            ticket_id=ticket_id,
        )

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Queue the items of a request for batches, all or none.

        Raises:
            TurnRefusedError: A queue is full.
        """
        try:
            refused = self._dispatcher.submit(tickets)
        except ValueError:
            self._forget(tickets)
            raise
        if refused is not None:
            self._forget(tickets)
            raise TurnRefusedError(refused)

    def expect(self, ticket_id: str) -> "asyncio.Future[str]":
        """Return a future of the engine that a ticket is granted; it fails when it expires.

        Ask before submitting. Cancelling the future takes nothing out of the queue.

        Raises:
            ValueError: Somebody waits for a ticket of this id.
        """
        known = self._waiters.get(ticket_id)
        if known is not None and not known.done():
            raise ValueError(f"ticket {ticket_id!r} is waited for already")
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters[ticket_id] = future
        return future

    def cancel(self, ticket_ids: Sequence[str]) -> list[Ticket]:
        """Take waiting tickets out, and return those that were waiting."""
        for ticket_id in ticket_ids:
            self._waiters.pop(ticket_id, None)
        return self._dispatcher.cancel(ticket_ids)

    def fail_waiting(self, error: Callable[[], TaketurnsError]) -> None:
        """Take out everything that somebody waits for in :meth:`turn`, and let it fail.

        Args:
            error: Makes an error for each of them.
        """
        for ticket in self._dispatcher.cancel(list(self._waiters)):
            waiter = self._waiters.pop(ticket.id)
            if not waiter.done():
                waiter.set_exception(error())

    def settle(self, ticket_id: str, cost: int) -> None:
        """Let a running ticket's charge stand at ``cost``."""
        self._dispatcher.settle(ticket_id, cost)

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        """Settle a running ticket for good; see :meth:`Scheduler.finish`."""
        return self._dispatcher.finish(ticket_id, outcome, cost=cost, executed=executed)

    def set_tenant(self, tenant: Tenant) -> None:
        """Set a tenant's weight and cap."""
        self._dispatcher.set_tenant(tenant)

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum."""
        self._dispatcher.set_quantum(quantum)

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine, or change how many slots it has."""
        self._dispatcher.set_engine(name, slots)

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine."""
        self._dispatcher.remove_engine(name)

    def finder(
        self, name: str, least: int, most: int, *, start: int, on_change: Callable[[], None]
    ) -> OwnFinder:
        """Return what finds an engine's slots: the limit changes in its own calls alone."""
        del name, on_change
        return OwnFinder(least, most, start=start)

    def close(self) -> None:
        """Stop deciding. Who still waits is not told."""
        self._dispatcher.close()

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self._waiters.pop(ticket.id, None)

    def _tell(self, decision: Granted | Expired) -> None:
        if isinstance(decision, Granted):
            (ticket,) = decision.tickets
            waiter = self._waiters.pop(ticket.id, None)
            if waiter is None or waiter.done():
                # Its caller is gone and has not said so yet.
                self._dispatcher.finish(ticket.id, Outcome.CANCELLED, executed=False)
            else:
                waiter.set_result(decision.engine)
        else:
            waiter = self._waiters.pop(decision.ticket.id, None)
            if waiter is not None and not waiter.done():
                waiter.set_exception(TurnExpiredError(decision.ticket))


class Turn:
    """One turn: wait for it with ``async with``; the slot is held until the block ends.

    A block that ends by an exception counts as failed, one that is cancelled
    as cancelled. Unless :meth:`not_executed` was called it's charged.

    Attributes:
        ticket: The ticket that stands for it.
        engine: The engine that was granted; "" before that.
        ended: What it came to, or None before the end.
    """

    def __init__(self, turns: Coordinator, ticket: Ticket) -> None:
        self.ticket = ticket
        self.engine = ""
        self.ended: Ended | None = None
        self._turns = turns
        self._cost: int | None = None
        self._executed = True
        self._outcome: Outcome | None = None

    @classmethod
    def ask(
        cls,
        turns: Coordinator,
        tenant: str,
        *,
        tier: str,
        cost: int = 1,
        priority: int = PRIORITY_DEFAULT,
        deadline_us: int | None = None,
        ticket_id: str | None = None,
    ) -> Self:
        """Return a turn of a pool that is yet to be waited for; see :meth:`Turns.turn`."""
        ticket = Ticket(
            id=ticket_id or new_id("ticket-"),
            tenant=tenant,
            tier=tier,
            cost=cost,
            priority=priority,
            deadline_us=deadline_us,
            arrived_us=turns.clock.now_us(),
        )
        return cls(turns, ticket)

    def prefer(self, affinity: int) -> None:
        """Prefer the engine of this number, see :attr:`Ticket.affinity`; before it's waited for."""
        if affinity != self.ticket.affinity:
            self.ticket = self.ticket._replace(affinity=affinity)

    async def __aenter__(self) -> Self:
        granted = self.enter()
        if granted is not None:
            await self.wait(granted)
        return self

    def enter(self) -> "asyncio.Future[str] | None":
        """Queue the ticket; None where it was granted at once, else what to :meth:`wait` for.

        For code on a hot path; whoever calls it calls :meth:`leave`. Others write ``async with``.

        Raises:
            TurnRefusedError: A queue is full.
        """
        turns, ticket = self._turns, self.ticket
        granted = turns.expect(ticket.id)
        try:
            turns.submit((ticket,))
        except BaseException:
            granted.cancel()
            raise
        if granted.done() and granted.exception() is None:
            self.engine = granted.result()
            return None
        return granted

    async def wait(self, granted: "asyncio.Future[str]") -> None:
        """Wait for what :meth:`enter` returned; a wait that is cancelled leaves the queue.

        Raises:
            TurnExpiredError: The deadline passed first.
        """
        turns, ticket = self._turns, self.ticket
        try:
            self.engine = await granted
        except asyncio.CancelledError:
            withdrawn = turns.cancel([ticket.id])
            if not withdrawn and not granted.cancelled() and granted.exception() is None:
                # The grant and the cancellation crossed: nothing was sent yet.
                self.leave(Outcome.CANCELLED, executed=False)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outcome = self._outcome
        if outcome is None:
            if kind is None:
                outcome = Outcome.COMPLETED
            elif issubclass(kind, asyncio.CancelledError | GeneratorExit):
                outcome = Outcome.CANCELLED
            else:
                outcome = Outcome.FAILED
        self.leave(outcome, executed=self._executed)

    def leave(self, outcome: Outcome, *, executed: bool = True) -> Ended:
        """Give the slot back, once; ``executed``: False where the engine certainly did nothing."""
        ended = self._turns.finish(self.ticket.id, outcome, cost=self._cost, executed=executed)
        self.ended = ended
        return ended

    def settle(self, cost: int) -> None:
        """Say what the turn costs, as far as it's known; the last word counts."""
        self._cost = cost
        self._turns.settle(self.ticket.id, cost)

    def costs(self, cost: int) -> None:
        """Say what the turn has cost, just before it ends: then it's settled with its end."""
        self._cost = cost

    def not_executed(self) -> None:
        """Say that the engine certainly did nothing: then it costs nothing."""
        self._executed = False

    def ends_as(self, outcome: Outcome) -> None:
        """Say how it ended, where that is not what the block's end tells."""
        self._outcome = outcome
