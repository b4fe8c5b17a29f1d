# SPDX-License-Identifier: Apache-2.0
"""The connection to the coordinator, against real servers."""

import asyncio

import pytest
from fleet.conftest import linked, run, until
from redis.exceptions import ResponseError

from taketurns.errors import ConfigError, StartError, StoreUnavailableError
from taketurns.fleet.address import parse_address
from taketurns.fleet.breaker import FAILURES_MAX, PROBE_US, Breaker
from taketurns.fleet.link import kind_of
from taketurns.fleet.scripts import SHEBANG, Script
from taketurns.testing.redis_server import RedisServer


def script(text):
    from hashlib import sha1

    text = SHEBANG + text
    return Script("test", text, sha1(text.encode()).hexdigest())


COUNT = script("return redis.call('INCR', KEYS[1])")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@cache:7000/3", "redis://cache:7000"),
        ("redis://cache", "redis://cache:6379"),
        ("redis://[::1]:7000", "redis://::1:7000"),
        ("rediss://cache", "rediss://cache:6379"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock"),
        ("redis+sentinel://a,b:7/main/1", "redis+sentinel://a:26379,b:7/main"),
        ("rediss+cluster://u:p@a,b", "rediss+cluster://a:6379,b:6379"),
    ],
)
def test_an_address_shows_no_password(url, shown):
    assert str(parse_address(url)) == shown


def test_an_address_has_all_that_is_written():
    address = parse_address("redis+sentinel://u:p%40@a:1,b:2/main/4?sentinel_password=x")
    assert address.hosts == (("a", 1), ("b", 2))
    assert (address.username, address.password) == ("u", "p@")
    assert (address.service, address.db) == ("main", 4)
    assert address.settings == (("sentinel_password", "x"),)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://cache", "'http'"),
        ("cache:6379", "'cache'"),
        ("redis+tls://cache", "'redis+tls'"),
        ("redis://cache:port", "'cache:port'"),
        ("redis://cache/one", "'one'"),
        ("redis+cluster://cache/1", "'1'"),
        ("redis+sentinel://cache", "names the primary"),
        ("redis://:secret@cache?timeout=3", "'timeout'"),
    ],
)
def test_a_wrong_address_is_told_without_its_password(url, problem):
    with pytest.raises(ConfigError) as told:
        parse_address(url)
    assert problem in str(told.value)
    assert "secret" not in str(told.value)


def test_a_breaker_opens_after_failures_and_closes_with_a_success():
    breaker = Breaker()
    assert not breaker.failed(1)
    assert not breaker.succeeded()
    assert [breaker.failed(5) for _ in range(FAILURES_MAX)] == [False] * (FAILURES_MAX - 1) + [True]
    assert not breaker.failed(6)
    assert breaker.wait_us(6) == PROBE_US - 1
    breaker.probing(6)
    assert breaker.wait_us(6) == PROBE_US
    assert breaker.succeeded()
    assert not breaker.open


@pytest.mark.parametrize("form", ["url", "unix_url"])
def test_a_script_runs_and_is_loaded_again_after_a_flush(redis, form):
    async def scenario():
        async with linked(getattr(redis, form)) as link:
            assert (await link.check()).name == "redis"
            assert await link.run(COUNT, ["{x}:n"], []) == 1
            redis.ask("SCRIPT", "FLUSH")
            assert await link.run(COUNT, ["{x}:n"], []) == 2
            assert await link.command("GET", "{x}:n") == b"2"
            assert not link.failures

    run(scenario())


def test_a_list_is_read_by_waiting(redis):
    async def scenario():
        async with linked(redis.url) as link, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(link.pop("{x}:l"))
            await link.command("RPUSH", "{x}:l", "one")
            assert await reading == b"one"
            assert await link.pop("{x}:l") is None

    run(scenario())


def test_a_caller_that_is_cancelled_leaves_its_call_running(redis):
    slow = script(
        "local n = 0 for _ = 1, 2000000 do n = n + 1 end return redis.call('INCR', KEYS[1])"
    )

    async def scenario():
        async with linked(redis.url) as link:
            call = asyncio.get_running_loop().create_future()
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(link.run(slow, ["{x}:n"], []))
                call = link
                await until(lambda: bool(call._calls))
                task.cancel()
            await until(lambda: not link._calls)
            assert await link.command("GET", "{x}:n") == b"1"
            assert not link.failures

    run(scenario())


def test_a_server_that_is_killed_opens_the_breaker_and_one_that_is_back_closes_it(own_redis):
    async def scenario():
        changes = []
        async with linked(own_redis.url) as link:
            link.listen(changes.append)
            await link.run(COUNT, ["{x}:n"], [])
            own_redis.kill()
            for _ in range(FAILURES_MAX):
                with pytest.raises(StoreUnavailableError):
                    await link.run(COUNT, ["{x}:n"], [])
            assert changes == [False]
            assert link.failures["connection"] == FAILURES_MAX
            with pytest.raises(StoreUnavailableError, match="lately"):
                await link.pop("{x}:l")
            own_redis.start()
            await until(lambda: link.up)
            assert changes == [False, True]
            assert await link.run(COUNT, ["{x}:n"], []) == 1

    run(scenario())


def test_a_server_that_stands_still_is_given_up_and_taken_up(own_redis):
    async def scenario():
        async with linked(own_redis.url) as link:
            await link.run(COUNT, ["{x}:n"], [])
            own_redis.pause()
            for _ in range(FAILURES_MAX):
                with pytest.raises(StoreUnavailableError):
                    await link.run(COUNT, ["{x}:n"], [])
            assert not link.up
            assert link.failures["timeout"] == FAILURES_MAX
            own_redis.resume()
            await until(lambda: link.up)
            # What was asked of it while it stood still was carried out all the same.
            assert await link.run(COUNT, ["{x}:n"], []) >= 2

    run(scenario())


def test_what_a_full_server_refuses_has_a_name(own_redis):
    async def scenario():
        async with linked(own_redis.url) as link:
            await link.command("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreUnavailableError, match="OOM"):
                await link.run(COUNT, ["{x}:n"], [])
            assert link.failures["OOM"] == 1

    run(scenario())


def test_a_server_that_evicts_is_refused(own_redis):
    async def scenario():
        async with linked(own_redis.url) as link:
            own_redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            with pytest.raises(StartError, match="allkeys-lru"):
                await link.check()

    run(scenario())


def test_a_server_that_is_not_there_is_told(own_redis):
    own_redis.kill()

    async def scenario():
        async with linked(own_redis.url) as link:
            with pytest.raises(StoreUnavailableError, match=r"redis://127\.0\.0\.1"):
                await link.check()

    run(scenario())


def test_a_password_is_needed_where_the_server_asks_for_one():
    async def scenario(server):
        async with linked(server.url) as link:
            with pytest.raises(StoreUnavailableError, match=r"[Aa]uth"):
                await link.check()
        async with linked(server.url.replace("//", "//:secret@")) as link:
            await link.check()

    # Its own client for the start has no password: the first answer is an error, which will do.
    with RedisServer(settings={"requirepass": "secret"}) as server:
        run(scenario(server))


def test_kinds_of_failure_are_few():
    assert kind_of(ValueError("anything at all")) == "error"
    assert kind_of(ResponseError("OOM is told", status_code="OOM")) == "OOM"
    assert kind_of(OSError()) == "connection"
    assert kind_of(TimeoutError()) == "timeout"
