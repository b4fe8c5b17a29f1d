# SPDX-License-Identifier: Apache-2.0
"""Gateways over a real Redis that find the slots of one engine, all in virtual time."""

import asyncio
import contextlib
import random
from statistics import median

import msgspec
import redis as redis_client
from fleet.conftest import linked

from taketurns.core.decision import Granted
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.fleet.link import CONNECTIONS_MAX
from taketurns.fleet.pool import Pool
from taketurns.fleet.settings import FleetSettings
from taketurns.fleet.turns import FleetTurns
from taketurns.ports.clock import VirtualClock
from taketurns.testing.batching_engine import BatchingEngine
from taketurns.units import US_PER_S

SEEN_FROM_US = 1_000 * US_PER_S
"""The server's time at the start."""

START = 8

MOMENTS_MAX = 2_000
"""How often it's looked whether what was said has been heard."""


async def a_moment():
    """Let what is under way in real time go on."""
    soon = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0005, soon.set)
    await soon.wait()


async def a_turn():
    """Let the loop run what is ready, more than once."""
    for _ in range(3):
        soon = asyncio.Event()
        asyncio.get_running_loop().call_soon(soon.set)
        await soon.wait()


class TimedPool(Pool):
    """A pool whose scripts take their time from a clock."""

    def __init__(self, name, gateway, clock):
        super().__init__(name, gateway)
        self.clock = clock

    @property
    def now(self):
        return str(SEEN_FROM_US + self.clock.now_us())

    def join(self, *args, **more):
        return super().join(*args, **more, now=self.now)

    def step(self, *args, **more):
        return super().step(*args, **more, now=self.now)

    def beat(self, *args, **more):
        return super().beat(*args, **more, now=self.now)

    def held(self, *args, **more):
        return super().held(*args, **more, now=self.now)


class Site:
    """One gateway; it always has so many requests that wait or run."""

    def __init__(self, fleet, name, link, tasks, *, wanted):
        self.fleet, self.name, self.wanted = fleet, name, wanted
        self.draw = random.Random(name)
        self.numbers = 0
        self.dead = False
        settings = FleetSettings(name, link)
        self.turns = FleetTurns(
            "pool",
            fleet.rules,
            [Tier("only")],
            settings=settings,
            clock=fleet.clock,
            on_decision=self.decided,
        )
        self.driver = self.turns.driver
        self.driver.pool = TimedPool("pool", name, fleet.clock)
        self.finder = self.turns.finder("gpu", 1, 256, start=START, on_change=self.changed)
        self.reach()
        fleet.clock.call_at(self.finder.next_wake_us(), self.wake)
        self.turns.serve(tasks)

    @property
    def running(self):
        return len(self.turns.holdings) - self.turns.holdings.queued

    def reach(self):
        self.turns.set_engine("gpu", self.finder.slots)

    def changed(self):
        if "gpu" in self.turns.engines:
            self.reach()

    def wake(self):
        if self.dead or "gpu" not in self.turns.engines:
            return
        now_us = self.fleet.clock.now_us()
        if self.fleet.gauge:
            self.finder.load.gauge(self.fleet.engine.waiting, now_us)
        self.finder.advance(now_us)
        self.fleet.clock.call_at(now_us + US_PER_S, self.wake)

    def ask(self):
        while not self.dead and len(self.turns.holdings) < self.wanted:
            self.numbers += 1
            self.turns.submit([Ticket(f"{self.name}-{self.numbers}", "acme", "only", 1)])

    def decided(self, decision):
        assert isinstance(decision, Granted)
        (ticket,) = decision.tickets
        begun_us = self.fleet.clock.now_us()
        self.finder.started(begun_us, stream=True)

        def first():
            now_us = self.fleet.clock.now_us()
            self.finder.load.first_byte(now_us - begun_us, now_us)

        def end():
            self.finder.load.ended(self.fleet.clock.now_us(), pending=False)
            if not self.dead:
                self.turns.finish(ticket.id)
                self.ask()

        draw = self.draw
        self.fleet.engine.submit(
            prompt=max(1, min(4_000, round(draw.lognormvariate(0, 1) * 50))),
            output=max(1, min(2_000, round(draw.expovariate(1 / 100)))),
            on_first=first,
            on_end=end,
        )

    def die(self):
        """Stop at once: what it runs ends at the engine, and nobody hears of it."""
        self.dead = True
        for task in self.driver._tasks:
            task.cancel()


class VirtualFleet:
    """Sites that share an engine; time passes where all that was said has been heard."""

    site = Site
    rules = PoolRules(quantum=1)

    def __init__(self, server, *, batch_max=1, times=None, gauge=False):
        self.clock = VirtualClock()
        self.gauge = gauge
        self.engine = BatchingEngine(
            self.clock, batch_max=batch_max, times=times, on_tokens=self.produced
        )
        self.server = server
        self.client = redis_client.Redis.from_url(server.unix_url)
        self.sites = []
        self.past = []

    @contextlib.asynccontextmanager
    async def open(self, wanted):
        async with contextlib.AsyncExitStack() as self._stack:
            self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
            for want in wanted:
                await self.add(want)
            try:
                yield self
            finally:
                for site in self.sites:
                    site.dead = True
                    site.turns.close()
                while not all(task.done() for site in self.sites for task in site.driver._tasks):
                    # What waits for a while waits in virtual time.
                    self.clock.run_until(self.clock.now_us() + US_PER_S)
                    await a_moment()
                self.client.close()

    async def add(self, wanted):
        """Let a gateway come; none has its windows where another has."""
        link = await self._stack.enter_async_context(linked(self.server.url, call_s_max=5.0))
        link._clock = self.clock
        self.clock.run_until(self.clock.now_us() + 370_000)
        site = self.site(self, f"g{len(self.sites)}", link, self._tasks, wanted=wanted)
        self.sites.append(site)
        await self.heard()
        return site

    @property
    def alive(self):
        return [site for site in self.sites if not site.dead]

    def produced(self, tokens):
        loads = [site.finder.load for site in self.alive]
        total = sum(load.in_flight for load in loads)
        for load in loads:
            if load.in_flight:
                load.produced(tokens * load.in_flight // total)

    async def run(self, seconds):
        """Let time pass, and note the limit and the tokens of each second."""
        for site in self.alive:
            site.ask()
        for _ in range(seconds):
            before = self.engine.tokens
            end_us = (self.clock.now_us() // US_PER_S + 1) * US_PER_S
            await self.until(end_us)
            slots = median(site.finder.slots for site in self.alive)
            self.past.append((slots, self.engine.tokens - before, self.engine.waiting))

    async def until(self, end_us):
        """Let time pass up to an instant."""
        while self.clock._timers and self.clock._timers[0][0] <= end_us:
            self.clock.run_until(self.clock._timers[0][0])
            await self.heard()
        self.clock.run_until(end_us)

    async def heard(self):
        """Wait until all that was said is heard, or for so long that it's lost: time mends that."""
        if any(site.turns.alone for site in self.alive):
            await a_moment()
        for _ in range(MOMENTS_MAX):
            if self._quiet():
                break
            await a_moment()
        # Who has heard sets its timers.
        await a_turn()

    def _quiet(self):
        talking = [site for site in self.alive if not site.turns.alone]
        drivers = [site.driver for site in talking]
        if any(not d.talking or d._events or d._more or d._due for d in drivers):
            return False
        if any(d._link._room._value < CONNECTIONS_MAX - 2 for d in drivers):
            # A call is under way.
            return False
        if not talking:
            return True
        theirs = dict.fromkeys((site.name for site in talking), 0)
        try:
            rows = self.client.hgetall("tt:{pool}:tickets")
        except redis_client.ConnectionError:
            # They will notice with their next call.
            return True
        for key, row in rows.items():
            gateway = key.decode().rpartition("-")[0]
            if row[:1] == b"r" and gateway in theirs:
                theirs[gateway] += 1
        return all(site.running == theirs[site.name] for site in talking)

    def row(self):
        """The engine as it stands in Redis: limit, in flight, slots seen by each gateway."""
        row = self.client.hget("tt:{pool}:engines", "gpu")
        _, in_flight, _, seen, limit, *_ = msgspec.msgpack.decode(row)
        return limit, in_flight, seen

    def kept(self):
        """The names of what is kept in Redis to find slots."""
        return sorted(key.decode() for key in self.client.hkeys("tt:{pool}:found"))
