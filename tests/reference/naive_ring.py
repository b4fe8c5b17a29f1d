# SPDX-License-Identifier: Apache-2.0
"""Deficit round robin as one would do it on paper: rounds walked one by one, plain lists.

No heap and no lazy arithmetic: each time a round ends, each tenant that had no
turn in it is paid its quantum on the spot. ``shown`` is the only concession:
the balance as it stood when it was last written, which is what a snapshot shows.
"""

from collections.abc import Iterable

from taketurns.core.model import Ticket

IDLE, NEW, WAITING, TURN, CAPPED = "idle", "new", "waiting", "turn", "capped"

NEVER = 1 << 60


class Entry:
    """A waiting ticket, with its arrival number."""

    def __init__(self, ticket: Ticket, arrival: int) -> None:
        self.ticket = ticket
        self.arrival = arrival
        self.passed_over = False

    def order(self) -> tuple[int, int, int]:
        deadline = self.ticket.deadline_us
        return (self.ticket.priority, NEVER if deadline is None else deadline, self.arrival)


class Flow:
    """One tenant in one tier."""

    def __init__(self, tenant: str, weight: int, cap: int | None) -> None:
        self.tenant = tenant
        self.weight = weight
        self.cap = cap
        self.queue: list[Entry] = []
        self.balance = 0
        self.shown = 0
        self.had_turn = False
        self.state = IDLE
        self.seq = 0
        self.tag = 0
        self.due: int | None = None
        self.began_with = 0
        self.spent = 0
        self.missed = 0
        self.in_flight = 0
        self.largest = 0

    def capped(self) -> bool:
        return self.cap is not None and self.in_flight >= self.cap

    def head(self, group: str | None) -> Entry | None:
        entries = [e for e in self.queue if group is None or e.ticket.group == group]
        return min(entries, key=Entry.order, default=None)


class NaiveRing:
    """The tenants of one tier."""

    def __init__(self, quantum: int, debt_rounds: int) -> None:
        self.quantum = quantum
        self.debt_rounds = debt_rounds
        self.round = 0
        self.last = ""
        self.flows: dict[str, Flow] = {}
        self.open_turns: list[Flow] = []
        self.forgiven = 0
        self.turns_begun: list[str] = []
        self._seq = 0

    # -- what is in the ring ------------------------------------------------

    def flow(self, tenant: str, weight: int, cap: int | None) -> Flow:
        if tenant not in self.flows:
            self.flows[tenant] = Flow(tenant, weight, cap)
        return self.flows[tenant]

    def members(self) -> list[Flow]:
        return [f for f in self.flows.values() if f.state in (NEW, WAITING, TURN)]

    def forget(self) -> None:
        """Drop the tenants that can't be told from ones never seen."""
        for tenant, flow in list(self.flows.items()):
            idle = flow.state == IDLE and not flow.in_flight and not flow.queue
            if idle and not flow.had_turn and flow.balance == 0:
                del self.flows[tenant]

    # -- events ---------------------------------------------------------------

    def refresh(self, flow: Flow) -> None:
        """Put the flow where its queue and its cap say it belongs."""
        inside = bool(flow.queue) and not flow.capped()
        if inside and flow.state in (IDLE, CAPPED):
            self._enter(flow)
        elif not inside and flow.state == TURN:
            self._end_turn(flow)
        elif not inside:
            self._leave(flow)

    def settle(self, flow: Flow, delta: int, standing: int) -> None:
        """A charge that stood at ``standing - delta`` stands at ``standing``."""
        flow.largest = max(flow.largest, standing)
        flow.balance -= delta
        self._rewritten(flow)

    def refund(self, flow: Flow, charged: int) -> None:
        """A ticket was certainly not executed: that cancels debt and makes no credit."""
        if flow.balance < 0:
            flow.balance = min(0, flow.balance + charged)
            self._rewritten(flow)
        elif flow.state != TURN:
            flow.shown = flow.balance

    def reweigh(self, flow: Flow, weight: int) -> None:
        if weight != flow.weight:
            flow.weight = weight
            self._rewritten(flow)

    def set_quantum(self, quantum: int) -> None:
        self.quantum = quantum
        for flow in sorted(self.flows.values(), key=lambda f: f.seq):
            self._rewritten(flow)

    def charge(self, flow: Flow, entry: Entry) -> None:
        """The flow, whose turn it is, starts this ticket."""
        cost = entry.ticket.cost
        flow.queue.remove(entry)
        flow.balance -= cost
        flow.shown = flow.balance
        flow.spent += cost
        flow.in_flight += 1
        flow.largest = max(flow.largest, cost)
        over = flow.balance <= 0 or flow.spent >= flow.began_with
        if over or not flow.queue or flow.capped():
            self._end_turn(flow)

    def next_flow(
        self, group: str | None, skipped: Iterable[Flow] = (), *, kept: bool = False
    ) -> Flow | None:
        """Whose turn it is, among those with a ticket of the group; begins it if need be.

        Where the slot is ``kept``, those that hold one are passed over, and rounds don't pass
        for them.
        """
        for flow in self.open_turns:
            if flow not in skipped and flow.head(group) and not (kept and flow.in_flight):
                return flow
        ring = [
            f
            for f in self.members()
            if f.state != TURN and f.head(group) and not (kept and f.in_flight)
        ]
        if not ring:
            return None
        while True:
            waiting = [f for f in ring if f.state == WAITING and f.due is not None]
            new = [f for f in ring if f.state == NEW and f.tag <= self.round]
            if waiting or new:
                break
            self._walk([f for f in self.members() if f.in_flight] if kept else [])
        if waiting and (not new or self.last == NEW):
            flow = min(waiting, key=lambda f: (f.due, f.seq))
        else:
            flow = min(new, key=lambda f: (f.tag, f.seq))
        self._begin(flow)
        return flow

    # -- the rules --------------------------------------------------------------

    def _quantum(self, flow: Flow) -> int:
        return self.quantum * flow.weight

    def _could_run(self, flow: Flow) -> bool:
        """Whether a turn in this round would begin with something to spend."""
        return not flow.had_turn and flow.balance + self._quantum(flow) > 0

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _walk(self, standing_still: list[Flow]) -> None:
        self.round += 1
        for flow in self.flows.values():
            if flow in standing_still:
                flow.tag += 1
                flow.due = None if flow.due is None else flow.due + 1
                continue
            if flow.state == TURN:
                flow.missed += 1
                continue
            if not flow.had_turn:
                flow.balance += self._quantum(flow)
                if flow.state != WAITING:
                    flow.balance = min(flow.balance, 0)
            flow.had_turn = False
            if flow.state == WAITING and flow.due is None and self._could_run(flow):
                flow.due = self.round
        self.forget()

    def _enter(self, flow: Flow) -> None:
        flow.seq = self._next_seq()
        flow.shown = flow.balance
        if not self._could_run(flow):
            flow.state, flow.due = WAITING, None
            return
        someone_due = any(f.state == WAITING and f.due is not None for f in self.flows.values())
        flow.state, flow.tag = NEW, self.round if someone_due else self.round + 1

    def _leave(self, flow: Flow) -> None:
        flow.state = CAPPED if flow.queue else IDLE
        flow.balance = min(flow.balance, 0)
        flow.shown = min(flow.shown, 0)

    def _begin(self, flow: Flow) -> None:
        self.last = flow.state
        flow.state = TURN
        flow.balance += self._quantum(flow)
        flow.shown = flow.began_with = flow.balance
        flow.spent = flow.missed = 0
        flow.had_turn = True
        self.open_turns.append(flow)
        self.turns_begun.append(flow.tenant)

    def _end_turn(self, flow: Flow) -> None:
        self.open_turns.remove(flow)
        flow.had_turn = flow.missed == 0
        missed = max(0, flow.missed - 1) * self._quantum(flow)
        if flow.queue and not flow.capped():
            flow.state = WAITING
            flow.seq = self._next_seq()
            flow.balance += missed
            flow.due = self.round if self._could_run(flow) else None
        else:
            self._leave(flow)
            flow.balance = min(flow.balance + missed, 0)

    def _rewritten(self, flow: Flow) -> None:
        """The balance, the weight or the quantum was changed: bounds, then the place."""
        if flow.state in (IDLE, NEW, CAPPED):
            flow.balance = min(flow.balance, 0)
        lowest = -max(flow.largest, self.debt_rounds * self._quantum(flow))
        if flow.balance < lowest:
            self.forgiven += lowest - flow.balance
            flow.balance = lowest
        flow.shown = flow.balance
        if flow.state == TURN and flow.balance <= 0:
            self._end_turn(flow)
        elif flow.state == WAITING:
            flow.due = self.round if self._could_run(flow) else None
        elif flow.state == NEW and not self._could_run(flow):
            flow.state, flow.due, flow.seq = WAITING, None, self._next_seq()
