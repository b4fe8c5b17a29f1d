# SPDX-License-Identifier: Apache-2.0
"""How fast the scheduler is, and how much memory a queued ticket takes.

A full cycle is what one request costs the scheduler: submit a ticket, finish a
running one, and select the next. All tenants stay backlogged throughout. The
limit is the same queue work done by ``heapq`` alone: one heap of all tickets
and a dict of their ids, with no tenants and so no fairness.

Time is the process's own CPU time: one core, whatever else the machine does.

    python benchmarks/scheduler.py [--json] [--rounds N] [--record PATH]
"""

import gc
import heapq
import time
import tracemalloc
from collections import deque

from harness import deliver, measured, options_for

from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.core.queue import entry_of
from taketurns.core.scheduler import Scheduler
from taketurns.figures import Figure, median

TENANTS = (10, 1_000, 100_000)
CYCLES_PER_S_MIN = 150_000
SLOWDOWN_MAX = 3.0
BYTES_MAX = 500

CYCLES = 20_000
QUEUED = {10: 20_000, 1_000: 20_000, 100_000: 300_000}
COST = 1_000
SLOTS = 16


class Backlog:
    """A scheduler whose tenants all have tickets waiting, to be driven cycle by cycle."""

    def __init__(self, tenants: int) -> None:
        self.names = [f"tenant-{number}" for number in range(tenants)]
        self.scheduler = Scheduler(PoolRules(quantum=COST, queue_max=10**9), [Tier("only")])
        self.number = 0
        for _ in range(QUEUED[tenants]):
            self.scheduler.submit(self.next_ticket())
        self.scheduler.set_engine("engine", SLOTS)
        self.running = deque(
            ticket.id for granted in self.scheduler.advance(0) for ticket in granted.tickets
        )

    def next_ticket(self) -> Ticket:
        """Return one more ticket; the tenants take turns at sending."""
        self.number += 1
        tenant = self.names[self.number % len(self.names)]
        return Ticket(f"request-{self.number}", tenant, "only", COST)

    def us_per_cycle(self, cycles: int) -> float:
        """Run full cycles and return the CPU time of one, in microseconds."""
        scheduler, running = self.scheduler, self.running
        tickets = [self.next_ticket() for _ in range(cycles)]
        begin = time.process_time()
        for ticket in tickets:
            scheduler.submit(ticket)
            scheduler.finish(running.popleft())
            (granted,) = scheduler.advance(0)
            running.append(granted.tickets[0].id)
        return (time.process_time() - begin) / cycles * 1e6


class Heap:
    """The same tickets in one heap: no tenants, no fairness."""

    def __init__(self, queued: int) -> None:
        self.heap: list = []
        self.by_id: dict = {}
        self.number = 0
        for _ in range(queued):
            self.push(self.next_ticket())

    def next_ticket(self) -> Ticket:
        """Return one more ticket."""
        self.number += 1
        return Ticket(f"request-{self.number}", "tenant", "only", COST)

    def push(self, ticket: Ticket) -> None:
        """Queue a ticket."""
        entry = entry_of(ticket, self.number)
        heapq.heappush(self.heap, entry)
        self.by_id[ticket.id] = entry

    def us_per_cycle(self, cycles: int) -> float:
        """Push and pop, and return the CPU time of both, in microseconds."""
        tickets = [self.next_ticket() for _ in range(cycles)]
        heap, by_id = self.heap, self.by_id
        begin = time.process_time()
        for ticket in tickets:
            self.push(ticket)
            entry = heapq.heappop(heap)
            del by_id[entry[3].id]
        return (time.process_time() - begin) / cycles * 1e6


def bytes_per_ticket(*, deadline_us: int | None, tickets: int = 100_000) -> float:
    """Return what the scheduler holds for each queued ticket, its id and fields included."""
    names = [f"tenant-{number}" for number in range(1_000)]
    scheduler = Scheduler(PoolRules(quantum=COST, queue_max=10**9), [Tier("only")])
    for name in names:
        scheduler.submit(Ticket(f"first of {name}", name, "only", COST))
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(tickets):
        # As the gateway makes them: an id of 36 characters, times that all differ.
        scheduler.submit(
            Ticket(
                f"req_{number:032x}",
                names[number % len(names)],
                "only",
                COST,
                deadline_us=None if deadline_us is None else deadline_us + number,
                arrived_us=10**9 + number,
            )
        )
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / tickets


def measure(rounds: int) -> list[Figure]:
    """Measure everything; each round measures all sizes, so that they see the same machine."""
    backlogs = {tenants: Backlog(tenants) for tenants in TENANTS}
    heaps = {tenants: Heap(QUEUED[tenants]) for tenants in TENANTS}
    us: dict[int, list[float]] = {tenants: [] for tenants in TENANTS}
    limit_us: dict[int, list[float]] = {tenants: [] for tenants in TENANTS}
    for backlog in backlogs.values():
        backlog.us_per_cycle(CYCLES)
    for _ in range(rounds):
        for tenants in TENANTS:
            us[tenants].append(backlogs[tenants].us_per_cycle(CYCLES))
            limit_us[tenants].append(heaps[tenants].us_per_cycle(CYCLES))
    figures = []
    for tenants in TENANTS:
        rates = [1e6 / value for value in us[tenants]]
        target = f">= {CYCLES_PER_S_MIN}" if tenants == 1_000 else ""
        figures.append(
            measured(
                f"cycles_per_s_{tenants}_tenants",
                rates,
                "1/s",
                target,
                reached=median(rates) >= CYCLES_PER_S_MIN if target else None,
                note=f"submit + finish + select, {CYCLES} cycles a round, one core",
            )
        )
        figures.append(
            measured(
                f"heapq_alone_cycles_per_s_{tenants}_tenants",
                [1e6 / value for value in limit_us[tenants]],
                "1/s",
                note="the limit: push + pop of as many tickets in one heap",
            )
        )
        figures.append(
            measured(
                f"time_over_heapq_alone_{tenants}_tenants",
                [one / other for one, other in zip(us[tenants], limit_us[tenants], strict=True)],
            )
        )
    slowdown = [many / few for many, few in zip(us[100_000], us[10], strict=True)]
    figures.append(
        measured(
            "time_per_cycle_100000_over_10_tenants",
            slowdown,
            target=f"<= {SLOWDOWN_MAX:g}",
            reached=median(slowdown) <= SLOWDOWN_MAX,
        )
    )
    for name, deadline_us in (("", None), ("_with_deadline", 2 * 10**9)):
        size = bytes_per_ticket(deadline_us=deadline_us)
        figures.append(
            measured(
                f"bytes_per_queued_ticket{name}",
                [size],
                "B",
                f"< {BYTES_MAX}",
                reached=size < BYTES_MAX,
                note="1,000 tenants, 100,000 tickets; ids of 36 characters; without bodies",
            )
        )
    return figures


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take the median of")
    options = parser.parse_args()
    deliver(measure(options.rounds), options)


if __name__ == "__main__":
    main()
