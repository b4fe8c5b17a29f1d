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

from collections import OrderedDict
from collections.abc import Collection, Sequence

from taketurns.core.flow import OUT, Flow
from taketurns.core.model import Tier
from taketurns.core.ring import Ring
from taketurns.core.slots import Slots


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

    __slots__ = ("_idle", "floor_credit", "flows", "rank", "ring", "slots_held", "tier")

    def __init__(self, tier: Tier, rank: int, ring: Ring) -> None:
        self.tier = tier
        self.rank = rank
        self.ring = ring
        self.flows: dict[str, Flow] = {}
        self.slots_held = 0
        self.floor_credit = 0
        self._idle: OrderedDict[str, Flow] = OrderedDict()

    def may_start(self, slots: int) -> bool:
        """Tell whether it holds less than its share of the pool's slots."""
        share = self.tier.slot_share_percent
        return share == 100 or self.slots_held < max(1, share * slots // 100)

    def starts_at_once(self, flow: Flow | None, slots: Slots) -> bool:
        """Tell whether a ticket would start as soon as it's queued; None: a tenant's first."""
        if not slots.available or not self.may_start(slots.total):
            return False
        if flow is None:
            return True
        return not flow.capped and not (flow.in_flight and slots.full)

    def place(self, flow: Flow) -> None:
        """Let a flow stand in the ring if it has tickets and is below its cap, else not."""
        stands = flow.queue.count > 0 and not flow.capped
        if stands and flow.place == OUT:
            self.ring.enter(flow)
        elif not stands and flow.place != OUT:
            self.ring.leave(flow)

    def rest(self, flow: Flow) -> None:
        """Keep an idle flow until it equals a fresh one, and forget two that do. O(1)."""
        self._idle[flow.tenant] = flow
        for _ in range(min(2, len(self._idle))):
            tenant, idle = self._idle.popitem(last=False)
            if self.ring.is_fresh(idle):
                del self.flows[tenant]
            elif idle.place == OUT and idle.queue.count == 0 and idle.in_flight == 0:
                self._idle[tenant] = idle


class Tiers:
    """The tiers of a pool, best first.

    Args:
        states: One for each tier, best first.

    Raises:
        ValueError: The floors together are over 50 per cent.
    """

    __slots__ = ("_competing", "_only", "_plain", "states")

    def __init__(self, states: Sequence[TierState]) -> None:
        self.states = tuple(states)
        self._competing: list[TierState] = []
        self._only = states[0] if len(states) == 1 else None
        self._plain = all(
            state.tier.floor_percent == 0 and state.tier.slot_share_percent == 100
            for state in states
        )
        total = sum(state.tier.floor_percent for state in states)
        if total > 50:
            raise ValueError(f"the floors of a pool's tiers are at most 50 % in all, got {total} %")

    def choose(self, slots: int | None, without: Collection[TierState] = ()) -> TierState | None:
        """Return the tier that the next ticket comes from; None where none is eligible.

        Args:
            slots: The pool's slots, where the ticket starts on a slot of its
                own; None where it joins a batch that holds one already.
            without: Tiers that have nothing for this batch; they compete all the same.
        """
        if self._only is not None and self._plain and not without:
            return self._only if self._only.ring.count else None
        if self._plain:
            for state in self.states:
                if state.ring.count and state not in without:
                    return state
            return None
        self._competing = competing = []
        best: TierState | None = None
        floor: TierState | None = None
        for state in self.states:
            if state.ring.count and (slots is None or state.may_start(slots)):
                competing.append(state)
                if state not in without:
                    best = best or state
                    if state.floor_credit > 0:
                        floor = floor or state
            elif state.floor_credit > 0:
                state.floor_credit = 0
        return floor or best

    def choose_quiet(self, slots: int) -> TierState | None:
        """As :meth:`choose`, among the tiers with a tenant that holds no slot.

        The others are passed over for the slots that they hold, and keep their floor's credit.

        Args:
            slots: The pool's slots.
        """
        self._competing = competing = [
            state for state in self.states if state.ring.peek_quiet() and state.may_start(slots)
        ]
        floor = next((state for state in competing if state.floor_credit > 0), None)
        return floor or next(iter(competing), None)

    def peek(self, slots: int, *, quiet: bool) -> Flow | None:
        """Return whose ticket the next grant would start with; ``quiet``: on a kept slot."""
        state = self.choose_quiet(slots) if quiet else self.choose(slots)
        if state is None:
            return None
        return state.ring.peek_quiet() if quiet else state.ring.peek()

    def charged(self, state: TierState, cost: int) -> None:
        """Account the charge of a ticket of the tier chosen last to the floors."""
        for other in self._competing[1:]:
            percent = other.tier.floor_percent
            if percent:
                other.floor_credit += cost * percent
                if other is state:
                    other.floor_credit -= 100 * cost
