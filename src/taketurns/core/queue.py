# SPDX-License-Identifier: Apache-2.0
"""One tenant's waiting tickets, in the order (priority, deadline, arrival): selector 3.

A binary heap for each group of tickets. A ticket that is taken out of the
middle stays in its heap as a dead entry until it comes to the top or until
dead entries outnumber the living ones, so that memory stays within twice what
the living ones need and every operation is O(log n), amortised over calls.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from taketurns.core.model import Ticket

NEVER_US = 2**53 - 1
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

    Attributes:
        count: Living tickets.
        cost: Sum of their costs.
    """

    __slots__ = ("_dead", "_heaps", "cost", "count")

    def __init__(self) -> None:
        self._heaps: dict[str, list[Entry]] = {}
        self._dead: dict[int, Entry] = {}
        self.count = 0
        self.cost = 0

    def push(self, entry: Entry) -> None:
        """Add a ticket. O(log n)."""
        ticket = entry[3]
        heap = self._heaps.get(ticket.group)
        if heap is None:
            self._heaps[ticket.group] = [entry]
        else:
            heappush(heap, entry)
        self.count += 1
        self.cost += ticket.cost

    def head(self, group: str | None = None) -> Entry | None:
        """Return the first ticket, or the first of a group; None where there is none."""
        heaps = self._heaps
        if group is not None:
            heap = heaps.get(group)
            return heap[0] if heap else None
        if len(heaps) == 1:
            for heap in heaps.values():
                return heap[0]
        return min((heap[0] for heap in heaps.values()), default=None)

    def pop(self, group: str | None = None) -> Entry:
        """Remove and return the first ticket, or the first of a group that has one. O(log n)."""
        heaps = self._heaps
        if group is None:
            if len(heaps) == 1:
                (group,) = heaps
            else:
                group = min(heaps, key=lambda name: heaps[name][0])
        heap = heaps[group]
        entry = heappop(heap)
        self.count -= 1
        self.cost -= entry[3].cost
        if not heap:
            del heaps[group]
        elif self._dead:
            self._clear_top(group)
        return entry

    def remove(self, entry: Entry) -> None:
        """Take a living ticket out, wherever it stands. O(log n), amortised."""
        ticket = entry[3]
        self.count -= 1
        self.cost -= ticket.cost
        # An entry's identity is a sound key: the heap keeps the entry alive.
        self._dead[id(entry)] = entry
        if len(self._dead) > self.count + 16:
            self._compact()
        else:
            self._clear_top(ticket.group)

    def entries(self) -> Iterator[Entry]:
        """Yield the living entries, in no order."""
        dead = self._dead
        for heap in self._heaps.values():
            for entry in heap:
                if id(entry) not in dead:
                    yield entry

    def copy(self) -> "TicketQueue":
        """Return a queue of the same tickets that can be changed alone. O(n)."""
        twin = TicketQueue()
        twin._heaps = {group: heap[:] for group, heap in self._heaps.items()}
        twin._dead = self._dead.copy()
        twin.count = self.count
        twin.cost = self.cost
        return twin

    def _clear_top(self, group: str) -> None:
        """Let a living entry stand at the top of a group's heap."""
        heap = self._heaps.get(group)
        if heap is None:
            return
        dead = self._dead
        while heap and id(heap[0]) in dead:
            del dead[id(heappop(heap))]
        if not heap:
            del self._heaps[group]

    def _compact(self) -> None:
        for group, heap in list(self._heaps.items()):
            heap[:] = [entry for entry in heap if id(entry) not in self._dead]
            if heap:
                heapify(heap)
            else:
                del self._heaps[group]
        self._dead.clear()
