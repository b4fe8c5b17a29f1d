# SPDX-License-Identifier: Apache-2.0
"""The deadlines of waiting tickets: which have passed, and when the next one will.

A binary heap. The deadline of a ticket that left otherwise stays as a dead
entry until it comes to the top or until dead entries outnumber the waiting
tickets, so that every operation is O(log n), amortised over calls.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from operator import itemgetter

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
        self.heap: list[tuple[int, str]] = []
        self._dead = 0

    def add(self, entry: Entry) -> None:
        """Watch the deadline of an entry that has one. O(log n)."""
        heappush(self.heap, (entry[1], entry[3].id))

    def forget(self) -> None:
        """Count one whose entry waits no more, and clear such out before they prevail."""
        self._dead += 1
        if self._dead > len(self._waiting) + 64:
            self.heap = [item for item in set(self.heap) if self._living(*item)]
            heapify(self.heap)
            self._dead = 0

    def next_us(self) -> int | None:
        """Return the earliest deadline; None where no waiting ticket has one."""
        heap = self.heap
        while heap:
            if self._living(*heap[0]):
                return heap[0][0]
            heappop(heap)
            self._dead -= 1
        return None

    def due(self, now_us: int) -> list[Entry]:
        """Return the entries whose deadlines have passed, and watch them no more.

        A deadline has passed when the clock reaches it. They come by deadline, then
        arrival.
        """
        heap = self.heap
        found: dict[str, Entry] = {}
        while heap and heap[0][0] <= now_us:
            deadline_us, ticket_id = heappop(heap)
            entry = self._living(deadline_us, ticket_id)
            if entry is None or ticket_id in found:
                self._dead -= 1
            else:
                found[ticket_id] = entry
        return sorted(found.values(), key=itemgetter(1, 2))

    def _living(self, deadline_us: int, ticket_id: str) -> Entry | None:
        entry = self._waiting.get(ticket_id)
        return entry if entry is not None and entry[1] == deadline_us else None
