# SPDX-License-Identifier: Apache-2.0
"""One tenant in one tier of a pool: its waiting tickets, its balance, its place in the ring."""

from taketurns.core.queue import TicketQueue

OUT, NEW, WAITING, TURN = range(4)
"""Where a flow stands: not in the ring, in one of the two heaps, or in its turn."""

RingEntry = tuple[int, int, int, "Flow"]
"""Round (due or tag), sequence number, stamp, flow."""


class Flow:
    """One tenant in one tier of a pool.

    Attributes:
        tenant: Its name.
        weight: Quanta per round.
        cap: Most tickets in flight, or None.
        queue: Its waiting tickets.
        balance: Granted and not spent, in cost units; negative: overdraft.
        round: Round of its last turn, or up to which its debt was repaid.
        place: Where it stands.
        entry: Its living heap entry, or None.
        turn_left: In a turn: what the balance was at its begin, less the charges since.
        in_flight: Tickets dispatched and not finished.
        largest: Largest charge that has stood for one of its tickets.
    """

    __slots__ = (
        "balance",
        "cap",
        "entry",
        "in_flight",
        "largest",
        "place",
        "queue",
        "round",
        "tenant",
        "turn_left",
        "weight",
    )

    def __init__(self, tenant: str, weight: int, cap: int | None, round_now: int) -> None:
        self.tenant = tenant
        self.weight = weight
        self.cap = cap
        self.queue = TicketQueue()
        self.balance = 0
        self.round = round_now - 1
        self.place = OUT
        self.entry: RingEntry | None = None
        self.turn_left = 0
        self.in_flight = 0
        self.largest = 0

    @property
    def capped(self) -> bool:
        """True where it may have no more tickets in flight."""
        return self.cap is not None and self.in_flight >= self.cap

    @property
    def affinity(self) -> int:
        """The affinity of the ticket that goes next; 0 without one."""
        head = self.queue.head()
        return 0 if head is None else head[3].affinity

    def copy(self) -> "Flow":
        """Return a flow that can be changed alone: no heap entry, no cap."""
        twin = Flow(self.tenant, self.weight, None, self.round + 1)
        twin.queue = self.queue.copy()
        twin.balance = self.balance
        twin.place = self.place
        twin.turn_left = self.turn_left
        twin.in_flight = self.in_flight
        twin.largest = self.largest
        return twin
