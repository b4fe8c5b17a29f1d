# SPDX-License-Identifier: Apache-2.0
"""Service levels: which tier goes next. Selector 1.

Strict: the best-ranked tier with an eligible tenant. A *floor* guarantees a
tier a share of the charged cost while better ones have work: its credit grows
by the floor's share of each charge that is made while it and a better tier
compete, and falls by each charge of its own; above zero, it goes first. A
*slot share* keeps a tier from holding more than a part of the slots, since a
running generation isn't taken back.

Bound: over any time in which a floor tier stays backlogged beside better ones,
its charged cost is at least its share less one ticket.
"""

from collections.abc import Sequence

from taketurns.core.model import Tier
from taketurns.core.ring import Flow, Ring


class TierState:
    """One tier of a pool.

    Attributes:
        tier: What the operator set.
        rank: 0 for the best.
        ring: Its round robin.
        flows: Its tenants by name; those that equal a fresh one may be absent.
        slots_held: Slots whose first ticket was of this tier.
        floor_credit: In hundredths of a cost unit; above zero: goes first.
    """

    __slots__ = ("floor_credit", "flows", "rank", "ring", "slots_held", "tier")

    def __init__(self, tier: Tier, rank: int, ring: Ring) -> None:
        self.tier = tier
        self.rank = rank
        self.ring = ring
        self.flows: dict[str, Flow] = {}
        self.slots_held = 0
        self.floor_credit = 0

    def may_start(self, slots: int) -> bool:
        """Tell whether it has work and holds less than its share of the pool's slots."""
        share = self.tier.slot_share_percent
        return self.ring.count > 0 and (
            share == 100 or self.slots_held < max(1, share * slots // 100)
        )


class Tiers:
    """The tiers of a pool, best first.

    Args:
        states: One for each tier, best first.

    Raises:
        ValueError: The floors together are over 50 per cent.
    """

    __slots__ = ("_floored", "states")

    def __init__(self, states: Sequence[TierState]) -> None:
        self.states = tuple(states)
        self._floored = any(state.tier.floor_percent for state in states)
        total = sum(state.tier.floor_percent for state in states)
        if total > 50:
            raise ValueError(f"the floors of a pool's tiers are at most 50 % in all, got {total} %")

    def eligible(self, slots: int | None) -> list[TierState]:
        """Return the tiers that compete for the next ticket, best first.

        Args:
            slots: The pool's slots, where the ticket starts on a slot of its
                own; None where it joins a batch that holds one already.
        """
        if slots is None:
            found = [state for state in self.states if state.ring.count]
        else:
            found = [state for state in self.states if state.may_start(slots)]
        if self._floored:
            for state in self.states:
                if state.floor_credit > 0 and state not in found:
                    state.floor_credit = 0
        return found

    def first(self, eligible: Sequence[TierState]) -> TierState:
        """Return which of the eligible tiers goes first.

        Args:
            eligible: Tiers that compete, best first; not empty.
        """
        if self._floored:
            for state in eligible:
                if state.floor_credit > 0:
                    return state
        return eligible[0]

    def charged(self, state: TierState, cost: int, eligible: Sequence[TierState]) -> None:
        """Account a charge to the floors.

        Args:
            state: The tier that was charged.
            cost: The charge.
            eligible: The tiers that competed for it, best first.
        """
        if not self._floored:
            return
        for other in eligible[1:]:
            percent = other.tier.floor_percent
            if percent:
                other.floor_credit += cost * percent
                if other is state:
                    other.floor_credit -= 100 * cost
