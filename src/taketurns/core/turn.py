# SPDX-License-Identifier: Apache-2.0
"""How far a flow's turn is away, in what the others may get until then."""

from taketurns.core.flow import OUT, TURN, WAITING, Flow
from taketurns.core.ring import Ring


def level_before(ring: Ring, flow: Flow | None, weight: int, before: int) -> int:
    """Return what others get per weight before a flow has served ``before`` and goes on.

    It needs as many rounds as pay for it, from where its balance stands; in each of
    them the others get a quantum per weight. O(1).

    Args:
        ring: Its tier's round robin.
        flow: The flow; None: one never seen.
        weight: Its weight.
        before: Cost of its own that goes first, at least 0.
    """
    per_round = ring.quantum * weight
    if flow is None:
        balance, since = 0, ring.round - 1
    elif flow.place == TURN:
        balance, since = flow.balance, flow.round
        if before < balance:
            return 0
    else:
        # As the ring does it when the flow enters or begins its turn.
        passed = max(0, ring.round - 1 - flow.round)
        balance, since = flow.balance + passed * per_round, flow.round + passed
        if flow.place != WAITING and balance > 0:
            balance = 0
    need = max(0, before - balance) // per_round + 1
    return max(1, since + need - ring.round) * ring.quantum


def would_be_new(ring: Ring, flow: Flow | None) -> bool:
    """Tell whether a flow would enter the ring among the new ones: outside it and without debt."""
    if flow is None:
        return True
    missed = max(0, ring.round - 1 - flow.round)
    repaid = flow.balance + missed * ring.quantum * flow.weight
    return flow.place == OUT and repaid >= 0
