# SPDX-License-Identifier: Apache-2.0
"""The scheduler of one pool: submit, cancel, advance, settle, finish.

Who drives it tells it the time and acts on its decisions. Nothing in it
waits: every call runs to its end, so that a single-threaded driver needs no
lock. It selects a ticket by tier (:mod:`~taketurns.core.tiers`), then tenant
(:mod:`~taketurns.core.ring`), then the tenant's own order
(:mod:`~taketurns.core.queue`), until every slot is taken or nothing waits.

Every ticket that was accepted ends in exactly one way: expired or cancelled
while it waited, or through :meth:`Scheduler.finish` once it was granted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from taketurns.core.deadlines import Deadlines
from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.filling import SentBatch, fill
from taketurns.core.flow import OUT, Flow
from taketurns.core.forecast import Forecast
from taketurns.core.linger import Linger
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.queue import NEVER_US, Entry, entry_of
from taketurns.core.ring import Ring
from taketurns.core.slots import EngineSlots, Slots
from taketurns.core.snapshot import Explanation, PoolSnapshot, explain, snapshot
from taketurns.core.throttle import Prediction
from taketurns.core.tiers import Tiers, TierState

EVERYBODY = "*"
"""Name of the one flow that all tenants share with ``shared_queue``."""

_Running = tuple[Ticket, Flow, TierState, EngineSlots, SentBatch | None]
"""A ticket in flight, its flow, its tier, its engine, and its batch where it's in one."""


class Scheduler:
    """Schedules one pool.

    Args:
        rules: How the pool schedules.
        tiers: Its tiers, best first; at least one.
        tenants: Weights and caps of the tenants that differ from the defaults.

    Raises:
        ValueError: No tier, two of one name, or floors over 50 per cent in all.
    """

    def __init__(
        self, rules: PoolRules, tiers: Sequence[Tier], tenants: Iterable[Tenant] = ()
    ) -> None:
        names = [tier.name for tier in tiers]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"tiers must be one or more of different names, got {names}")
        self._rules = rules
        self._min_charge = rules.min_charge_or_default
        self._batch = batch = rules.batch
        self._sticky = rules.sticky
        served = (Tier(EVERYBODY),) if rules.shared_queue else tuple(tiers)
        keeps = rules.headroom_percent > 0
        states = [
            TierState(tier, rank, Ring(rules.quantum, rules.debt_rounds, keeps=keeps))
            for rank, tier in enumerate(served)
        ]
        self._tiers = Tiers(states)
        self._floored = any(tier.floor_percent for tier in served)
        self._state_by_tier = (
            dict.fromkeys(names, states[0])
            if rules.shared_queue
            else {state.tier.name: state for state in states}
        )
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._slots = Slots()
        self._linger = Linger(batch) if batch is not None and batch.linger_us else None
        self._forecast = Forecast(states, self._slots) if rules.throttle else None
        self._waiting: dict[str, Entry] = {}
        self._running: dict[str, _Running] = {}
        # What stands charged for those whose charge was settled meanwhile.
        self._standing: dict[str, int] = {}
        self._deadlines = Deadlines(self._waiting)
        self._arrivals = 0
        # Arrival numbers of waiting tickets that a batch passed over.
        self._passed: set[int] = set()

    # Tickets

    def submit(self, ticket: Ticket) -> Refused | None:
        """Queue a ticket. O(log n).

        Returns:
            None where it was queued, else why not: then it's forgotten.

        Raises:
            ValueError: Its id is queued or running, its tier is unknown, or its
                cost or size is under 1.
        """
        waiting = self._waiting
        ticket_id, tenant, tier, cost, size, priority, deadline_us, _, _, _ = ticket
        if ticket_id in waiting or ticket_id in self._running:
            raise ValueError(f"ticket {ticket_id!r} is queued or running already")
        if cost < 1 or size < 1:
            raise ValueError(f"ticket {ticket_id!r}: cost and size must be at least 1")
        state = self._state_by_tier.get(tier)
        if state is None:
            raise ValueError(f"ticket {ticket_id!r}: the pool has no tier {tier!r}")
        rules = self._rules
        if len(waiting) >= rules.queue_max:
            return Refused(ticket, Refusal.POOL_QUEUE_FULL, rules.queue_max, len(waiting))
        flow = state.flows.get(EVERYBODY if rules.shared_queue else tenant)
        if flow is None or flow.place == OUT:
            flow = self._come_in(state, flow, tenant)
        queue = flow.queue
        if queue.count >= rules.tenant_queue_max and not rules.shared_queue:
            return Refused(ticket, Refusal.TENANT_QUEUE_FULL, rules.tenant_queue_max, queue.count)
        self._arrivals += 1
        arrival = self._arrivals
        if deadline_us is None:
            entry = (priority, NEVER_US, arrival, ticket)
        else:
            entry = self._watched(ticket, arrival)
        waiting[ticket_id] = entry
        queue.push(entry)
        if self._forecast is not None:
            self._forecast.queued(state.rank, flow, ticket)
        if flow.place == OUT and (flow.cap is None or flow.in_flight < flow.cap):
            state.ring.enter(flow)
        return None

    def cancel(self, ticket_id: str) -> Ticket | None:
        """Take a waiting ticket out. O(log n), amortised.

        Returns:
            The ticket, or None where it isn't waiting (any more). A running one
            is ended by :meth:`finish` once its engine has been told.
        """
        entry = self._waiting.pop(ticket_id, None)
        if entry is None:
            return None
        self._withdraw(entry, expired=False)
        if entry[1] != NEVER_US:
            self._deadlines.forget()
        return entry[3]

    def change(self, ticket_id: str, *, priority: int, deadline_us: int | None) -> bool:
        """Give a waiting ticket another priority and deadline; its arrival number stays.

        Returns:
            False where it isn't waiting (any more).
        """
        entry = self._waiting.get(ticket_id)
        if entry is None:
            return False
        ticket = entry[3]._replace(priority=priority, deadline_us=deadline_us)
        moved = self._watched(ticket, entry[2])
        flow = self._flow_of(ticket)
        flow.queue.push(moved)
        flow.queue.remove(entry)
        if self._forecast is not None:
            rank = self._state_by_tier[ticket.tier].rank
            self._forecast.moved(rank, flow, entry[3], priority)
        self._waiting[ticket_id] = moved
        if entry[1] != NEVER_US:
            self._deadlines.forget()
        return True

    def advance(self, now_us: int) -> list[Expired | Granted]:
        """Expire what is due, then grant until all slots are taken or nothing is eligible.

        Returns:
            Expired tickets in the order (deadline, arrival), then grants in
            the order in which they were decided.
        """
        decisions: list[Expired | Granted] = []
        forecast = self._forecast
        if forecast is not None:
            forecast.passed(now_us)
        if self._deadlines.heap and self._deadlines.heap[0][0] <= now_us:
            for entry in self._deadlines.due(now_us):
                del self._waiting[entry[3].id]
                self._withdraw(entry, expired=True)
                decisions.append(Expired(entry[3]))
        slots = self._slots
        held = self._linger is not None and self._linger.holds(now_us, self._waiting)
        grant = self._grant_keeping if slots.kept else self._grant
        # With floors, that nothing waits is something to be noted.
        while slots.available and not held and (self._waiting or self._floored):
            granted = grant(slots)
            if granted is None:
                break
            decisions.append(granted)
        if self._linger is not None and not self._waiting:
            self._linger.rest()
        if forecast is not None:
            forecast.advanced(decisions, len(self._waiting))
        return decisions

    @property
    def settled(self) -> bool:
        """True only where :meth:`advance` has nothing to do, now and until a ticket ends."""
        return not (self._slots.available or self._deadlines.heap or self._linger or self._forecast)

    def next_wake_us(self) -> int | None:
        """Return when :meth:`advance` has to be called though nothing else happens."""
        wake_us = self._deadlines.next_us()
        if self._linger is not None and self._linger.until_us is not None:
            until_us = self._linger.until_us
            return until_us if wake_us is None else min(wake_us, until_us)
        return wake_us

    def settle(self, ticket_id: str, cost: int) -> None:
        """Let a running ticket's charge stand at ``cost``: a top-up or a refund. O(log n).

        Raises:
            KeyError: The ticket isn't running.
            ValueError: ``cost`` is negative.
        """
        if cost < 0:
            raise ValueError(f"cost must be at least 0, got {cost}")
        ticket, flow, state, _, _ = self._running[ticket_id]
        difference = cost - self._standing.get(ticket_id, ticket.cost)
        if difference:
            self._standing[ticket_id] = cost
            state.ring.settle(flow, difference, cost)

    def finish(  # noqa: C901 - one event, and what it means for each part in turn
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        """Settle a running ticket for good. O(log n).

        Its slot is free once all tickets of its grant have finished.

        Args:
            ticket_id: The ticket.
            outcome: COMPLETED, FAILED or CANCELLED.
            cost: What it has cost, at least 0; None: what stands charged.
            executed: False only where the engine certainly did nothing: then it
                costs nothing. Else it costs the pool's least charge or more.

        Raises:
            KeyError: The ticket isn't running: it never was, or it has ended.
        """
        ticket, flow, state, engine, batch = self._running.pop(ticket_id)
        charged = self._standing.pop(ticket_id, ticket.cost) if self._standing else ticket.cost
        if executed:
            final = max(charged if cost is None else cost, self._min_charge)
            if final != charged:
                state.ring.settle(flow, final - charged, final)
        else:
            final = 0
            state.ring.refund(flow, charged)
        if self._forecast is not None:
            freed = batch is None or batch.left == 1
            self._forecast.finished(ticket, freed=freed, executed=executed)
        flow.in_flight -= 1
        if flow.place == OUT:
            if flow.queue.count:
                if flow.cap is None or flow.in_flight < flow.cap:
                    state.ring.enter(flow)
            elif flow.in_flight == 0:
                state.rest(flow)
        elif state.ring.keeps and flow.in_flight == 0:
            state.ring.hush(flow)
        if batch is None:
            state.slots_held -= 1
            self._slots.release(engine)
        else:
            batch.left -= 1
            if batch.left == 0:
                batch.holder.slots_held -= 1
                self._slots.release(engine)
        return Ended(ticket, outcome, final, engine.name)

    # Settings

    def set_tenant(self, tenant: Tenant) -> None:
        """Set a tenant's weight and cap; both hold from the next decision on."""
        self._tenants[tenant.name] = tenant
        if self._rules.shared_queue:
            return
        if self._forecast is not None:
            self._forecast.weighed(tenant)
        for state in self._tiers.states:
            flow = state.flows.get(tenant.name)
            if flow is None:
                continue
            if flow.weight != tenant.weight:
                state.ring.weigh(flow, tenant.weight)
            flow.cap = tenant.cap
            state.place(flow)

    def set_quantum(self, quantum: int) -> None:
        """Set the quantum: every tenant is re-keyed. O(n log n).

        Raises:
            ValueError: ``quantum`` is under 1.
        """
        if quantum < 1:
            raise ValueError(f"quantum must be at least 1, got {quantum}")
        self._min_charge = replace(self._rules, quantum=quantum).min_charge_or_default
        for state in self._tiers.states:
            state.ring.resize(quantum, list(state.flows.values()))

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine or resize it; 0 slots: nothing more is started there."""
        self._slots.set_engine(name, slots)
        self._slots.kept = self._rules.kept_slots(self._slots.total)

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine; what runs there goes on."""
        self._slots.remove_engine(name)
        self._slots.kept = self._rules.kept_slots(self._slots.total)

    # Views

    @property
    def queued(self) -> int:
        """Tickets that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Tickets in flight."""
        return len(self._running)

    def is_waiting(self, ticket_id: str) -> bool:
        """Tell whether a ticket is queued."""
        return ticket_id in self._waiting

    def peek(self) -> Ticket | None:
        """Return the ticket that one slot more would be given to now; None: there is none.

        For a driver that must know whether it has room for just this one. It
        may be another one after any other call.
        """
        slots = self._slots
        total = slots.total + 1
        flow = self._tiers.peek(total, quiet=slots.free < self._rules.kept_slots(total))
        entry = None if flow is None else flow.queue.head()
        return None if entry is None else entry[3]

    def predict(
        self,
        ticket: Ticket,
        now_us: int,
        *,
        target_us: int | None = None,
        ahead: int = 0,
        counts: bool = True,
    ) -> Prediction:
        """Predict how long a ticket would wait if it were submitted next. O(1).

        Call it once for each ticket that arrives, whether or not it's submitted
        then: it counts as offered. Whoever submits it next lets the pool learn from it.

        Args:
            ticket: The ticket; not queued yet.
            now_us: The time.
            target_us: Longest wait that is in time; None: until its deadline.
            ahead: Cost of tickets that are submitted with it and go before it.
            counts: False: only look.

        Raises:
            ValueError: The pool's rules have no throttle, or its tier is unknown.
        """
        state = self._state_by_tier.get(ticket.tier)
        if self._forecast is None or state is None:
            raise ValueError(f"no throttle in the pool's rules, or no tier {ticket.tier!r}")
        name = EVERYBODY if self._rules.shared_queue else ticket.tenant
        tenant = self._tenants.get(name) or Tenant(name)
        flow = state.flows.get(name)
        if not counts:
            return self._forecast.foresee(state, flow, tenant, ticket, ahead)
        return self._forecast.predict(state, flow, tenant, ticket, now_us, target_us, ahead)

    def snapshot(self) -> PoolSnapshot:
        """Return the state for people and metrics. O(tenants)."""
        return snapshot(self._tiers, self._slots, len(self._waiting), len(self._running))

    def explain(self, ticket_id: str) -> Explanation | None:
        """Say what stands in front of a waiting ticket and why; None where it isn't waiting.

        O(n) in the pool's waiting tickets: for people, not for the request path.
        """
        entry = self._waiting.get(ticket_id)
        if entry is None:
            return None
        return explain(self._tiers, self._state_by_tier[entry[3].tier], entry, self._slots)

    # Selection

    def _grant(self, slots: Slots) -> Granted | None:
        """Fill one free slot; None where nothing is eligible."""
        state = self._tiers.choose(slots.total)
        if state is None:
            return None
        turns = state.ring.turns
        flow = turns[0] if turns else state.ring.begin()
        assert flow is not None, "a tier with tenants in its ring has one to begin with"
        state.slots_held += 1
        engine = slots.take(flow.affinity if self._sticky else 0)
        if self._batch is None:
            return Granted(engine.name, (self._dispatch(engine, None, state, flow, None),))
        dispatch = partial(self._dispatch, engine, SentBatch(state))
        ticket = dispatch(state, flow, None)
        tickets = fill(self._batch, self._tiers, ticket, self._passed, dispatch)
        return Granted(engine.name, tickets)

    def _grant_keeping(self, slots: Slots) -> Granted | None:
        """As :meth:`_grant`; what slots are left go to tenants that hold none, or stay free."""
        if not slots.full:
            return self._grant(slots)
        state = self._tiers.choose_quiet(slots.total)
        if state is None:
            return None
        # At most as many as there are slots in use.
        flows = dict.fromkeys(r[1] for r in self._running.values() if r[2] is state)
        flow = state.ring.begin_quiet(flows)
        state.slots_held += 1
        engine = slots.take(flow.affinity if self._sticky else 0)
        return Granted(engine.name, (self._dispatch(engine, None, state, flow, None),))

    def _dispatch(
        self,
        engine: EngineSlots,
        batch: SentBatch | None,
        state: TierState,
        flow: Flow,
        group: str | None,
    ) -> Ticket:
        """Take a flow's first ticket, or its first of a group, and charge it."""
        queue = flow.queue
        entry = queue.pop(group)
        ticket = entry[3]
        del self._waiting[ticket.id]
        if entry[1] != NEVER_US:
            self._deadlines.forget()
        if self._passed:
            self._passed.discard(entry[2])
        flow.in_flight += 1
        cap = flow.cap
        goes_on = queue.count > 0 and (cap is None or flow.in_flight < cap)
        state.ring.charge(flow, ticket.cost, goes_on=goes_on)
        if self._floored:
            self._tiers.charged(state, ticket.cost)
        if self._forecast is not None:
            self._forecast.started(state.rank, flow, ticket)
        if batch is not None:
            batch.left += 1
        self._running[ticket.id] = (ticket, flow, state, engine, batch)
        return ticket

    # Housekeeping

    def _come_in(self, state: TierState, flow: Flow | None, tenant: str) -> Flow:
        """Return the flow of a tenant that stands outside the ring; make it where there is none."""
        if flow is not None:
            if state.ring.is_fresh(flow):
                # It could have been forgotten: it counts as if it had been.
                flow.largest = 0
            return flow
        if self._rules.shared_queue:
            flow = Flow(EVERYBODY, 1, None, state.ring.round)
        else:
            known = self._tenants.get(tenant)
            weight, cap = (known.weight, known.cap) if known else (1, None)
            flow = Flow(tenant, weight, cap, state.ring.round)
        state.flows[flow.tenant] = flow
        return flow

    def _watched(self, ticket: Ticket, arrival: int) -> Entry:
        """Return a ticket's entry, its deadline watched."""
        if ticket.deadline_us is None or ticket.deadline_us >= NEVER_US:
            return entry_of(ticket._replace(deadline_us=None), arrival)
        entry = entry_of(ticket, arrival)
        self._deadlines.add(entry)
        return entry

    def _flow_of(self, ticket: Ticket) -> Flow:
        name = EVERYBODY if self._rules.shared_queue else ticket.tenant
        return self._state_by_tier[ticket.tier].flows[name]

    def _withdraw(self, entry: Entry, *, expired: bool) -> None:
        """Take an entry out of its queue, and its tenant out of the ring if that was all."""
        ticket = entry[3]
        flow = self._flow_of(ticket)
        flow.queue.remove(entry)
        self._passed.discard(entry[2])
        state = self._state_by_tier[ticket.tier]
        if self._forecast is not None:
            self._forecast.withdrawn(state.rank, flow, ticket, expired=expired)
        if flow.queue.count == 0:
            state.place(flow)
            if flow.in_flight == 0:
                state.rest(flow)
