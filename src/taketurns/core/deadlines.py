# SPDX-License-Identifier: Apache-2.0
"""The deadlines of waiting tickets: which have passed, and when the next one will.

A binary heap. The deadline of a ticket that left otherwise stays as a dead
entry until it comes to the top or until dead entries outnumber the waiting
tickets, so that every operation is O(log n), amortised over calls.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from taketurns.core.queue import Entry


class Deadlines:
    """The deadlines of a pool's waiting tickets.

    Args:
        waiting: The entries that wait, by their tickets' ids: who is not among
            them is dead. The scheduler's own, and only read here.

    Attributes:
        heap: What is watched, dead ones among it; empty: nothing.
    """

    __slots__ = ("_dead", "_waiting", "heap")

    def __init__(self, waiting: Mapping[str, Entry]) -> None:
        self._waiting = waiting
        self.heap: list[tuple[int, int, Entry]] = []
        self._dead = 0

    def add(self, entry: Entry) -> None:
        """Watch the deadline of an entry that has one. O(log n)."""
        heappush(self.heap, (entry[1], entry[2], entry))

    def forget(self) -> None:
        """Count one whose entry waits no more, and clear such out before they prevail."""
        self._dead += 1
        if self._dead > len(self._waiting) + 64:
            self.heap = [item for item in self.heap if self._lives(item[2])]
            heapify(self.heap)
            self._dead = 0

    def next_us(self) -> int | None:
        """Return the earliest deadline; None where no waiting ticket has one."""
        heap = self.heap
        while heap:
            if self._lives(heap[0][2]):
                return heap[0][0]
            heappop(heap)
            self._dead -= 1
        return None

    def pop(self, now_us: int) -> Entry | None:
        """Return the entry with the earliest deadline that has passed, and watch it no more.

        None where none has. A deadline has passed when the clock reaches it;
        of equal ones the ticket that arrived first is returned first.
        """
        deadline_us = self.next_us()
        if deadline_us is None or deadline_us > now_us:
            return None
        return heappop(self.heap)[2]

    def _lives(self, entry: Entry) -> bool:
        return self._waiting.get(entry[3].id) is entry
