# SPDX-License-Identifier: Apache-2.0
"""Follows what happens in a pool, and predicts from it when a ticket would start.

For the pool it measures how much a slot does in its time: while tickets wait,
or at any time as long as too few did. For each tier it learns how far
predictions can be trusted: see :class:`Forecast`.

Every event and every prediction is O(1) in tenants and tickets.
"""

from collections.abc import Sequence

from taketurns.core.decision import Expired, Granted
from taketurns.core.demand import Demand, Own
from taketurns.core.flow import Flow
from taketurns.core.model import Tenant, Ticket
from taketurns.core.regime import Correction, TierForecast, Tracked, rate_of, regime
from taketurns.core.slots import Slots
from taketurns.core.throttle import (
    AT_ONCE,
    ONE,
    RATE_ONE,
    UNKNOWN,
    Pace,
    Prediction,
    solve,
    within_cap,
)
from taketurns.core.tiers import TierState
from taketurns.core.turn import level_before, would_be_new

GRANTS_MAX = 1_024
"""After so many grants what was measured before counts half."""

GRANTS_MIN = 16
"""Fewer grants tell no rate."""

INFLOW_US = 8_000_000
"""After so long what was offered before counts half."""

TRACKED_MAX = 1_024
"""Most waiting tickets from which is learned whether they start in time."""

_new = tuple.__new__
"""Makes a named tuple in half the time that calling its class takes."""


_Fresh = tuple[Ticket, Demand, Own, Tracked | None]
"""A ticket that was queued just now: most start at once, and needn't be counted in and out."""


class Forecast:
    """What a pool's scheduler tells of its events, and the predictions made of it.

    Args:
        states: The pool's tiers, best first.
        slots: Its slots; only read.
    """

    def __init__(self, states: Sequence[TierState], slots: Slots) -> None:
        self._tiers = [TierForecast(state) for state in states]
        self._slots = slots
        self._now_us = 0
        self._held = 0
        self._backlogged = False
        self._busy = Pace(GRANTS_MAX)
        self._any = Pace(GRANTS_MAX)
        # Since when what the demands' `offered` say was offered, and when half of it is forgotten.
        self._since_us = 0
        self._fade_us = INFLOW_US
        # The ticket predicted last, and what goes before it of the same tenant: they
        # are counted as offered, and may be queued next.
        self._predicted = ""
        self._predicted_tracked: Tracked | None = None
        self._announced = ""
        self._announced_left = 0
        self._tracked: dict[str, Tracked] = {}
        self._fresh: _Fresh | None = None

    # Events

    def queued(self, rank: int, flow: Flow, ticket: Ticket) -> None:
        """A ticket was queued."""
        if self._fresh is not None:
            self._count_fresh()
        demand = self._tiers[rank].demand
        tenant, tracked, offered = flow.tenant, self._predicted_tracked, 0
        if self._predicted != ticket.id:
            cost, tracked = ticket.cost, None
            if self._announced == tenant and self._announced_left >= cost:
                self._announced_left -= cost
            else:
                offered = cost
        own = demand.own.get(tenant)
        if own is None or offered:
            own = demand.offer(tenant, flow.weight, offered, self._now_us)
        self._fresh = (ticket, demand, own, tracked)

    def started(self, rank: int, flow: Flow, ticket: Ticket) -> None:
        """A waiting ticket was granted a slot."""
        if self._backlogged:
            self._busy.served(ticket.cost, 1, 0)
        fresh = self._fresh
        if fresh is not None:
            if fresh[0].id == ticket.id:
                self._fresh = None
                tracked = fresh[3]
                if tracked is not None:
                    # The regime is the one in which it was predicted: nothing came between.
                    tracked.correction.learn(late=self._now_us > tracked.late_us)
                return
            self._count_fresh()
        demand = self._tiers[rank].demand
        demand.queue(demand.own[flow.tenant], ticket.priority, -ticket.cost)
        tracked = self._tracked.pop(ticket.id, None)
        if tracked is not None:
            self._learn(tracked, late=self._now_us > tracked.late_us)

    def withdrawn(self, rank: int, flow: Flow, ticket: Ticket, *, expired: bool) -> None:
        """A waiting ticket left the queue without a slot."""
        self._count_fresh()
        demand = self._tiers[rank].demand
        demand.queue(demand.own[flow.tenant], ticket.priority, -ticket.cost)
        tracked = self._tracked.pop(ticket.id, None)
        if tracked is not None and expired:
            self._learn(tracked, late=True)

    def moved(self, rank: int, flow: Flow, ticket: Ticket, priority: int) -> None:
        """A waiting ticket got another priority."""
        self._count_fresh()
        demand = self._tiers[rank].demand
        own = demand.own[flow.tenant]
        demand.queue(own, priority, ticket.cost)
        demand.queue(own, ticket.priority, -ticket.cost)
        self._tracked.pop(ticket.id, None)

    def weighed(self, tenant: Tenant) -> None:
        """A tenant got another weight, or the one that it had."""
        self._count_fresh()
        for tier in self._tiers:
            tier.demand.weigh(tenant.name, tenant.weight)

    def finished(self, ticket: Ticket, *, freed: bool, executed: bool) -> None:
        """A running ticket ended; ``freed`` where its slot is free by that."""
        if executed:
            self._any.served(ticket.cost, 1, int(freed))
        else:
            self._busy.take_back(ticket.cost, int(freed))

    def passed(self, now_us: int) -> None:
        """It's ``now_us``; what ended since the last time ended at this moment."""
        us = now_us - self._now_us
        if us <= 0:
            return
        if now_us >= self._fade_us:
            self._fade(now_us)
        self._now_us = now_us
        if self._held:
            self._any.slot_us += us * self._held
            if self._backlogged:
                self._busy.slot_us += us * self._held

    def _fade(self, now_us: int) -> None:
        """Forget half of what was offered; a long time in which nothing happened counts once."""
        offered_us = self._now_us - self._since_us + min(now_us - self._now_us, INFLOW_US)
        self._since_us = now_us - (offered_us >> 1)
        self._fade_us = self._since_us + INFLOW_US
        for tier in self._tiers:
            tier.demand.offered >>= 1

    def advanced(self, decisions: Sequence[Expired | Granted], queued: int) -> None:
        """All that could start has started by these decisions; so many tickets wait still."""
        if self._fresh is not None:
            self._count_fresh()
        slots = self._slots
        if self._backlogged:
            for one in decisions:
                if isinstance(one, Granted):
                    self._busy.served(0, 0, 1)
        self._held = held = slots.held
        self._backlogged = queued > 0 and held > 0 and slots.full

    def _count_fresh(self) -> None:
        """Count the ticket in that was queued last, since it didn't start at once."""
        if self._fresh is None:
            return
        ticket, demand, own, tracked = self._fresh
        self._fresh = None
        demand.queue(own, ticket.priority, ticket.cost)
        if tracked is not None and len(self._tracked) < TRACKED_MAX:
            self._tracked[ticket.id] = tracked

    # Prediction

    def predict(
        self,
        state: TierState,
        flow: Flow | None,
        tenant: Tenant,
        ticket: Ticket,
        now_us: int,
        target_us: int | None,
        ahead: int,
    ) -> Prediction:
        """Predict the wait of a ticket that may be queued next; see :meth:`Scheduler.predict`."""
        if self._fresh is not None:
            self._count_fresh()
        tier = self._tiers[state.rank]
        demand = tier.demand
        own = demand.offer(tenant.name, tenant.weight, ticket.cost + ahead, now_us)
        if target_us is None and ticket.deadline_us is not None:
            target_us = ticket.deadline_us - now_us
        if target_us is not None:
            demand.aim(target_us)
        self._predicted, self._predicted_tracked = ticket.id, None
        self._announced, self._announced_left = tenant.name, ahead
        if not ahead and state.starts_at_once(flow, self._slots):
            # It will be in time, and that is all that there is to learn of it.
            if target_us is not None and tier.calm.factor > Correction.LEAST:
                tier.calm.learn(late=False)
            return AT_ONCE
        pace = self._pace()
        correction = self._correction(state.rank, pace)
        factor = correction.factor
        prediction = self._foreseen(state, flow, tenant, own, ticket.priority, ahead, pace, factor)
        wait_us = prediction.wait_us
        # Whoever queues it though it's late, in a trial without refusals, teaches nothing by it.
        if target_us is not None and (not wait_us or wait_us * factor <= target_us * ONE):
            self._predicted_tracked = _new(Tracked, (now_us + target_us, state.rank, correction))
        return prediction

    def foresee(
        self, state: TierState, flow: Flow | None, tenant: Tenant, ticket: Ticket, ahead: int
    ) -> Prediction:
        """Predict as :meth:`predict` does, and count nothing."""
        self._count_fresh()
        if not ahead and state.starts_at_once(flow, self._slots):
            return AT_ONCE
        own = self._tiers[state.rank].demand.own.get(tenant.name) or Own(tenant.weight, 0)
        pace = self._pace()
        factor = self._correction(state.rank, pace).factor
        return self._foreseen(state, flow, tenant, own, ticket.priority, ahead, pace, factor)

    def _foreseen(
        self,
        state: TierState,
        flow: Flow | None,
        tenant: Tenant,
        own: Own,
        priority: int,
        ahead: int,
        pace: Pace | None,
        factor: int,
    ) -> Prediction:
        if pace is None:
            return UNKNOWN
        before = ahead + own.before(priority)
        prediction = self._reckon(state, flow, own, before, pace, factor)
        capped = flow is not None and flow.capped
        if tenant.cap is not None and (capped or before):
            prediction = within_cap(prediction, tenant.cap, pace)
        return prediction

    def _reckon(
        self,
        state: TierState,
        flow: Flow | None,
        own: Own,
        before: int,
        pace: Pace,
        factor: int,
    ) -> Prediction:
        """Predict the wait behind ``before`` of the tenant's own; no cap is minded."""
        demand = self._tiers[state.rank].demand
        total = self._slots.total
        if not self._slots.full and state.may_start(total):
            # Nobody else has anything that could start.
            rate = self._rate(state.rank, pace)
            alone_us = before * RATE_ONE // rate
            return Prediction(alone_us, 0, alone_us, 0, before, 0, 0, rate, factor)
        demand.recount()
        level = level_before(state.ring, flow, own.weight, before)
        others = demand.backlogs.served(level, own.cost, own.weight)
        soon = demand.soon.served(level, own.soon, own.weight)
        mean_cost = max(state.ring.quantum, pace.cost // pace.tickets)
        newcomer = min((2 * state.ring.newcomers + 1) * mean_cost, demand.backlogs.cost)
        if before == 0 and would_be_new(state.ring, flow):
            others, soon = min(others, newcomer), min(soon, newcomer)
        better = 0
        for tier in self._tiers[: state.rank]:
            better += tier.demand.backlogs.cost
        rate = self._rate(state.rank, pace)
        wait_us, others = solve(better + before, others, soon, rate, demand.horizon_us)
        slot_us = pace.slot_us // (pace.grants * total)
        newcomer_us = min(wait_us, (better + newcomer) * RATE_ONE // rate) + slot_us
        alone_us = (better + before) * RATE_ONE // rate + slot_us
        return Prediction(
            wait_us + slot_us, newcomer_us, alone_us, better, before, others, slot_us, rate, factor
        )

    def _pace(self) -> Pace | None:
        """Return the better measurement that there is; None: nothing is known yet."""
        if self._slots.total == 0:
            return None
        if self._busy.known(GRANTS_MIN):
            return self._busy
        return self._any if self._any.known(GRANTS_MIN) else None

    def _rate(self, rank: int, pace: Pace) -> int:
        """Return the pool's rate for a tier."""
        tiers = self._tiers
        offered_us = self._now_us - self._since_us
        return rate_of(tiers[rank], tiers[:rank], self._slots.total, pace, offered_us)

    def _correction(self, rank: int, pace: Pace | None) -> Correction:
        """Return the correction in force."""
        tier = self._tiers[rank]
        if pace is None:
            return tier.calm
        served = self._slots.total * pace.cost
        offered_us = self._now_us - self._since_us
        return regime(tier, self._tiers[: rank + 1], served, pace.slot_us, offered_us)

    def _learn(self, tracked: Tracked, *, late: bool) -> None:
        """Let a correction learn from a ticket, unless the regime has changed since.

        Who was admitted in calm and came under an overload says nothing of either.
        """
        if tracked.correction is self._correction(tracked.rank, self._pace()):
            tracked.correction.learn(late=late)
