# SPDX-License-Identifier: Apache-2.0
"""Fills a batch with items of many tenants, in the order in which their turns come.

A head that doesn't fit what is left of a batch is passed over: its flow's turn
stays open and comes first in the next batch. One that was passed over before
closes the batch, so that it's overtaken in one batch at most.
"""

from collections.abc import Callable

from taketurns.core.batch import OpenBatch
from taketurns.core.flow import Flow
from taketurns.core.model import BatchRules, Ticket
from taketurns.core.tiers import Tiers, TierState

Dispatch = Callable[[TierState, Flow, str], Ticket]
"""Takes a flow's first ticket of a group, charges it, and returns it."""


class SentBatch:
    """A batch in flight: its slot is freed when the last of its tickets has finished.

    Attributes:
        holder: The tier that holds the slot: that of the first ticket.
        left: Tickets that haven't finished.
    """

    __slots__ = ("holder", "left")

    def __init__(self, holder: TierState) -> None:
        self.holder = holder
        self.left = 0


def fill(
    rules: BatchRules, tiers: Tiers, seed: Ticket, passed: set[int], dispatch: Dispatch
) -> tuple[Ticket, ...]:
    """Add items to a batch until it's full or nothing fits, and return all of them.

    Args:
        rules: How large it may be.
        tiers: The pool's tiers.
        seed: Its first item, dispatched already; the others are of its group.
        passed: Arrival numbers of waiting tickets that a batch passed over:
            those that this one passes over are added.
        dispatch: Called for each further item.
    """
    batch = OpenBatch(rules)
    tickets = [seed]
    batch.add(seed.size)
    group = seed.group
    misfits_left = rules.misfits_max
    cursors = [0] * len(tiers.states)
    exhausted: set[TierState] = set()
    while not batch.full:
        state = tiers.choose(None, exhausted)
        if state is None:
            break
        flow = _turn_in(state, cursors, group)
        head = None if flow is None else flow.queue.head(group)
        if flow is None or head is None:
            exhausted.add(state)
        elif batch.fits(head[3].size):
            ticket = dispatch(state, flow, group)
            batch.add(ticket.size)
            tickets.append(ticket)
        else:
            misfits_left -= 1
            if head[2] in passed or misfits_left == 0:
                passed.add(head[2])
                break
            passed.add(head[2])
            cursors[state.rank] += 1
    for state in tiers.states:
        state.ring.restore()
    return tuple(tickets)


def _turn_in(state: TierState, cursors: list[int], group: str) -> Flow | None:
    """Return the flow whose turn it is in a batch: open turns first, then one that begins.

    Args:
        state: The tier.
        cursors: By rank, how many of its open turns have no ticket for this batch.
        group: The batch's group.
    """
    turns = state.ring.turns
    while cursors[state.rank] < len(turns):
        flow = turns[cursors[state.rank]]
        if flow.queue.head(group) is not None:
            return flow
        cursors[state.rank] += 1
    return state.ring.begin(group)
