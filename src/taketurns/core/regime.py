# SPDX-License-Identifier: Apache-2.0
"""What is foreseen of one tier: the pool's rate for it, and the correction that is in force."""

from collections.abc import Sequence
from typing import NamedTuple

from taketurns.core.demand import Demand
from taketurns.core.throttle import ONE, RATE_ONE, Pace
from taketurns.core.tiers import TierState

OVERLOAD_PERCENT = 150
"""Where more is offered than so much of what the pool can serve, many must be refused.

Below, what is late comes in spells that pass, and refusing helps nobody; the
correction errs on the side of admitting, and one ticket in 13 may be late.
Above, one in 39. Each of the two regimes has learned its own.
"""

QUEUED_PERCENT = 100
"""The same holds where so much of what it serves in the time of a target waits already."""


SHARE_LEAST_PERCENT = 5
"""Of the pool's rate, what a tier is taken to get at least when better ones are busy."""


class Correction:
    """By what predictions are multiplied before they are held against a target.

    Each admitted ticket that is late raises it, each that is in time lowers it a
    little, so that it settles where the share of late ones is the one allowed.

    Args:
        factor: To begin with, in units of 1 / :data:`ONE`; it stays from
            :attr:`LEAST` to :attr:`MOST`.
        up: What a late ticket adds, in 1 / 65536 of the factor.
        down: What one in time takes. The share allowed is about ``down / (up + down)``.
    """

    LEAST = ONE // 4
    MOST = ONE * 5 // 2

    __slots__ = ("_down", "_up", "factor")

    def __init__(self, factor: int, up: int, down: int) -> None:
        self.factor = factor
        self._up = up
        self._down = down

    def learn(self, *, late: bool) -> None:
        """Count an admitted ticket that was late or in time."""
        step = self._up if late else -self._down
        factor = self.factor + self.factor * step // 65_536
        self.factor = min(max(factor, self.LEAST), self.MOST)


class Tracked(NamedTuple):
    """A ticket that was admitted: when it would be late, and which correction admitted it."""

    late_us: int
    rank: int
    correction: Correction


class TierForecast:
    """One tier: the scheduler's own state of it, its demand, the corrections of two regimes.

    Args:
        state: The scheduler's own; only read.
    """

    __slots__ = ("calm", "demand", "overload", "state")

    def __init__(self, state: TierState) -> None:
        self.state = state
        self.demand = Demand(state.ring.quantum)
        self.calm = Correction(Correction.LEAST, up=1_536, down=128)
        self.overload = Correction(ONE * 3 // 2, up=3_072, down=80)


def regime(
    tier: TierForecast,
    tiers: Sequence[TierForecast],
    served: int,
    slot_us: int,
    offered_us: int,
) -> Correction:
    """Return a tier's correction in force: that of overload where far too much is offered.

    Args:
        tier: The tier.
        tiers: It and all better ones.
        served: Cost that the pool's slots serve
        slot_us: in so much time of each.
        offered_us: The time in which was offered what the tiers' demands say.
    """
    offered = queued = 0
    for one in tiers:
        demand = one.demand
        offered += demand.offered
        queued += demand.backlogs.cost
    # offered / offered_us > 1.5 * served / slot_us, without division.
    if offered * 100 * slot_us > served * offered_us * OVERLOAD_PERCENT:
        return tier.overload
    over = queued * 100 * slot_us > served * tier.demand.horizon_us * QUEUED_PERCENT
    return tier.overload if over else tier.calm


def rate_of(
    forecast: TierForecast,
    better: Sequence[TierForecast],
    total: int,
    pace: Pace,
    offered_us: int,
) -> int:
    """Return a pool's rate for a tier: its slots, less what better tiers take of them.

    Args:
        forecast: The tier.
        better: All better ones.
        total: Slots of the pool.
        pace: What one of them does.
        offered_us: The time in which was offered what the tiers' demands say.
    """
    tier = forecast.state.tier
    per_slot = pace.cost * RATE_ONE // pace.slot_us
    whole = per_slot * total
    rate = whole
    if tier.slot_share_percent < 100:
        rate = per_slot * max(1, tier.slot_share_percent * total // 100)
    if better:
        offered = sum(one.demand.offered for one in better)
        left = whole - offered * RATE_ONE // max(1, offered_us)
        least = whole * max(SHARE_LEAST_PERCENT, tier.floor_percent) // 100
        rate = min(rate, max(left, least))
    return max(rate, 1)
