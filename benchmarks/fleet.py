# SPDX-License-Identifier: Apache-2.0
"""What a pool in Redis costs: the server's CPU time for a request, latency, memory, growth.

The server is a private one on a socket of this machine. Its CPU time is that of
its main thread, as it reports it itself: network, scripts and all. Every request
is queued into a backlog of one ticket a tenant, granted on one of 16 engines with
8 slots each, and finished. Then the server is killed, and stopped, for three seconds
each, while turns are asked for every 5 ms; and a gateway goes without a word.
Latency is that of a turn that starts at once, beside the same turn decided in this
process, in the same run.

    python benchmarks/fleet.py [--json] [--rounds N] [--requests N] [--program PATH] [--record PATH]
"""

import argparse
import asyncio
import logging
import random
import time
from collections import deque

import redis
from harness import deliver, measured, options_for

from taketurns.aio import TurnPool, Turns
from taketurns.config.coordinator import parse_address
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.figures import Figure, median
from taketurns.fleet.link import Link
from taketurns.fleet.pool import Call, Event, Pool, decode, submit_event
from taketurns.fleet.settings import FleetSettings
from taketurns.fleet.turns import FleetTurns
from taketurns.system import SystemClock
from taketurns.testing.redis_server import RedisServer

RULES = PoolRules(quantum=1_000, tenant_queue_max=100_000, queue_max=1_000_000)
TIERS = (Tier("only"),)
ENGINES, SLOTS = 16, 8
TENANTS = 100
GATEWAYS = (1, 2, 4, 8)
GROWTH = (10, 1_000, 100_000)
CPU_US_MAX = 125.0
BUSY_MAX = 90.0
ADDED_P50_MS_MAX = 1.0
TTL_US = 1 << 50
TURNS = 1_000


class Gateway:
    """One gateway, as the server sees it: it asks for steps, and reads its list."""

    def __init__(self, client: redis.Redis, number: int) -> None:
        self.client = client
        self.pool = Pool("bench", f"g{number}")
        self.running: deque[str] = deque()
        self.finished = 0
        self.pool.epoch = self.run(self.pool.join(RULES, TIERS, ttl_us=TTL_US))[1]

    def run(self, call: Call) -> list:
        """Run a script, and load it first where it isn't known."""
        try:
            answer = self.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except redis.exceptions.NoScriptError:
            self.client.script_load(call.script.text)
            return self.run(call)
        return decode(answer)

    def step(self, events: list[Event]) -> None:
        """Let events happen, and take what was granted."""
        word, _, _, _, own, *_ = self.run(self.pool.step(events, steps=16))
        assert word == "ok", word
        for decision in own:
            self.running.extend(decision[3])
        if len(self.pool.members) > 1:
            for raw in self.client.lpop(self.pool.out(self.pool.gateway), 64) or ():
                self.running.extend(decode(raw)[1][3])


class Fleet:
    """Gateways, and a backlog of one ticket a tenant."""

    def __init__(self, server: RedisServer, gateways: int, tenants: int) -> None:
        self.client = redis.Redis.from_url(server.unix_url)
        self.client.flushall()
        self.gateways = [Gateway(self.client, number) for number in range(gateways)]
        for gateway in self.gateways:
            gateway.pool.members = tuple(other.pool.gateway for other in self.gateways)
        self.tenants = [f"tenant-{number}" for number in range(tenants)]
        self.costs = random.Random(1)
        self.sent = 0
        for first in range(0, tenants, 32):
            gateway = self.gateways[self.sent % gateways]
            gateway.step([self.submit(tenant) for tenant in self.tenants[first : first + 32]])
        for number in range(ENGINES):
            self.gateways[0].step([("engine", f"engine-{number}", SLOTS)])

    def submit(self, tenant: str) -> Event:
        self.sent += 1
        cost = min(8_000, int(self.costs.lognormvariate(6, 1)) + 1)
        ticket = Ticket(f"request-{self.sent:026d}", tenant, "only", cost)
        return submit_event([ticket], {"only": 0}, 0)

    def serve(self, requests: int, pairs: int) -> tuple[float, float, float]:
        """Serve requests, so many in a step; return us of CPU for one, scripts/s, % busy."""
        cpu, begun, own = self.cpu_s(), time.perf_counter(), time.process_time()
        done = scripts = turn = 0
        while done < requests:
            gateway = self.gateways[turn % len(self.gateways)]
            turn += 1
            events: list[Event] = []
            for _ in range(min(pairs, max(1, len(gateway.running)))):
                if gateway.running:
                    events.append(("finish", gateway.running.popleft(), False, True))
                    done += 1
                events.append(self.submit(self.tenants[self.sent % len(self.tenants)]))
            if pairs == 1:
                for event in events:
                    gateway.step([event])
                    scripts += 1
            else:
                gateway.step(events)
                scripts += 1
        wall = time.perf_counter() - begun
        busy = 100 * (time.process_time() - own) / wall
        return (self.cpu_s() - cpu) * 1e6 / done, scripts / wall, busy

    def cpu_s(self) -> float:
        found = self.client.info("cpu")
        return found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]

    def tickets_per_mb(self, tickets: int) -> float:
        before = self.client.info("memory")["used_memory"]
        for _ in range(tickets // 32):
            events = [self.submit(self.tenants[self.sent % len(self.tenants)]) for _ in range(32)]
            self.gateways[0].step(events)
        after = self.client.info("memory")["used_memory"]
        return (tickets // 32 * 32) / ((after - before) / 1e6)


async def turn_ms(turns: TurnPool, count: int) -> list[float]:
    """Return how long turns take to begin that start at once."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        async with turns.turn("acme", tier="only"):
            took.append((time.perf_counter() - begun) * 1e3)
    return took


async def latencies(url: str, count: int) -> tuple[list[float], list[float]]:
    """Return the times of turns decided here, and of those decided by the server."""
    clock = SystemClock(asyncio.get_running_loop())
    local = Turns(RULES, TIERS, clock=clock)
    local.set_engine("engine", SLOTS)
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(url), clock)
        link.serve(tasks)
        shared = FleetTurns("latency", RULES, TIERS, settings=FleetSettings("g", link), clock=clock)
        shared.set_engine("engine", SLOTS)
        shared.serve(tasks)
        await turn_ms(shared, 100)
        took = await turn_ms(local, count), await turn_ms(shared, count)
        local.close()
        shared.close()
        await shared.driver.wait_closed()
        await link.aclose()
    return took


async def outage(  # noqa: PLR0915 - one course of events
    server: RedisServer, *, pause: bool
) -> tuple[float, float, float, float]:
    """Take turns at leisure while the server is away for three seconds.

    Returns:
        The 99th percentile of turns' waits in ms, in the first second and after it; seconds
        until decisions are shared again once the server is back; % of turns that were had.
    """
    clock = SystemClock(asyncio.get_running_loop())
    waits: list[tuple[float, float]] = []
    asked = 0
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(server.url), clock)
        link.serve(tasks)
        turns = FleetTurns("outage", RULES, TIERS, settings=FleetSettings("g", link), clock=clock)
        turns.set_engine("engine", SLOTS)
        turns.serve(tasks)

        async def one() -> None:
            begun = time.perf_counter()
            async with turns.turn("acme", tier="only"):
                waits.append((begun, (time.perf_counter() - begun) * 1e3))

        async def ask(seconds: float) -> None:
            nonlocal asked
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                asked += 1
                tasks.create_task(one())
                await asyncio.sleep(0.005)

        while not turns.ready:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.01)
        await ask(0.5)
        away = time.perf_counter()
        if pause:
            server.pause()
        else:
            server.kill()
        await ask(3)
        if pause:
            server.resume()
        else:
            server.start()
        back = time.perf_counter()
        while turns.alone or not turns.driver.talking:
            await ask(0.01)
        shared = time.perf_counter() - back
        await ask(0.5)
        turns.close()
        await turns.driver.wait_closed()
        await link.aclose()
    first = [ms for begun, ms in waits if away <= begun < away + 1]
    later = [ms for begun, ms in waits if away + 1 <= begun < back]
    return part(first, 0.99), part(later, 0.99), shared, 100 * len(waits) / asked


async def slots_back_s(url: str) -> float:
    """Return how long the slots of a gateway are held after it has gone without a word."""
    clock = SystemClock(asyncio.get_running_loop())
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(url), clock)
        link.serve(tasks)
        both = []
        for name in ("gone", "stays"):
            turns = FleetTurns(
                "dead", RULES, TIERS, settings=FleetSettings(name, link), clock=clock
            )
            turns.set_engine("engine", 1)
            turns.serve(tasks)
            both.append(turns)
        gone, stays = both
        await gone.turn("acme", tier="only").__aenter__()
        for task in gone.driver._tasks:  # noqa: SLF001 - it's to die, not to leave
            task.cancel()
        begun = time.perf_counter()
        async with stays.turn("acme", tier="only"):
            took = time.perf_counter() - begun
        stays.close()
        await stays.driver.wait_closed()
        await link.aclose()
    return took


def faults(server: RedisServer, rounds: int) -> list[Figure]:
    figures = []
    for pause, name in ((False, "killed"), (True, "stopped")):
        runs = [asyncio.run(outage(server, pause=pause)) for _ in range(rounds)]
        for at, (what, unit, target, most) in enumerate(
            (
                ("wait_p99_first_second", "ms", "<= 300", 300.0),
                ("wait_p99_after_that", "ms", "<= 5", 5.0),
                ("shared_again_after", "s", "<= 5", 5.0),
            )
        ):
            values = [run[at] for run in runs]
            reached = max(values) <= most
            figures.append(measured(f"redis_{name}_{what}", values, unit, target, reached=reached))
        had = [run[3] for run in runs]
        figures.append(
            measured(f"redis_{name}_turns_had", had, "%", ">= 99", reached=min(had) >= 99)
        )
    took = [asyncio.run(slots_back_s(server.url)) for _ in range(rounds)]
    figures.append(
        measured("gateway_gone_slots_back_after", took, "s", "<= 7", reached=max(took) <= 7)
    )
    return figures


def part(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def measure(server: RedisServer, options: argparse.Namespace) -> list[Figure]:
    figures: list[Figure] = []
    rounds = range(options.rounds)
    for pairs, name in ((1, "one_event_a_script"), (8, "eight_requests_a_script")):
        fleet = Fleet(server, 1, TENANTS)
        runs = [fleet.serve(options.requests, pairs) for _ in rounds]
        cpu = [run[0] for run in runs]
        figures += [
            measured(
                f"server_cpu_per_request_{name}",
                cpu,
                "us",
                f"<= {CPU_US_MAX:g}",
                reached=max(cpu) <= CPU_US_MAX,
            ),
            measured(f"requests_per_s_and_core_{name}", [1e6 / us for us in cpu], "1/s"),
            measured(f"scripts_per_s_{name}", [run[1] for run in runs], "1/s"),
            measured(
                f"driver_busy_{name}",
                [run[2] for run in runs],
                "%",
                f"< {BUSY_MAX:g}",
                reached=max(run[2] for run in runs) < BUSY_MAX,
            ),
        ]
    for gateways in GATEWAYS:
        fleet = Fleet(server, gateways, TENANTS)
        cpu = [fleet.serve(options.requests, 8)[0] for _ in rounds]
        figures.append(measured(f"server_cpu_per_request_gateways_{gateways}", cpu, "us"))
    for tenants in GROWTH:
        fleet = Fleet(server, 1, tenants)
        cpu = [fleet.serve(options.requests, 8)[0] for _ in rounds]
        if tenants == GROWTH[0]:
            least = median(cpu)
        figures.append(measured(f"server_cpu_per_request_tenants_{tenants}", cpu, "us"))
    ratio = [us / least for us in cpu]
    figures.append(
        measured(
            "growth_from_10_to_100000_tenants",
            ratio,
            "",
            "<= 2.5",
            reached=max(ratio) <= 2.5,
            note="the logarithm of the tenants grows fivefold",
        )
    )
    fleet = Fleet(server, 1, TENANTS)
    figures.append(measured("tickets_per_mb", [fleet.tickets_per_mb(20_000)], "1/MB"))
    figures += faults(server, options.rounds)
    runs = [asyncio.run(latencies(server.unix_url, TURNS)) for _ in rounds]
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        here = [part(run[0], share) for run in runs]
        there = [part(run[1], share) for run in runs]
        added = [b - a for a, b in zip(here, there, strict=True)]
        figures += [
            measured(f"turn_local_{name}", here, "ms"),
            measured(f"turn_shared_{name}", there, "ms"),
            measured(
                f"turn_added_{name}",
                added,
                "ms",
                f"<= {ADDED_P50_MS_MAX:g}" if name == "p50" else "<= 5",
                reached=max(added) <= (ADDED_P50_MS_MAX if name == "p50" else 5.0),
            ),
        ]
    return figures


def main() -> None:
    parser = options_for(__doc__)
    logging.disable(logging.WARNING)
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.add_argument("--requests", type=int, default=5_000, help="requests of each round")
    parser.add_argument("--program", default="", help="the server's program")
    options = parser.parse_args()
    with RedisServer(options.program) as server:
        version = redis.Redis(port=server.port).info("server")["redis_version"]
        figures = measure(server, options)
    deliver(figures, options, {"redis": version, "redis-py": redis.__version__})


if __name__ == "__main__":
    main()
