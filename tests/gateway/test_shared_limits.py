# SPDX-License-Identifier: Apache-2.0
"""Whole gateways share their limits through a real Redis, and go on alone without it."""

import asyncio

import pytest
from gateway.conftest import until

from taketurns.testing.redis_server import RedisServer

LIMITS = [
    {"unit": "requests", "per": "hour", "max": 6},
    {"unit": "requests", "per": "day", "max": 10, "scope": "total"},
    {"unit": "parallel", "max": 4},
]


@pytest.fixture
def redis():
    """A server that the test may kill."""
    with RedisServer() as server:
        yield server


def serving(play, scenario, redis, **sections):
    play(scenario, **{"coordinator": redis.url, "limits": LIMITS} | sections)


@pytest.mark.slow
def test_limits_are_counted_in_the_coordinator(play, redis):
    async def scenario(site):
        replies = [await site.chat() for _ in range(8)]
        assert [reply.status for reply in replies] == [200] * 6 + [429] * 2
        assert replies[0].headers["x-ratelimit-remaining-requests"] == "5"
        refused = replies[6]
        assert refused.error["code"] == "rate_limit_exceeded"
        assert 3500 < int(refused.headers["Retry-After"]) <= 3600
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        # All together: 6 of 10 are gone.
        assert [(await site.chat(tenant="globex")).status for _ in range(5)] == [200] * 4 + [429]
        assert b"tt:{acme}" in redis.ask("KEYS", "*")

    serving(play, scenario, redis)


@pytest.mark.slow
def test_what_was_not_executed_is_given_back(play, redis):
    async def scenario(site):
        for _ in range(8):
            assert (await site.chat(model="nothing")).status == 404
        held = await site.fill(tenant="acme")
        waiting = [site.start(site.chat()) for _ in range(2)]
        await site.queued("chat", 2)
        assert (await site.chat()).error["code"] == "rate_limit_exceeded"
        site.engines["gpu-0"].release()
        assert {reply.status for reply in await asyncio.gather(*held, *waiting)} == {200}
        await until(lambda: not len(site.gateway.coordination.limits._owed))
        assert (await site.chat()).status == 200

    serving(play, scenario, redis)


@pytest.mark.slow
def test_without_the_coordinator_it_goes_on_alone(play, redis):
    async def scenario(site):
        assert (await site.chat()).status == 200
        redis.kill()
        assert [(await site.chat()).status for _ in range(7)] == [200] * 5 + [429] * 2
        assert "taketurns_coordinator_alone 1.0" in (await site.admin("/metrics")).body.decode()

    serving(play, scenario, redis)


@pytest.mark.slow
def test_or_it_refuses_where_that_is_wanted(play, redis):
    async def scenario(site):
        assert (await site.chat()).status == 200
        redis.kill()
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (503, "quota_store_unavailable")
        assert reply.headers["Retry-After"]

    serving(play, scenario, redis, on_store_error="closed")
