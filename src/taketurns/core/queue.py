# SPDX-License-Identifier: Apache-2.0
"""One tenant's waiting tickets, in the order (priority, deadline, arrival): selector 3.

A binary heap for each group of tickets. A ticket that is taken out of the
middle stays in its heap as a dead entry until it comes to the top or until
dead entries outnumber the living ones by 16, so that memory stays within about
twice what the living ones need and every operation is O(log n), amortised.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from taketurns.core.model import Ticket
from taketurns.units import EXACT_INT_MAX

NEVER_US = EXACT_INT_MAX
"""Stands for "no deadline" in keys: later than any deadline."""

Entry = tuple[int, int, int, Ticket]
"""Priority, deadline (or :data:`NEVER_US`), arrival number, ticket."""


def entry_of(ticket: Ticket, arrival: int) -> Entry:
    """Return the entry under which a ticket is queued.

    Args:
        ticket: The ticket.
        arrival: Number given at its first arrival, unique in the pool.
    """
    deadline_us = NEVER_US if ticket.deadline_us is None else ticket.deadline_us
    return (ticket.priority, deadline_us, arrival, ticket)


class TicketQueue:
    """The waiting tickets of one tenant in one tier.

    Nearly always all tickets are of one group, so the first group has a heap
    of its own at hand, and only further ones are looked up.

    Attributes:
        count: Living tickets.
        cost: Sum of their costs.
    """

    __slots__ = ("_dead", "_group", "_heap", "_others", "cost", "count")

    def __init__(self) -> None:
        self._group = ""
        self._heap: list[Entry] = []
        self._others: dict[str, list[Entry]] = {}
        self._dead: dict[int, Entry] | None = None
        self.count = 0
        self.cost = 0

    def push(self, entry: Entry) -> None:
        """Add a ticket. O(log n)."""
        ticket = entry[3]
        self.count += 1
        self.cost += ticket.cost
        group = ticket.group
        if group == self._group:
            heappush(self._heap, entry)
        elif self._heap:
            heappush(self._others.setdefault(group, []), entry)
        else:
            self._group = group
            self._heap = self._others.pop(group, self._heap)
            heappush(self._heap, entry)

    def head(self, group: str | None = None) -> Entry | None:
        """Return the first ticket, or the first of a group; None where there is none. O(groups)."""
        heap = self._heap
        if group is None:
            if self._others:
                return min(self._tops())
            return heap[0] if heap else None
        if group != self._group:
            heap = self._others.get(group, [])
        return heap[0] if heap else None

    def pop(self, group: str | None = None) -> Entry:
        """Remove and return the first ticket, or the first of a group that has one. O(log n)."""
        heap = self._heap
        if self._others:
            if group is None:
                group = min(self._tops())[3].group
            if group != self._group:
                heap = self._others[group]
        entry = heappop(heap)
        self.count -= 1
        self.cost -= entry[3].cost
        if self._dead or self._others:
            self._clear(entry[3].group)
        return entry

    def remove(self, entry: Entry) -> None:
        """Take a living ticket out, wherever it stands. O(log n), amortised."""
        ticket = entry[3]
        self.count -= 1
        self.cost -= ticket.cost
        if self._dead is None:
            self._dead = {}
        # An entry's identity is a sound key: the heap keeps the entry alive.
        self._dead[id(entry)] = entry
        self._clear(ticket.group)

    def entries(self) -> Iterator[Entry]:
        """Yield the living entries, in no order."""
        dead = self._dead or {}
        for heap in (self._heap, *self._others.values()):
            for entry in heap:
                if id(entry) not in dead:
                    yield entry

    def copy(self) -> "TicketQueue":
        """Return a queue of the same tickets that can be changed alone. O(n)."""
        twin = TicketQueue()
        for entry in self.entries():
            twin.push(entry)
        return twin

    def _tops(self) -> Iterator[Entry]:
        """Yield the first ticket of each group."""
        if self._heap:
            yield self._heap[0]
        for heap in self._others.values():
            yield heap[0]

    def _clear(self, group: str) -> None:
        """Clear dead entries away: all where they prevail, else those on top of one heap."""
        if self._dead and len(self._dead) > self.count + 16:
            self._compact()
        self._clear_top(group)

    def _clear_top(self, group: str) -> None:
        """Let a living entry stand at the top of a group's heap; drop the heap if it's empty."""
        heap = self._heap if group == self._group else self._others.get(group, [])
        dead = self._dead
        while dead and heap and id(heap[0]) in dead:
            del dead[id(heappop(heap))]
        if not heap and group != self._group:
            self._others.pop(group, None)

    def _compact(self) -> None:
        dead = self._dead or {}
        for group, heap in [(self._group, self._heap), *self._others.items()]:
            heap[:] = [entry for entry in heap if id(entry) not in dead]
            heapify(heap)
            if not heap and group != self._group:
                del self._others[group]
        self._dead = None
