# SPDX-License-Identifier: Apache-2.0
"""Fair turns over many gateways: the calls of :class:`taketurns.aio.Turns`, decided in Redis.

A ticket is queued here and told to the coordinator, which chooses among those of
all gateways; bodies and clients' connections stay here. While the coordinator
doesn't answer, the same core goes on here with this gateway's share of the slots.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from taketurns.aio import Turn, TurnExpiredError, TurnRefusedError
from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.model import PRIORITY_DEFAULT, PoolRules, Tenant, Ticket, Tier
from taketurns.errors import TaketurnsError
from taketurns.fleet.driver import Driver
from taketurns.fleet.finders import Finders
from taketurns.fleet.forecast import SharedForecast
from taketurns.fleet.held import Held, Holdings
from taketurns.fleet.local import LocalPool, share
from taketurns.fleet.pool import Event, Pool, quoted, submit_event, tenants_event
from taketurns.fleet.settings import FleetSettings
from taketurns.fleet.view import FleetView
from taketurns.ports.clock import Clock, Timer
from taketurns.ports.coordinator import CoordinatorDownError, Decision, Stranded

LOG = logging.getLogger(__name__)

CHUNK = 100
"""Tenants that are told in one event."""

REFUSALS = {"pool": Refusal.POOL_QUEUE_FULL, "tenant": Refusal.TENANT_QUEUE_FULL}


class FleetTurns:
    """Implements :class:`taketurns.ports.coordinator.Coordinator` over Redis.

    Args:
        name: Of the pool, unique in the fleet.
        rules: How it schedules.
        tiers: Its tiers, best first.
        tenants: Weights and caps.
        settings: The gateway, its link, and what to do while that is down.
        clock: The process's clock.
        on_decision: As in :class:`taketurns.aio.Turns`; it's told refusals too.
    """

    def __init__(
        self,
        name: str,
        rules: PoolRules,
        tiers: Sequence[Tier],
        tenants: Iterable[Tenant] = (),
        *,
        settings: FleetSettings,
        clock: Clock,
        on_decision: Callable[[Decision], None] | None = None,
    ) -> None:
        self.clock = clock
        self.rules = rules
        self.tiers = tuple(tiers)
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.holdings = Holdings()
        self.forecast = SharedForecast()
        self.ranks = {tier.name: rank for rank, tier in enumerate(tiers)}
        self.engines: dict[str, int] = {}
        self.scheduler = FleetView(self)
        self._settings = settings
        self._local: LocalPool | None = None
        self._opening: Timer | None = None
        self._waiters: dict[str, asyncio.Future[str]] = {}
        self._perform = on_decision or self._tell
        self._numbers = 0
        self.driver = Driver(
            Pool(name, settings.gateway),
            settings.link,
            clock,
            self,
            rules=rules,
            tiers=self.tiers,
        )
        self._finders = Finders(clock, self.driver.push)
        self.finder = self._finders.make

    @property
    def alone(self) -> bool:
        """True while this gateway goes on without the coordinator."""
        return self._local is not None

    @property
    def ready(self) -> bool:
        """True where requests are served: with the coordinator, or alone."""
        return self.driver.talking or self.alone

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to talk with the coordinator."""
        self.driver.serve(tasks)

    def turn(
        self,
        tenant: str,
        *,
        tier: str,
        cost: int = 1,
        priority: int = PRIORITY_DEFAULT,
        deadline_us: int | None = None,
        ticket_id: str | None = None,
    ) -> Turn:
        """Return a context manager that waits for a turn; see :meth:`taketurns.aio.Turns.turn`."""
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
        """Queue tickets, all or none; that a queue is full is told later, as a decision.

        Raises:
            TurnRefusedError: A queue is full, and that is known at once.
            CoordinatorDownError: There's no coordinator, and ``on_store_error`` is ``closed``.
            ValueError: A ticket can't be queued.
        """
        if not self.ready and self._settings.on_store_error == "closed":
            raise CoordinatorDownError
        for ticket in tickets:
            if ticket.cost < 1 or ticket.size < 1 or ticket.tier not in self.ranks:
                raise ValueError(f"ticket {ticket.id!r}: cost, size or tier is none of this pool's")
            if "|" in ticket.id or "|" in ticket.tenant:
                raise ValueError(f"ticket {ticket.id!r}: '|' is in no id or tenant of a fleet")
        held = [self.holdings.add(ticket) for ticket in tickets]
        if self._local is not None:
            refused = self._local.submit(tickets)
            if refused is not None:
                for ticket in tickets:
                    self.holdings.drop(ticket.id)
                raise TurnRefusedError(refused)
        for each in held:
            self._watch(each)
        if self._local is None:
            self._push_submit(tickets)

    def expect(self, ticket_id: str) -> "asyncio.Future[str]":
        """Return a future of the engine that is granted; see :meth:`taketurns.aio.Turns.expect`."""
        known = self._waiters.get(ticket_id)
        if known is not None and not known.done():
            raise ValueError(f"ticket {ticket_id!r} is waited for already")
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiters[ticket_id] = future
        future.add_done_callback(lambda _: self._forget(ticket_id, future))
        return future

    def cancel(self, ticket_ids: Sequence[str]) -> list[Ticket]:
        """Take waiting tickets out, and return those that were waiting."""
        found = []
        for ticket_id in ticket_ids:
            if self.holdings.waiting(ticket_id) is not None:
                found.append(self.holdings.drop(ticket_id).ticket)
                # It may have been granted meanwhile: that grant is of no use any more.
                self.driver.push(("cancel", ticket_id, True))
        if self._local is not None and found:
            self._local.dispatcher.cancel([ticket.id for ticket in found])
        return found

    def fail_waiting(self, error: Callable[[], TaketurnsError]) -> None:
        """Take out all that somebody here waits for; see :meth:`taketurns.aio.Turns.fail_waiting`.

        Where others can use the engines, it's granted nothing there all the same.
        """
        for ticket in self.cancel(list(self._waiters)):
            self._waiters[ticket.id].set_exception(error())

    def settle(self, ticket_id: str, cost: int) -> None:
        """Let a running ticket's charge stand at ``cost``."""
        held = self._running(ticket_id)
        if cost < 0:
            raise ValueError(f"cost must be at least 0, got {cost}")
        held.standing = cost
        if held.alone and self._local is not None:
            self._local.dispatcher.settle(ticket_id, cost)
        self.driver.top_up(ticket_id, cost)

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        """Settle a running ticket for good; see :meth:`Scheduler.finish`."""
        held = self._running(ticket_id)
        self.holdings.drop(ticket_id)
        stands = held.standing if cost is None else cost
        if self._local is not None:
            if held.alone:
                self._local.finish(ticket_id, cost=stands, executed=executed)
            elif not held.batch or self._last_of(held.batch):
                self._local.freed(held.engine)
        self.driver.forget_top_up(ticket_id)
        self.driver.push(("finish", ticket_id, stands, executed))
        final = max(stands, self.rules.min_charge_or_default) if executed else 0
        return Ended(held.ticket, outcome, final, held.engine)

    def set_tenant(self, tenant: Tenant) -> None:
        """Set a tenant's weight and cap, for the whole fleet."""
        self.tenants[tenant.name] = tenant
        if self._local is not None:
            self._local.dispatcher.set_tenant(tenant)
        self.driver.push(tenants_event([tenant]))

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum, for the whole fleet."""
        self.rules = self.driver.rules = replace(self.rules, quantum=quantum)
        if self._local is not None:
            self._local.dispatcher.set_quantum(quantum)
        self.driver.push(self._quantum_event())

    def set_engine(self, name: str, slots: int) -> None:
        """Say how many slots an engine has as seen from here; 0: it can't be reached."""
        self.engines[name] = slots
        if self._local is not None:
            self._local.set_engine(name, slots)
        self._finders.reach(name, slots)

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine, as far as this gateway has a say."""
        self.engines.pop(name, None)
        if self._local is not None:
            self._local.remove_engine(name)
        self._finders.remove(name)

    def close(self) -> None:
        """Stop deciding, and leave the fleet. Who still waits is not told."""
        self.driver.close()
        if self._local is not None:
            self._local.close()
        if self._opening is not None:
            self._opening.cancel()
        for _, held in self.holdings.all():
            if held.timer is not None:
                held.timer.cancel()

    # What the driver tells.

    def joined(self, theirs: dict[str, str], opens_us: int) -> None:
        """Tell the coordinator all that it doesn't know, and decide nothing alone any more."""
        push = self.driver.push
        tenants = list(self.tenants.values())
        for first in range(0, len(tenants), CHUNK):
            push(tenants_event(tenants[first : first + CHUNK]))
        push(self._quantum_event())
        for name, slots in self.engines.items():
            self._finders.say(name, slots)
        for _, held in self.holdings.all():
            held.doubted = True
        if self._local is not None and opens_us > 0:
            # The others have yet to say what they run: until then all go on alone.
            self._opening = self.clock.call_at(self.clock.now_us() + opens_us, self._hand_over)
            self._compare_running(theirs)
        else:
            self._hand_over()
            self.compare(theirs)

    def _hand_over(self) -> None:
        """Decide nothing alone any more."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
            self._push_waiting()
        if self._local is not None:
            self._local.close()
            self._local = None
            self._finders.go_on(alone=False)
            LOG.warning("pool %s: with the coordinator again", self.driver.pool.base)
        for _, held in self.holdings.all():
            held.alone = False

    def _push_waiting(self) -> None:
        for _, held in self.holdings.all():
            if not held.engine:
                self._push_submit([held.ticket])

    def compare(self, theirs: dict[str, str]) -> None:
        """Mend what differs between here and there."""
        if self._opening is not None:
            return
        self._compare_running(theirs)
        for _, held in self.holdings.all():
            if held.engine:
                continue
            said = theirs.get(held.ticket.id)
            if said == "r" and not held.doubted:
                # A grant that is on its way, or lost: the second time it's taken as lost.
                held.doubted = True
                continue
            held.doubted = False
            if said == "r":
                self.driver.push(("finish", held.ticket.id, False, False))
            if said != "w":
                self._push_submit([held.ticket])

    def _compare_running(self, theirs: dict[str, str]) -> None:
        """Let go there what isn't held here, and say what runs here."""
        for ticket_id in theirs:
            if ticket_id not in self.holdings:
                self.driver.push(("finish", ticket_id, False, False))
        for _, held in self.holdings.all():
            if held.engine and theirs.get(held.ticket.id) != "r":
                self.driver.push(self._adopt_event(held))

    def lost(self) -> None:
        """Go on alone, if that's wanted and one's share is known."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        settings = self._settings
        if settings.on_store_error == "closed":
            for _, held in list(self.holdings.all()):
                if not held.engine:
                    self._perform(Stranded(self.holdings.drop(held.ticket.id).ticket))
        elif self._local is None and (self.driver.pool.members or settings.expected_gateways):
            self._go_alone()

    def _go_alone(self) -> None:
        settings, members = self._settings, self.driver.pool.members
        many = settings.expected_gateways or 1

        def mine(slots: int) -> int:
            everything = settings.on_store_error == "open"
            return slots if everything else share(slots, settings.gateway, members, many)

        self._local = LocalPool(
            self.rules,
            self.tiers,
            self.tenants.values(),
            clock=self.clock,
            perform=self._perform_alone,
            share=mine,
        )
        settings.went_alone()
        self._finders.go_on(alone=True)
        waiting = []
        for _, held in self.holdings.all():
            held.alone = False
            if not held.engine:
                waiting.append(held.ticket)
        self._local.set_engines(self.engines, self.holdings.slots_in_use())
        for ticket in waiting:
            refused = self._local.submit([ticket])
            if refused is not None:
                self.holdings.drop(ticket.id)
                self._perform(refused)

    def decided(self, message: list[Any], *, fresh: bool) -> None:
        """Carry a decision of the coordinator out, if it's of use still."""
        word, *rest = message
        if word == "expired":
            self._expire(rest[0])
            return
        engine, batch, ids = rest
        wanted = [held for name in ids if (held := self.holdings.waiting(name)) is not None]
        for name in ids:
            # Nobody waits for it any more: it may be that it was given up just now.
            if name not in self.holdings:
                self.driver.push(("finish", name, False, False))
        if not fresh:
            LOG.warning("pool %s: %d grants came too late", self.driver.pool.base, len(wanted))
            for held in wanted:
                self.driver.push(("finish", held.ticket.id, False, False))
                self._push_submit([held.ticket])
            return
        if wanted:
            self._start(engine, f"{self.driver.pool.epoch}:{batch}" if batch else "", wanted)

    def heard(self, summary: list[Any]) -> None:
        """Take in what a step told of the whole pool."""
        self.forecast.heard(summary, self.clock.now_us())

    # Inside.

    def _start(self, engine: str, batch: str, wanted: list[Held], *, alone: bool = False) -> None:
        for held in wanted:
            self.holdings.start(held, engine, batch, alone=alone)
        self._perform(Granted(engine, tuple(held.ticket for held in wanted)))

    def _perform_alone(self, decision: Granted | Expired) -> None:
        if isinstance(decision, Expired):
            self._expire(decision.ticket.id)
            return
        wanted = [held for t in decision.tickets if (held := self.holdings.waiting(t.id))]
        self._numbers += 1
        batch = f"{self._settings.gateway}:{self._numbers}" if self.rules.batch else ""
        self._start(decision.engine, batch, wanted, alone=True)
        for held in wanted:
            if held.ticket.id in self.holdings:
                self.driver.push(self._adopt_event(held))

    def _push_submit(self, tickets: Sequence[Ticket]) -> None:
        gateway = self._settings.gateway
        told = [t._replace(group=f"{gateway}/{quoted(t.group)}") for t in tickets]
        event = submit_event(told, self.ranks, self.clock.now_us())
        self.driver.push(event, lambda answer: self._queued(tickets, answer))

    def _queued(self, tickets: Sequence[Ticket], answer: list[Any]) -> None:
        """Learn how a submission went."""
        word, *figures = answer
        if word not in REFUSALS:
            last = tickets[-1]
            if figures:
                self.forecast.told(
                    self.ranks[last.tier], last.tenant, figures[0], self.clock.now_us()
                )
            return
        limit, queued, _ = figures
        for ticket in tickets:
            if self.holdings.waiting(ticket.id) is not None:
                self.holdings.drop(ticket.id)
                self._perform(Refused(ticket, REFUSALS[word], limit, queued))

    def _expire(self, ticket_id: str) -> None:
        if self.holdings.waiting(ticket_id) is not None:
            self._perform(Expired(self.holdings.drop(ticket_id).ticket))

    def _watch(self, held: Held) -> None:
        """Let a ticket expire here: who waits is told in time, whatever the coordinator does."""
        deadline_us = held.ticket.deadline_us
        if deadline_us is not None and not held.engine:
            held.timer = self.clock.call_at(deadline_us, lambda: self._passed(held.ticket.id))

    def _passed(self, ticket_id: str) -> None:
        if self.holdings.waiting(ticket_id) is None:
            return
        self.driver.push(("cancel", ticket_id, True))
        if self._local is not None:
            self._local.dispatcher.cancel([ticket_id])
        self._expire(ticket_id)

    def _running(self, ticket_id: str) -> Held:
        held = self.holdings.running(ticket_id)
        if held is None:
            raise KeyError(ticket_id)
        return held

    def _last_of(self, batch: str) -> bool:
        return not any(held.batch == batch for _, held in self.holdings.all())

    def _quantum_event(self) -> Event:
        return ("quantum", self.rules.quantum, self.rules.min_charge_or_default, False)

    def _adopt_event(self, held: Held) -> Event:
        ticket = held.ticket
        return (
            "adopt",
            ticket.id,
            ticket.tenant,
            self.ranks[ticket.tier],
            ticket.cost,
            held.standing,
            held.engine,
            held.batch or 0,
        )

    def _forget(self, ticket_id: str, future: "asyncio.Future[str]") -> None:
        if self._waiters.get(ticket_id) is future:
            del self._waiters[ticket_id]

    def _tell(self, decision: Decision) -> None:
        if isinstance(decision, Granted):
            (ticket,) = decision.tickets
            waiter = self._waiters.get(ticket.id)
            if waiter is None or waiter.done():
                self.finish(ticket.id, Outcome.CANCELLED, executed=False)
            else:
                waiter.set_result(decision.engine)
            return
        waiter = self._waiters.get(decision.ticket.id)
        if waiter is None or waiter.done():
            return
        if isinstance(decision, Expired):
            waiter.set_exception(TurnExpiredError(decision.ticket))
        elif isinstance(decision, Refused):
            waiter.set_exception(TurnRefusedError(decision))
        else:
            waiter.set_exception(CoordinatorDownError())
