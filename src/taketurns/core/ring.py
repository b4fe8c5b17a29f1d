# SPDX-License-Identifier: Apache-2.0
"""Deficit round robin between the tenants of one tier: selector 2.

Each tenant holds a *balance*. A round is one pass in which every backlogged
tenant gets one turn: its balance grows by quantum x weight, and it serves
tickets while the balance is positive, the last of them on overdraft. What a
ticket really cost is settled when it is known. A tenant in debt waits as many
rounds as repay it.

Instead of visiting every tenant in every round, a tenant stands in a heap
under the round in which its balance will be positive again, so that a ticket
of a hundred quanta costs one heap operation and not a hundred passes.

Two classes of tenants wait. *Waiting* ones had their turn and have more to
send; *new* ones have just become backlogged. Where both have someone whose
turn is due, the classes alternate: a quiet tenant's first ticket waits for a
handful of turns, and a stream of newcomers can't shut the others out.

Source: M. Shreedhar and G. Varghese, "Efficient Fair Queueing Using Deficit
Round Robin", SIGCOMM 1995; new before old flows after T. Hoeiland-Joergensen
et al., "The FlowQueue-CoDel Packet Scheduler", RFC 8290 (there new flows go
strictly first). Departures: overdraft instead of "only what fits", since a
cost is an estimate; settlement; and the heap of rounds.

Bound: for two tenants that stay backlogged, charged cost per weight differs
by at most 2*quantum + L/w_i + L/w_j over any interval, L the largest charge.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from taketurns.core.flow import NEW, OUT, TURN, WAITING, Flow, RingEntry


class Ring:
    """The round robin of one tier.

    Attributes:
        quantum: Cost units per round and weight.
        round: The current round. Moves only in :meth:`begin`.
        count: Flows that stand in the ring.
        turns: Flows in their turn, in the order in which the turns began. More
            than one only where heads were passed over for want of room in a batch.
        debt_forgiven: Cost units that the bound on debt has forgiven.
        keeps: Slots are kept for flows that have nothing in flight: :meth:`begin_quiet`.
    """

    __slots__ = (
        "_aside",
        "_debt_rounds",
        "_last",
        "_new",
        "_numbers",
        "_quiet_new",
        "_quiet_waiting",
        "_stale",
        "_waiting",
        "count",
        "debt_forgiven",
        "keeps",
        "quantum",
        "round",
        "turns",
    )

    def __init__(self, quantum: int, debt_rounds: int, *, keeps: bool = False) -> None:
        self.quantum = quantum
        self.keeps = keeps
        # Entries that stand in the heaps too, of flows that have nothing in flight.
        self._quiet_waiting: list[RingEntry] = []
        self._quiet_new: list[RingEntry] = []
        self.round = 0
        self.count = 0
        self.turns: list[Flow] = []
        self.debt_forgiven = 0
        self._debt_rounds = debt_rounds
        self._waiting: list[RingEntry] = []
        self._new: list[RingEntry] = []
        self._aside: list[RingEntry] = []
        self._last = NEW
        self._numbers = 0
        self._stale = 0

    def enter(self, flow: Flow) -> None:
        """Let a flow stand in the ring: it became backlogged or fell below its cap. O(log n)."""
        self._repay(flow)
        self.count += 1
        due = self._due(flow)
        if due > self.round:
            self._stand(flow, WAITING, due)
        else:
            first = _top(self._waiting)
            ready = first is not None and first[0] <= self.round
            self._stand(flow, NEW, self.round if ready else self.round + 1)

    def leave(self, flow: Flow) -> None:
        """Take a flow out: empty or capped. It loses its credit and keeps its debt. O(log n)."""
        if flow.place == TURN:
            self.turns.remove(flow)
        else:
            flow.entry = None
            self._forsake()
        self._out(flow)

    def begin(self, group: str | None = None) -> Flow | None:
        """Begin the next turn and return its flow; None where nobody is left to have one.

        Call with a free slot only: this is what moves the rounds. O(log n).

        Args:
            group: Where given, flows with no ticket of this group are passed by:
                they are out of sight until :meth:`restore`, and keep their keys.
        """
        waiting = self._waiting
        if not self._new and waiting and waiting[0][3].entry is waiting[0]:
            # What _next() would return, at less cost: under load it's nearly always this.
            entry: RingEntry | None = waiting[0]
        else:
            entry = self._next()
        if group is not None:
            while entry is not None and entry[3].queue.head(group) is None:
                self._aside.append(heappop(self._heap_of(entry[3])))
                entry = self._next()
        if entry is None:
            return None
        flow = entry[3]
        if entry[0] > self.round:
            self.round = entry[0]
        if flow.place == NEW:
            heappop(self._new)
        # A waiting flow's entry stays on top, dead: most turns end at once, and
        # then the next entry takes its place in one step.
        return self._begin(flow)

    def begin_quiet(self, holders: Iterable[Flow]) -> Flow:
        """As :meth:`begin`, of the flows that have nothing in flight; an open turn goes on.

        Rounds that move by this don't pass for the flows that hold slots, and are
        passed over for it: they get no credit for them, their debt isn't repaid by
        them, and among them everything stays as it was. O(log n), and where rounds
        move O(log n) for each holder.

        Args:
            holders: The flows with something in flight, each once.
        """
        flow = self.peek_quiet()
        assert flow is not None, "call it where peek_quiet finds one"
        entry = flow.entry
        if entry is None:
            return flow
        moved = entry[0] - self.round
        if moved > 0:
            self.round = entry[0]
            for holder in holders:
                self._carry(holder, moved)
        # Its entry lies somewhere in its heap.
        self._forsake()
        return self._begin(flow)

    def hush(self, flow: Flow) -> None:
        """Note that a flow, wherever it stands, has nothing in flight any more. O(log n)."""
        if flow.entry is not None:
            self._keep_quiet(flow.entry)

    def _keep_quiet(self, entry: RingEntry) -> None:
        heap = self._quiet_waiting if entry[3].place == WAITING else self._quiet_new
        if len(heap) > 2 * self.count + 64:
            heap[:] = [other for other in heap if other[3].entry is other]
            heapify(heap)
        heappush(heap, entry)

    def _carry(self, flow: Flow, rounds: int) -> None:
        """Let rounds not have passed for a flow that stands in the ring."""
        if flow.place == OUT:
            return
        flow.round += rounds
        if flow.entry is not None:
            due, seq, _, _ = flow.entry
            self._numbers += 1
            flow.entry = moved = (due + rounds, seq, self._numbers, flow)
            heappush(self._heap_of(flow), moved)
            self._forsake()

    def _begin(self, flow: Flow) -> Flow:
        if flow.place == NEW:
            self._repay(flow)
        self._last = flow.place
        flow.balance += (self.round - flow.round) * self.quantum * flow.weight
        flow.round = self.round
        flow.turn_left = flow.balance
        flow.place = TURN
        flow.entry = None
        self.turns.append(flow)
        return flow

    def peek(self) -> Flow | None:
        """Return the flow whose turn goes on or begins next, and begin nothing. O(log n)."""
        if self.turns:
            return self.turns[0]
        entry = self._next()
        return None if entry is None else entry[3]

    def peek_quiet(self) -> Flow | None:
        """As :meth:`peek`, of the flows that have nothing in flight. O(log n)."""
        for flow in self.turns:
            if not flow.in_flight:
                return flow
        entry = self._first(self._quiet_waiting, self._quiet_new)
        return None if entry is None else entry[3]

    def restore(self) -> None:
        """Let the flows that :meth:`begin` passed by stand where they stood."""
        for entry in self._aside:
            heappush(self._heap_of(entry[3]), entry)
        self._aside.clear()

    def charge(self, flow: Flow, cost: int, *, goes_on: bool) -> None:
        """Charge a dispatched ticket to a flow in its turn, and end the turn if that ends it.

        A turn ends when the balance is used up, or when its charges reach the
        balance it began with: refunds that arrive meanwhile count from the next
        turn, so that tickets that fail fast can't make a turn endless. O(log n).

        Args:
            flow: The flow.
            cost: The ticket's charge.
            goes_on: The flow has more tickets and is below its cap; else it leaves.
        """
        flow.balance -= cost
        flow.turn_left -= cost
        if cost > flow.largest:
            flow.largest = cost
        if not goes_on:
            self.turns.remove(flow)
            self._out(flow)
        elif flow.turn_left <= 0 or flow.balance <= 0:
            self._end_turn(flow)

    def settle(self, flow: Flow, difference: int, standing: int) -> None:
        """Correct the charge of a ticket in flight, and where its flow stands. O(log n).

        Args:
            flow: The ticket's flow.
            difference: What the ticket costs more (or less, negative) than stands charged.
            standing: What stands charged after this.
        """
        if standing > flow.largest:
            flow.largest = standing
        if flow.place != TURN:
            self._repay(flow)
        flow.balance -= difference
        self._settled(flow)

    def refund(self, flow: Flow, charged: int) -> None:
        """Take back the charge of a ticket that was certainly not executed. O(log n).

        This cancels debt and never makes credit, or else a tenant whose tickets
        fail fast would save up its rounds and shut the others out later.
        """
        if flow.place != TURN:
            self._repay(flow)
        if flow.balance < 0:
            flow.balance = min(0, flow.balance + charged)
            self._settled(flow)

    def weigh(self, flow: Flow, weight: int) -> None:
        """Give a flow a new weight; what it earned before counts by the old one. O(log n)."""
        if flow.place != TURN:
            self._repay(flow)
        flow.weight = weight
        self._settled(flow)

    def resize(self, quantum: int, flows: list[Flow]) -> None:
        """Change the quantum for all flows of the tier, standing here or not. O(n log n).

        Args:
            quantum: The new quantum.
            flows: All flows of the tier. Those that stand in the ring are
                re-keyed in the order of their sequence numbers.
        """
        for flow in flows:
            if flow.place != TURN:
                self._repay(flow)
        self.quantum = quantum
        for flow in sorted(flows, key=lambda flow: flow.entry[1] if flow.entry else 0):
            self._settled(flow)

    @property
    def newcomers(self) -> int:
        """At most so many flows stand among the new ones; some of them may have left."""
        return len(self._new)

    def is_fresh(self, flow: Flow) -> bool:
        """Tell whether a flow could be forgotten: idle, nothing in flight, its debt repaid.

        A flow whose debt is repaid to the last unit, and not only as far as its
        next turn, so that forgetting it changes nothing.
        """
        if flow.place != OUT or flow.in_flight or flow.queue.count:
            return False
        missed = self.round - 1 - flow.round
        return missed >= 0 and flow.balance + missed * self.quantum * flow.weight >= 0

    def copy(self) -> "tuple[Ring, dict[int, Flow]]":
        """Return a ring that can be changed alone, and its flows by the identity of ours. O(n)."""
        twin = Ring(self.quantum, self._debt_rounds, keeps=self.keeps)
        twin.round = self.round
        twin._last = self._last
        twin._numbers = self._numbers
        twin.count = self.count
        twins: dict[int, Flow] = {}
        for heap, copied in ((self._waiting, twin._waiting), (self._new, twin._new)):
            for entry in heap:
                flow = entry[3]
                if flow.entry is entry:
                    twins[id(flow)] = other = flow.copy()
                    other.entry = (*entry[:3], other)
                    copied.append(other.entry)
                    if self.keeps and not flow.in_flight:
                        twin._keep_quiet(other.entry)
            heapify(copied)
        for flow in self.turns:
            twins[id(flow)] = other = flow.copy()
            twin.turns.append(other)
        return twin, twins

    def _next(self) -> RingEntry | None:
        """Return the entry whose turn begins next, by class and key, without beginning it."""
        return self._first(self._waiting, self._new)

    def _first(self, waiting_heap: list[RingEntry], new_heap: list[RingEntry]) -> RingEntry | None:
        waiting = _top(waiting_heap)
        new = _top(new_heap)
        if waiting is None:
            return new
        if new is None:
            return waiting
        round_next = max(self.round, min(waiting[0], new[0]))
        if waiting[0] > round_next:
            return new
        if new[0] > round_next or self._last == NEW:
            return waiting
        return new

    def _heap_of(self, flow: Flow) -> list[RingEntry]:
        return self._waiting if flow.place == WAITING else self._new

    def _out(self, flow: Flow) -> None:
        flow.place = OUT
        self.count -= 1
        if flow.balance > 0:
            flow.balance = 0

    def _settled(self, flow: Flow) -> None:
        """Bound the debt, and let a flow stand where its balance says."""
        self._bound_debt(flow)
        if flow.place != TURN:
            self._stand_again(flow)
        elif flow.balance <= 0:
            self._end_turn(flow)

    def _due(self, flow: Flow) -> int:
        """Return the first round in which the flow's balance will be positive in its turn."""
        balance = flow.balance
        need = 1 if balance >= 0 else -balance // (self.quantum * flow.weight) + 1
        due = flow.round + need
        return due if due > self.round else self.round

    def _repay(self, flow: Flow) -> None:
        """Credit the rounds that have passed; only a waiting flow can get above zero by it."""
        passed = self.round - 1 - flow.round
        if passed > 0:
            flow.balance += passed * self.quantum * flow.weight
            flow.round = self.round - 1
        if flow.place != WAITING and flow.balance > 0:
            flow.balance = 0

    def _bound_debt(self, flow: Flow) -> None:
        least = -max(flow.largest, self._debt_rounds * self.quantum * flow.weight)
        if flow.balance < least:
            self.debt_forgiven += least - flow.balance
            flow.balance = least

    def _stand(self, flow: Flow, place: int, round_due: int) -> None:
        """Let a flow stand in a heap with a fresh sequence number."""
        self._numbers = number = self._numbers + 1
        flow.place = place
        flow.entry = entry = (round_due, number, number, flow)
        heappush(self._waiting if place == WAITING else self._new, entry)
        if self.keeps and not flow.in_flight:
            self._keep_quiet(entry)

    def _stand_again(self, flow: Flow) -> None:
        """Re-key a flow after its balance, its weight or the quantum changed."""
        if flow.place != WAITING and flow.balance > 0:
            flow.balance = 0
        entry = flow.entry
        if entry is None:
            return
        due = self._due(flow)
        if flow.place == WAITING:
            if due != entry[0]:
                self._numbers += 1
                flow.entry = moved = (due, entry[1], self._numbers, flow)
                heappush(self._waiting, moved)
                self._forsake()
                if self.keeps and not flow.in_flight:
                    self._keep_quiet(moved)
        elif due > self.round:
            self._stand(flow, WAITING, due)
            self._forsake()

    def _end_turn(self, flow: Flow) -> None:
        self.turns.remove(flow)
        # As _stand() does with _due(): most tickets end a turn.
        balance = flow.balance
        need = 1 if balance >= 0 else -balance // (self.quantum * flow.weight) + 1
        due = flow.round + need
        self._numbers = number = self._numbers + 1
        flow.place = WAITING
        flow.entry = entry = (due if due > self.round else self.round, number, number, flow)
        waiting = self._waiting
        if waiting and waiting[0][3] is flow:
            heapreplace(waiting, entry)
        else:
            heappush(waiting, entry)

    def _forsake(self) -> None:
        """Count an entry that lost its flow, and clear such entries out before they prevail."""
        self._stale += 1
        if self._stale > self.count + 64:
            for heap in (self._waiting, self._new):
                heap[:] = [entry for entry in heap if entry[3].entry is entry]
                heapify(heap)
            self._stale = 0


def _top(heap: list[RingEntry]) -> RingEntry | None:
    """Return a heap's first living entry, clearing dead ones away."""
    while heap:
        entry = heap[0]
        if entry[3].entry is entry:
            return entry
        heappop(heap)
    return None
