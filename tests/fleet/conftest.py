# SPDX-License-Identifier: Apache-2.0
"""Real Redis servers for the tests of the fleet, and links to them."""

import asyncio
import contextlib
import os

import pytest

from taketurns.fleet.address import parse_address
from taketurns.fleet.link import Link
from taketurns.system import SystemClock
from taketurns.testing.redis_server import RedisServer

SAFETY_S = 1200 if os.environ.get("TAKETURNS_PROOF") else 120
"""No test waits so long unless it hangs."""


@pytest.fixture(scope="session")
def shared_redis():
    """One server for all tests that don't hurt it; see ``redis`` for an empty one."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(shared_redis):
    """A server with nothing in it."""
    shared_redis.ask("FLUSHALL")
    shared_redis.ask("SCRIPT", "FLUSH")
    return shared_redis


@pytest.fixture
def own_redis():
    """A server that the test may kill, stop and fill."""
    with RedisServer() as server:
        yield server


def run(coroutine):
    """Run a test's coroutine to its end."""
    return asyncio.run(asyncio.wait_for(coroutine, SAFETY_S))


@contextlib.asynccontextmanager
async def linked(url, **options):
    """A link that serves, to the server at a URL."""
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(url), SystemClock(asyncio.get_running_loop()), **options)
        link.serve(tasks)
        try:
            yield link
        finally:
            await link.aclose()


async def until(condition):
    """Wait until a condition holds that no event tells of."""
    loop = asyncio.get_running_loop()
    while not condition():
        soon = asyncio.Event()
        loop.call_later(0.005, soon.set)
        await soon.wait()
