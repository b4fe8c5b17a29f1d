# SPDX-License-Identifier: Apache-2.0
"""A gateway without HTTP, as a process that can be killed: it takes turns and writes down what ran.

    worker.py URL NAME FILE

Each line of the file is the id of a request that an engine began, or `alone` and `shared` where
the worker changes to that; it ends on SIGTERM.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys

from taketurns.config.coordinator import parse_address
from taketurns.core.model import PoolRules, Tenant, Tier
from taketurns.fleet.link import Link
from taketurns.fleet.settings import FleetSettings
from taketurns.fleet.turns import FleetTurns
from taketurns.system import SystemClock

RULES = PoolRules(quantum=100)
TENANTS = [Tenant("a", 1), Tenant("b", 2), Tenant("c", 4)]
SLOTS = 6
ASKING = 24
RUNS_S = 0.005


async def main(url, name, path):
    """Ask without end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    rng = random.Random(name)
    clock = SystemClock(loop)
    number = 0

    async def ask(turns):
        nonlocal number
        while not stop.is_set():
            number += 1
            ticket_id = f"{name}-{number}"
            tenant = rng.choice("abc")
            cost = rng.randint(10, 300)
            async with turns.turn(tenant, tier="only", cost=cost, ticket_id=ticket_id):
                os.write(log, f"{ticket_id}\n".encode())
                done = asyncio.Event()
                loop.call_later(RUNS_S, done.set)
                await done.wait()

    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(url), clock)
        link.serve(tasks)
        settings = FleetSettings(name, link)
        turns = FleetTurns("pool", RULES, [Tier("only")], TENANTS, settings=settings, clock=clock)
        turns.set_engine("gpu", SLOTS)
        turns.serve(tasks)
        asking = [tasks.create_task(ask(turns)) for _ in range(ASKING)]
        await stop.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.wait(asking)
        for task in asking:
            task.cancel()
        turns.close()
        await turns.driver.wait_closed()
        await link.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
