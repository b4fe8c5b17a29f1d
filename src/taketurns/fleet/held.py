# SPDX-License-Identifier: Apache-2.0
"""The tickets that a gateway holds in one pool: the truth from which the coordinator is rebuilt."""

from collections import Counter
from collections.abc import Iterator

from taketurns.core.model import Ticket
from taketurns.ports.clock import Timer


class Held:
    """One ticket.

    Attributes:
        ticket: It.
        standing: What stands charged for it.
        engine: Where it runs; "" while it waits.
        batch: The batch that it runs in, or "".
        alone: It was granted while the coordinator was away.
        doubted: The coordinator thinks otherwise of it, and was not yet asked again.
        timer: Calls when its deadline passes, or None.
    """

    __slots__ = ("alone", "batch", "doubted", "engine", "standing", "ticket", "timer")

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.standing = ticket.cost
        self.engine = ""
        self.batch = ""
        self.alone = False
        self.doubted = False
        self.timer: Timer | None = None


class Holdings:
    """All that a gateway holds in one pool, in the order in which it came."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self.queued = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, ticket_id: str) -> bool:
        return ticket_id in self._held

    def add(self, ticket: Ticket) -> Held:
        """Hold a ticket that waits.

        Raises:
            ValueError: One of its id is held.
        """
        if ticket.id in self._held:
            raise ValueError(f"ticket {ticket.id!r} is queued or running already")
        self._held[ticket.id] = held = Held(ticket)
        self.queued += 1
        return held

    def waiting(self, ticket_id: str) -> Held | None:
        """Return a ticket that waits; None where it doesn't."""
        held = self._held.get(ticket_id)
        return held if held is not None and not held.engine else None

    def running(self, ticket_id: str) -> Held | None:
        """Return a ticket that runs; None where it doesn't."""
        held = self._held.get(ticket_id)
        return held if held is not None and held.engine else None

    def start(self, held: Held, engine: str, batch: str, *, alone: bool) -> None:
        """Note that a waiting ticket runs."""
        self.queued -= 1
        held.engine, held.batch, held.alone = engine, batch, alone
        self._stop_timer(held)

    def drop(self, ticket_id: str) -> Held:
        """Let a ticket go, and return it."""
        held = self._held.pop(ticket_id)
        if not held.engine:
            self.queued -= 1
        self._stop_timer(held)
        return held

    def slots_in_use(self) -> Counter[str]:
        """Return how many slots of each engine are held: one for a ticket, one for a batch."""
        used: Counter[str] = Counter()
        batches: set[str] = set()
        for held in self._held.values():
            if held.engine and held.batch not in batches:
                used[held.engine] += 1
                if held.batch:
                    batches.add(held.batch)
        return used

    def all(self) -> Iterator[tuple[str, Held]]:
        """Yield ids and tickets, the oldest first; don't change them meanwhile."""
        yield from self._held.items()

    def _stop_timer(self, held: Held) -> None:
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
