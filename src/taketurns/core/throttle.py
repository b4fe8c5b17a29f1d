# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a predicted wait: what is in front, how fast it goes, what was learned.

A tenant whose turn comes once it has got ``x`` cost units per weight lets the
others go first by ``min(backlog, x * weight)`` each. Their sum is kept in
buckets of backlog per weight, so that a prediction costs the same with ten
tenants and with ten thousand.

Bound: the sum is never above the exact one, and below it by at most an eighth
of what the tenants of one bucket have: an error on the side of admitting.
All of it is monotone: with more in front nothing is predicted to start sooner.
"""

from enum import StrEnum
from typing import NamedTuple

_STEPS = 4
"""Buckets per power of two."""

_EXACT = 2 * _STEPS
"""Below so many units, each has a bucket of its own."""

_BUCKETS = 54 * _STEPS

RATE_ONE = 1 << 32
"""A rate of one cost unit a microsecond."""

ONE = 1 << 20
"""A correction that corrects nothing."""


def _index(units: int) -> int:
    """Return the bucket of a backlog per weight, in units."""
    if units < _EXACT:
        return units
    shift = units.bit_length() - 3
    return (shift << 2) + (units >> shift)


def _edge(index: int) -> int:
    """Return the least backlog per weight of a bucket, in units."""
    if index < _EXACT:
        return index
    return (_STEPS + (index & 3)) << ((index >> 2) - 1)


class Backlogs:
    """The backlogs of a tier's tenants, by backlog per weight.

    Args:
        unit: Width of the narrowest buckets, in cost units per weight: levels
            below it aren't told apart.

    Attributes:
        cost: Sum of all of them.
    """

    __slots__ = ("_costs", "_unit", "_weight", "_weights", "cost")

    def __init__(self, unit: int) -> None:
        self._unit = unit
        self._costs = [0] * _BUCKETS
        self._weights = [0] * _BUCKETS
        self._weight = 0
        self.cost = 0

    def change(self, before: int, after: int, weight: int) -> None:
        """Count one tenant's backlog as ``after`` where it was counted as ``before``. O(1).

        A tenant with nothing has to be counted neither in nor out.
        """
        self.cost += after - before
        width = self._unit * weight
        old, new = before // width, after // width
        costs = self._costs
        # Most backlogs are a few units only: a bucket for each.
        if old >= _EXACT:
            old = _index(old)
        if new >= _EXACT:
            new = _index(new)
        if old == new and before and after:
            costs[old] += after - before
            return
        weights = self._weights
        if before:
            costs[old] -= before
            weights[old] -= weight
            self._weight -= weight
        if after:
            costs[new] += after
            weights[new] += weight
            self._weight += weight

    def served(self, level: int, cost: int, weight: int) -> int:
        """Return about the sum of ``min(backlog, level * weight)`` over the other tenants.

        Exact at the edges of buckets, in a straight line between them. O(1).

        Args:
            level: Cost units per weight, at least 0.
            cost: The backlog of the tenant that is left out; 0 where it has none.
            weight: Its weight.
        """
        unit = self._unit
        index = _index(level // unit)
        low, high = _edge(index) * unit, _edge(index + 1) * unit
        below = sum(self._costs[:index])
        above = self._weight - sum(self._weights[:index])
        at_low = below + low * above
        at_high = below + self._costs[index] + high * (above - self._weights[index])
        if cost:
            at_low -= min(cost, low * weight)
            at_high -= min(cost, high * weight)
        return at_low + (at_high - at_low) * (level - low) // (high - low)


class Pace:
    """How much one slot does in its time; old measurements are forgotten by and by.

    Args:
        grants_max: After so many grants what was measured before counts half.

    Attributes:
        cost: Cost units that were served,
        tickets: in so many tickets,
        grants: in so many grants,
        slot_us: in so much time of one slot.
    """

    __slots__ = ("_grants_max", "cost", "grants", "slot_us", "tickets")

    def __init__(self, grants_max: int) -> None:
        self._grants_max = grants_max
        self.cost = 0
        self.tickets = 0
        self.grants = 0
        self.slot_us = 0

    def served(self, cost: int, tickets: int, grants: int) -> None:
        """Count what was served."""
        self.cost += cost
        self.tickets += tickets
        self.grants += grants
        if self.grants >= self._grants_max:
            self.cost >>= 1
            self.tickets >>= 1
            self.grants >>= 1
            self.slot_us >>= 1

    def take_back(self, cost: int, grants: int) -> None:
        """Count a ticket out that took no time after all."""
        self.cost = max(0, self.cost - cost)
        self.tickets = max(0, self.tickets - 1)
        self.grants = max(0, self.grants - grants)

    def known(self, grants_min: int) -> bool:
        """Tell whether enough was measured."""
        return self.grants >= grants_min and self.cost > 0 and self.tickets > 0 and self.slot_us > 0


class Prediction(NamedTuple):
    """The wait that a ticket would see, and how it comes about.

    ``wait_us`` is about ``(better_tiers + own + others) / cost_per_s + slot_us``,
    except where the tenant's cap on tickets in flight makes it longer.

    Attributes:
        wait_us: Until it starts; 0: at once; None: nothing is known of the pool yet.
        newcomer_us: What a tenant with nothing queued and no debt would wait.
        alone_us: What it would wait if the tier had no other tenants: less is hardly possible.
        better_tiers: Cost that better tiers have in front.
        own: Cost of the tenant's own tickets in front.
        others: Cost that the tier's other tenants get until then: of what they
            have queued, and of what they are expected to send.
        slot_us: Mean time until a slot comes free.
        rate: What the pool serves of the tier, in units of 1 / :data:`RATE_ONE`
            cost units a microsecond.
        factor: The correction, in units of 1 / :data:`ONE`.
    """

    wait_us: int | None
    newcomer_us: int = 0
    alone_us: int = 0
    better_tiers: int = 0
    own: int = 0
    others: int = 0
    slot_us: int = 0
    rate: int = 0
    factor: int = ONE

    @property
    def cost_per_s(self) -> int:
        """The rate, in cost units a second."""
        return self.rate * 1_000_000 // RATE_ONE


AT_ONCE = Prediction(0)
"""It starts as soon as it's queued."""

UNKNOWN = Prediction(None)
"""Nothing is known of the pool yet."""


def solve(work: int, others: int, soon: int, rate: int, horizon_us: int) -> tuple[int, int]:
    """Return how long it takes, and what others get until then.

    What others are expected to send comes evenly over the horizon, so that in a
    shorter wait only its part goes before; after the horizon nothing more is expected.
    """
    whole_us = (work + soon) * RATE_ONE // rate
    if whole_us >= horizon_us:
        return whole_us, soon
    more = max(0, soon - others) * RATE_ONE
    wait_us = (work + others) * RATE_ONE * horizon_us // (rate * horizon_us - more)
    return wait_us, others + more * wait_us // (horizon_us * RATE_ONE)


def within_cap(prediction: Prediction, cap: int, pace: Pace) -> Prediction:
    """Return a prediction that a tenant's cap on tickets in flight may make longer."""
    in_cap_us = prediction.own * pace.slot_us // pace.cost + pace.slot_us // pace.grants
    return prediction._replace(
        wait_us=max(prediction.wait_us or 0, in_cap_us // cap),
        alone_us=max(prediction.alone_us, in_cap_us // cap),
    )


class Why(StrEnum):
    """Why a ticket can't start in time. A metric label."""

    SHARE = "share"
    CAPACITY = "capacity"


class Late(NamedTuple):
    """A ticket would start too late.

    Attributes:
        reason: SHARE: a tenant with nothing queued would start in time, so what
            this one has queued, owes or has in flight is the reason. CAPACITY: nobody would.
        wait_us: The predicted wait.
        target_us: The longest wait that is in time, at least 0.
        allowed_us: The longest predicted wait that is admitted: the target, and
            what experience adds to it or takes from it.
        retry_after_us: When the same ticket would be admitted, if nothing
            more is queued meanwhile; at least 1.
    """

    reason: Why
    wait_us: int
    target_us: int
    allowed_us: int
    retry_after_us: int


def judge(prediction: Prediction, target_us: int) -> Late | None:
    """Say whether a ticket would start too late; None: in time, or nothing is known.

    The correction may err on the side of admitting in what other tenants will do.
    What the ticket waits in any case gets a quarter of the target for errors of the rate.

    Args:
        prediction: For the ticket.
        target_us: Longest wait; 0 and less: only a ticket that starts at once is in time.
    """
    wait_us = prediction.wait_us
    if not wait_us:
        return None
    target_us = max(0, target_us)
    allowed_us = target_us * ONE // prediction.factor
    over_us = max(wait_us - allowed_us, prediction.alone_us - target_us * 5 // 4)
    if over_us <= 0:
        return None
    reason = Why.SHARE if prediction.newcomer_us <= target_us else Why.CAPACITY
    # The wait shrinks by a microsecond in each, but in steps of whole tickets: the
    # step that is needed may come as late as the next free slot.
    return Late(reason, wait_us, target_us, allowed_us, over_us + prediction.slot_us)
