# SPDX-License-Identifier: Apache-2.0
"""How much a simulated request costs beside the core's own work, and whether memory stays flat.

The core's cycle is what one request costs the scheduler alone: make a ticket,
submit it, finish a running one, select the next. A simulated request is that
through the dispatcher, and its arrival, its engine and all measures. 100
tenants, all backlogged, in both. Time is the process's own CPU time.

With ``--table`` the figures of VTC's real trace are printed too; with ``--large``
a run of 100,000 tenants, 1,000 engines and ten million requests.

    python benchmarks/simulator.py [--json] [--rounds N] [--table] [--large] [--record PATH]
"""

import time
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from harness import deliver, measured, options_for

from taketurns.cli.output import progress
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.figures import Figure
from taketurns.sim.engines.kinds import read_engine
from taketurns.sim.experiment import run_all
from taketurns.sim.measures.collect import Collected
from taketurns.sim.progress import Told
from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.run import Run, Setting
from taketurns.sim.scenario import load, read
from taketurns.sim.schedulers.kinds import read_scheduler
from taketurns.sim.workloads import merged, read_traffic

RATIO_MAX = 4.0
TENANTS = 100
CYCLES = 30_000
SLOTS = 64
GROWTH_MAX = 1.1

ENGINE = {"kind": "slots", "slots": SLOTS, "request_ms": 10, "output_ms": 20}
RULES = {"kind": "round-robin", "cost": "requests", "quantum": 1_000, "slots": SLOTS}
CONTINUOUS_RULES = {"kind": "round-robin", "slots": 24, "settle_cost": 32}
TRAFFIC = {"rate": 66, "population": TENANTS, "exponent": 0, "input": 100, "output": 50}


def core_us() -> float:
    """Return the CPU time of the core's cycle, in microseconds."""
    names = [f"tenant-{number}" for number in range(TENANTS)]
    scheduler = Scheduler(PoolRules(quantum=1_000, queue_max=10**9), [Tier("all")])
    for number in range(TENANTS * 20):
        scheduler.submit(Ticket(f"first-{number}", names[number % TENANTS], "all", 1_000))
    scheduler.set_engine("engine", SLOTS)
    running = deque(ticket.id for granted in scheduler.advance(0) for ticket in granted.tickets)
    begin = time.process_time()
    for number in range(CYCLES):
        ticket = Ticket(f"next-{number}", names[number % TENANTS], "all", 1_000, 100, 500, None, "")
        scheduler.submit(ticket)
        scheduler.finish(running.popleft())
        (granted,) = scheduler.advance(number)
        running.append(granted.tickets[0].id)
    return (time.process_time() - begin) / CYCLES * 1e6


def simulated(
    rules: dict[str, Any], engine: dict[str, Any], traffic: dict[str, Any], requests: int
) -> tuple[Run, Collected]:
    """Return a run that is ready to go, and who looks on."""
    duration = requests / traffic["rate"]
    arrivals = merged(read_traffic("tenant", Section(traffic)), "0", duration)
    return prepared(rules, engine, arrivals, round(duration * 1e6))


def prepared(
    rules: dict[str, Any],
    engine: dict[str, Any],
    arrivals: Iterator[Request],
    span_us: int,
    engines: int = 1,
) -> tuple[Run, Collected]:
    """Return a run over given requests."""
    observer = Collected(span_us, {}, span_us)
    maker = read_engine(Section(engine))(Random(0))
    setting = Setting(read_scheduler(Section(rules)), maker, engines, {}, "0")
    return Run(setting, arrivals, observer), observer


def simulated_us(rules: dict[str, Any], engine: dict[str, Any], traffic: dict[str, Any]) -> float:
    """Return the CPU time of a simulated request, in microseconds."""
    run, observer = simulated(rules, engine, traffic, CYCLES)
    begin = time.process_time()
    run.go()
    observer.close(run.clock.now_us())
    return (time.process_time() - begin) / observer.figures()["served"] * 1e6


def peak_bytes(requests: int) -> int:
    """Return the most memory that a run held at once, below the engine's capacity."""
    tracemalloc.start()
    # Histograms fill up with the first thousands of each tenant's requests, so few tenants.
    traffic = TRAFFIC | {"rate": 40, "population": 5}
    run, observer = simulated(RULES, ENGINE, traffic, requests)
    run.go()
    observer.close(run.clock.now_us())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def speed(rounds: int) -> list[Figure]:
    """Measure what a simulated request costs beside the core's cycle."""
    cores, slots, continuous = [], [], []
    for _ in range(rounds):
        cores.append(core_us())
        slots.append(simulated_us(RULES, ENGINE, TRAFFIC))
        continuous.append(
            simulated_us(CONTINUOUS_RULES, {"kind": "continuous"}, TRAFFIC | {"rate": 7})
        )
    ratios = [one / core for one, core in zip(slots, cores, strict=True)]
    slower = [one / core for one, core in zip(continuous, cores, strict=True)]
    note = f"{TENANTS} tenants, {CYCLES:,} requests"
    return [
        measured("core_cycle", cores, "us", note=note),
        measured("simulated_request", slots, "us", note=f"{note}, engine of slots"),
        measured(
            "simulated_over_core",
            ratios,
            target=f"<= {RATIO_MAX:g}",
            reached=median(ratios) <= RATIO_MAX,
            note=note,
        ),
        measured(
            "continuous_over_core",
            slower,
            note=f"{note}, an engine that batches continuously, charges settled as tokens come",
        ),
    ]


def memory() -> Figure:
    """Measure how memory grows with ten times the requests."""
    growth = peak_bytes(120_000) / peak_bytes(30_000)
    return measured(
        "memory_growth_of_four_times_the_requests",
        [growth],
        target=f"<= {GROWTH_MAX:g}",
        reached=growth <= GROWTH_MAX,
        note="most bytes held at once, 120,000 requests over 30,000",
    )


def table(seeds: int) -> list[Figure]:
    """Measure VTC's real trace: average difference of service of each scheduler."""
    name, value = load("vtc-table2")
    rows = run_all(read(name, value, Path()), {}, seeds)
    return [
        measured(
            f"average_difference {row.scheduler}",
            [run["average_difference"] for run in row.runs],
            note="vtc-table2",
        )
        for row in rows
    ]


def large(requests: int, tenants: int, engines: int) -> list[Figure]:
    """Run many requests of many tenants on many engines."""
    engine = {"kind": "slots", "slots": 8, "request_ms": 10, "output_ms": 20}
    rate = engines * 8 / 1.01 * 1.02
    traffic = TRAFFIC | {"rate": rate, "population": tenants, "exponent": 1.1}
    duration = requests / rate
    arrivals = merged(read_traffic("tenant", Section(traffic)), "0", duration)
    rules, span_us = RULES | {"slots": 8}, round(duration * 1e6)
    with progress(1, "simulated") as done:
        told = Told(span_us, done)
        run, observer = prepared(rules, engine, told.watched(arrivals), span_us, engines)
        begin = time.process_time()
        run.go()
        observer.close(run.clock.now_us())
    took = time.process_time() - begin
    with Path("/proc/self/status").open(encoding="ascii") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    figures = observer.figures()
    note = f"{tenants:,} tenants, {engines:,} engines"
    return [
        measured("large_served", [figures["served"]], note=note),
        measured("large_request", [took / figures["served"] * 1e6], "us", note=note),
        measured("large_memory_peak", [peak / 1024], "MiB", note="the process's most"),
    ]


def main() -> None:
    options = options_for(__doc__ or "")
    options.add_argument(
        "--rounds", type=int, default=5, help="times that speed is measured; 0: not at all"
    )
    options.add_argument("--table", type=int, metavar="SEEDS", help="VTC's real trace, too")
    options.add_argument("--large", type=int, metavar="REQUESTS", help="a large run, too")
    given = options.parse_args()
    figures = [*speed(given.rounds), memory()] if given.rounds else []
    if given.table:
        figures += table(given.table)
    if given.large:
        figures += large(given.large, 100_000, 1_000)
    deliver(figures, given)


if __name__ == "__main__":
    main()
