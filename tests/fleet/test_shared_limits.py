# SPDX-License-Identifier: Apache-2.0
"""Gateways that share limits grant exactly those; alone each grants its part; nothing twice."""

import asyncio
import contextlib
import os

import pytest
from fleet.conftest import run, until

from taketurns.core.limits import Amounts, Denied, LimitRule, Span, Unit
from taketurns.errors import StoreUnavailableError
from taketurns.fleet.address import parse_address
from taketurns.fleet.limit_calls import Place
from taketurns.fleet.link import Link
from taketurns.fleet.mirror import Fellows, Mode, Outage
from taketurns.fleet.shared_limits import SharedLimits
from taketurns.system import SystemClock, new_id

SECOND = 1_000_000
PATIENT_S = 30
"""On a busy machine an answer may take longer than the link would wait for it."""
PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
GATEWAYS = 4
CLIENTS = 500 if PROOF else 50
ONE = Amounts()
RPM = LimitRule("rpm", Unit.REQUESTS, Span.SLIDING, 100, 3600 * SECOND)
TPM = LimitRule("tpm", Unit.TOKENS, Span.SLIDING, 10_000, 3600 * SECOND)
ALL = LimitRule("all", Unit.REQUESTS, Span.SLIDING, 30, 3600 * SECOND, total=True)
PARALLEL = LimitRule("at-once", Unit.REQUESTS, Span.PARALLEL, 10)


class Gateway:
    """A gateway's limits, and what it granted."""

    def __init__(self, url, call_s_max=0.25, **options):
        self.clock = SystemClock(asyncio.get_running_loop())
        self.link = Link(parse_address(url), self.clock, call_s_max=call_s_max)
        self.limits = SharedLimits(self.link, self.clock, **options)
        self.granted = 0
        self.unknown = 0

    async def admit(self, rules=(RPM,), tenant="acme", amounts=ONE):
        taken = await self.limits.admit(rules, tenant, amounts, new_id("req_"))
        if isinstance(taken, Denied):
            return None
        self.granted += 1
        return taken


@contextlib.asynccontextmanager
async def fleet(url, count=GATEWAYS, **options):
    """Gateways that know each other."""
    async with asyncio.TaskGroup() as tasks:
        gateways = [Gateway(url, **options) for _ in range(count)]
        for gateway in gateways:
            gateway.link.serve(tasks)
        for gateway in gateways:
            await gateway.limits.start(tasks)
        for gateway in gateways:
            await gateway.limits._beat()
            assert gateway.limits.state()["members"] == count
        try:
            yield gateways
        finally:
            for gateway in gateways:
                await gateway.limits.aclose()
                await gateway.link.aclose()


async def paid(gateways):
    """Wait until everything is told."""
    for gateway in gateways:
        await until(lambda limits=gateway.limits: not limits._owed)


def test_together_they_grant_exactly_the_limit(redis):
    async def scenario():
        async with fleet(redis.url, call_s_max=PATIENT_S) as gateways:
            clients = [gateway.admit() for gateway in gateways for _ in range(CLIENTS)]
            await asyncio.gather(*clients)
            assert sum(gateway.granted for gateway in gateways) == RPM.max
            assert all(gateway.limits.mode is Mode.SHARED for gateway in gateways)

    run(scenario())


def test_what_is_given_back_can_be_taken_anywhere(redis):
    async def scenario():
        async with fleet(redis.url, 2, call_s_max=PATIENT_S) as (one, two):
            taken = [await one.admit((RPM, TPM), amounts=Amounts(1, 10, 4_990)) for _ in range(3)]
            assert taken[2] is None
            one.limits.settle(taken[0], Amounts(1, 10, 90))
            one.limits.settle(taken[1], None)
            await paid([one])
            result = await two.limits.admit((RPM, TPM), "acme", Amounts(1, 9_999, 0), "x")
            assert [status.used for status in result.statuses] == [100]
            assert (await two.admit((RPM, TPM), amounts=Amounts(1, 9_900, 0))).statuses[1].used == (
                10_000
            )

    run(scenario())


def test_a_limit_of_all_tenants_refuses_and_the_tenants_own_is_given_back(redis):
    async def scenario():
        async with fleet(redis.url, 2, call_s_max=PATIENT_S) as gateways:
            for number in range(40):
                await gateways[number % 2].admit((RPM, ALL), f"tenant-{number % 4}")
            assert sum(gateway.granted for gateway in gateways) == ALL.max
            await paid(gateways)
            result = await gateways[0].limits.admit((RPM,), "tenant-0", ONE, "x")
            # 30 were granted in turn to four tenants, and the one just now.
            assert result.statuses[0].used == 8 + 1

    run(scenario())


def test_requests_at_once_are_counted_over_all(redis):
    async def scenario():
        async with fleet(redis.url, call_s_max=PATIENT_S) as gateways:
            clients = [gateway.admit((PARALLEL,)) for gateway in gateways for _ in range(10)]
            taken = await asyncio.gather(*clients)
            assert sum(gateway.granted for gateway in gateways) == PARALLEL.max
            for gateway, place in zip(gateways * 10, taken, strict=True):
                if place is not None:
                    gateway.limits.settle(place, ONE)
            await paid(gateways)
            assert await gateways[0].admit((PARALLEL,)) is not None

    run(scenario())


def test_one_that_is_cancelled_takes_nothing(redis):
    async def scenario():
        async with fleet(redis.url, 1, call_s_max=PATIENT_S) as (one,):
            tasks = [asyncio.create_task(one.admit((RPM, PARALLEL))) for _ in range(60)]  # noqa: TID251
            done = asyncio.Event()
            asyncio.get_running_loop().call_later(0.003, done.set)
            await done.wait()
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            await paid([one])
            granted = sum(not isinstance(end, BaseException) and end is not None for end in ended)
            result = await one.limits.admit((RPM,), "acme", ONE, "x")
            assert result.statuses[0].used == granted + 1

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_with_the_store_killed_midway_they_grant_the_limit_but_for_what_was_in_flight(
    own_redis, keeps
):
    """The whole test lies within one period: all that is ever granted counts."""

    async def scenario():
        rule = LimitRule("rph", Unit.REQUESTS, Span.SLIDING, 400, 3600 * SECOND)
        async with fleet(own_redis.url) as gateways:

            async def client(gateway):
                for _ in range(400 if PROOF else 60):
                    gateway.unknown += 1
                    await gateway.admit((rule,))
                    gateway.unknown -= 1

            clients = [
                asyncio.create_task(client(gateway))  # noqa: TID251
                for gateway in gateways
                for _ in range(10)
            ]
            await until(lambda: sum(gateway.granted for gateway in gateways) > 150)
            if keeps:
                own_redis.pause()
            else:
                own_redis.kill()
            in_flight = sum(gateway.unknown for gateway in gateways)
            await asyncio.gather(*clients)
            assert all(gateway.limits.mode is Mode.ALONE for gateway in gateways)
            granted = sum(gateway.granted for gateway in gateways)
            assert 150 < granted <= rule.max + in_flight
            if keeps:
                own_redis.resume()
            else:
                own_redis.start()
            await until(lambda: all(g.limits.mode is Mode.SHARED for g in gateways))
            # What was granted meanwhile counts, everywhere.
            for _ in range(rule.max):
                for gateway in gateways:
                    await gateway.admit((rule,))
            granted = sum(gateway.granted for gateway in gateways)
            assert rule.max - GATEWAYS * 10 <= granted <= rule.max + in_flight

    run(scenario())


@pytest.mark.slow
def test_in_every_later_window_they_grant_the_limit_and_no_more(own_redis):
    async def scenario():
        rule = LimitRule("rps", Unit.REQUESTS, Span.SLIDING, 40, SECOND)
        times = []
        async with fleet(own_redis.url) as gateways:
            loop = asyncio.get_running_loop()
            stop = asyncio.Event()

            async def client(gateway):
                while not stop.is_set():
                    asked = loop.time()
                    if await gateway.admit((rule,)) is not None:
                        times.append((asked, loop.time()))
                    soon = asyncio.Event()
                    loop.call_later(0.01, soon.set)
                    await soon.wait()

            clients = [
                asyncio.create_task(client(gateway))  # noqa: TID251
                for gateway in gateways
                for _ in range(3)
            ]
            await until(lambda: len(times) > 100)
            own_redis.kill()
            killed = loop.time()
            await until(lambda: all(g.limits.mode is Mode.ALONE for g in gateways))
            alone = len(times)
            await until(lambda: len(times) > alone + 60)
            own_redis.start()
            await until(lambda: all(g.limits.mode is Mode.SHARED for g in gateways))
            shared = len(times)
            await until(lambda: len(times) > shared + 100)
            stop.set()
            await asyncio.gather(*clients)
        for begin, _ in times:
            # Granted for certain within one period: after it began, and before it ended.
            inside = [asked for asked, told in times if asked >= begin and told < begin + 1]
            if begin > killed + 1 or begin < killed - 1:
                assert len(inside) <= rule.max

    run(scenario())


@pytest.mark.slow
def test_lost_counts_are_put_back(redis):
    async def scenario():
        async with fleet(redis.url, 2, call_s_max=PATIENT_S) as gateways:
            for gateway in gateways:
                for _ in range(20):
                    assert await gateway.admit() is not None
            redis.ask("FLUSHALL")
            for gateway in gateways:
                with contextlib.suppress(StoreUnavailableError):
                    await gateway.limits._beat()
            assert all(gateway.limits.mode is Mode.ALONE for gateway in gateways)
            await until(lambda: all(g.limits.mode is Mode.SHARED for g in gateways))
            for _ in range(100):
                for gateway in gateways:
                    await gateway.admit()
            assert sum(gateway.granted for gateway in gateways) == RPM.max

    run(scenario())


@pytest.mark.slow
def test_a_key_that_vanishes_is_noticed_at_its_next_use(redis):
    async def scenario():
        async with fleet(redis.url, 1, call_s_max=PATIENT_S) as (one,):
            for _ in range(40):
                assert await one.admit() is not None
            for key in await one.link.command("KEYS", "tt:{acme}:*"):
                await one.link.command("DEL", key)
            assert await one.admit() is not None
            await until(lambda: one.limits.mode is Mode.SHARED)
            for _ in range(100):
                await one.admit()
            assert one.granted == RPM.max

    run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["closed", "open"])
def test_alone_it_may_grant_nothing_or_everything(own_redis, on_error):
    async def scenario():
        async with fleet(own_redis.url, 1, on_error=on_error) as (one,):
            assert await one.admit() is not None
            own_redis.kill()
            if on_error == "open":
                for _ in range(150):
                    assert await one.admit() is not None
            else:
                for _ in range(10):
                    with pytest.raises(StoreUnavailableError, match="closed"):
                        await one.admit()
            own_redis.start()
            await until(lambda: one.limits.mode is Mode.SHARED)
            # What was granted without limit counts too.
            assert (await one.admit() is None) == (on_error == "open")

    run(scenario())


@pytest.mark.slow
def test_requests_at_once_hold_their_places_through_an_outage(own_redis):
    async def scenario():
        async with fleet(own_redis.url, 2) as (one, two):
            before = [await one.admit((PARALLEL,)) for _ in range(3)]
            own_redis.kill()
            alone = [await one.admit((PARALLEL,)) for _ in range(10)]
            # Five are its part, three run already.
            assert sum(place is not None for place in alone) == 2
            own_redis.start()
            await until(lambda: one.limits.mode is two.limits.mode is Mode.SHARED)
            later = [await two.admit((PARALLEL,)) for _ in range(10)]
            assert sum(place is not None for place in later) == 5
            for place in (*before, *alone):
                if place is not None:
                    one.limits.settle(place, ONE)
            await paid([one])
            later = [await two.admit((PARALLEL,)) for _ in range(10)]
            assert sum(place is not None for place in later) == 5

    run(scenario())


def test_what_is_seen_after_an_outage_began_does_not_widen_a_part():
    outage = Outage()
    place = Place("acme", RPM)
    four = Fellows(3, 4)
    assert outage.allowance(place, four, 1) == 25
    outage.seen[place] = (60, 10 * SECOND)
    outage.begin(20 * SECOND)
    outage.seen[place] = (0, 30 * SECOND)
    assert outage.allowance(place, four, 40 * SECOND) == 10
    assert sum(outage.allowance(place, Fellows(n, 4), 40 * SECOND) for n in range(4)) == 40
    assert outage.allowance(place, four, 3620 * SECOND) == 25
    # Seen so long ago that nothing of it counts.
    outage.begin(4000 * SECOND)
    assert outage.allowance(place, four, 4001 * SECOND) == 25
