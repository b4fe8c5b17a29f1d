# SPDX-License-Identifier: Apache-2.0
"""Several gateways that share a month in PostgreSQL: together they grant what it allows."""

import asyncio
import random
from contextlib import closing

import pytest

from taketurns.core.limits import Admitted, Amounts, Ledger, LimitRule, Span, Unit
from taketurns.gateway.marks import block_of
from taketurns.gateway.quotas import LOOK_US, Covered, Quotas
from taketurns.ports.clock import VirtualClock
from taketurns.ports.stores import QuotaKey
from taketurns.stores.postgres_quotas import PostgresQuotaStore
from taketurns.system import SystemClock

REQUESTS = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 1000)
TOKENS = LimitRule("tokens", Unit.TOKENS, Span.MONTH, 20_000)
TOTAL = LimitRule("all", Unit.REQUESTS, Span.MONTH, 1500, total=True)
KEY = QuotaKey("2026-11", "requests:trial", "acme")
SAFETY_S = 60
BLOCK = 8
ONE = Amounts()


class Gateway:
    """What a gateway does with its months."""

    def __init__(self, url, clock, rules=(REQUESTS,), block=lambda _: BLOCK):
        self.rules = rules
        self.store = PostgresQuotaStore(url)
        self.ledger = Ledger()
        self.quotas = Quotas(self.store, self.ledger, rules, lambda: "2026-11", clock, block=block)
        self.granted = 0

    async def admit(self, tenant="acme", amounts=ONE):
        while True:
            admitted = self.ledger.admit(self.rules, tenant, amounts, now_us=0, month="2026-11")
            if not isinstance(admitted, Admitted):
                return None
            if self.quotas.covers(tenant, admitted):
                break
            covered = await self.quotas.cover(tenant, admitted)
            if covered is Covered.YES:
                break
            admitted.settle(None)
            self.quotas.settled(tenant, admitted)
            if covered is Covered.NO:
                return "store"
        self.granted += admitted.charges[0].amount
        return admitted

    def settle(self, tenant, admitted, used):
        self.granted += (
            0 if used is None else used.of(admitted.charges[0].rule.unit)
        ) - admitted.charges[0].amount
        admitted.settle(used)
        self.quotas.settled(tenant, admitted)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, SAFETY_S))


def mark(url, key=KEY):
    with closing(PostgresQuotaStore(url)) as store:
        return store.load("")[key]


async def until(condition):
    while not condition():
        soon = asyncio.Event()
        asyncio.get_running_loop().call_later(0.005, soon.set)
        await soon.wait()


@pytest.mark.slow
def test_together_they_grant_the_limit_and_no_more(postgres):
    async def scenario():
        clock = SystemClock(asyncio.get_running_loop())
        gateways = [Gateway(postgres, clock) for _ in range(4)]
        for gateway in gateways:
            await gateway.quotas.start()

        async def client(gateway):
            granted = 0
            while isinstance(await gateway.admit(), tuple):
                granted += 1
            return granted

        clients = [client(gateway) for gateway in gateways for _ in range(25)]
        granted = sum(await asyncio.gather(*clients))
        assert REQUESTS.max - 4 * BLOCK <= granted <= REQUESTS.max
        assert granted <= mark(postgres) <= REQUESTS.max
        for gateway in gateways:
            await gateway.quotas.aclose()
        # Who stops has given back what it didn't grant.
        assert mark(postgres) == granted

    run(scenario())


@pytest.mark.slow
def test_with_tokens_that_come_otherwise_than_reserved_the_mark_is_never_too_low(postgres):
    key = QuotaKey("2026-11", "tokens:tokens", "acme")

    async def scenario():
        clock = SystemClock(asyncio.get_running_loop())
        gateways = [Gateway(postgres, clock, (TOKENS,), block_of) for _ in range(3)]
        for gateway in gateways:
            await gateway.quotas.start()
        rng = random.Random(7)

        async def client(gateway):
            for _ in range(15):
                admitted = await gateway.admit(amounts=Amounts(1, 10, rng.randrange(200)))
                if isinstance(admitted, tuple):
                    used = rng.choice([None, Amounts(1, 10, rng.randrange(300))])
                    gateway.settle("acme", admitted, used)

        await asyncio.gather(*[client(gateway) for gateway in gateways for _ in range(8)])
        for gateway in gateways:
            await gateway.quotas.aclose()
        assert mark(postgres, key) == sum(gateway.granted for gateway in gateways)

    run(scenario())


def test_what_others_take_and_give_back_is_seen_within_ten_seconds(postgres):
    async def scenario():
        clock = VirtualClock()
        one, two = Gateway(postgres, clock), Gateway(postgres, clock)
        for gateway in (one, two):
            await gateway.quotas.start()
        assert isinstance(await one.admit(), tuple)
        for _ in range(300):
            assert isinstance(await two.admit(), tuple)
        # Nothing was granted here since: it has to look.
        clock.run_until(clock.now_us() + LOOK_US)
        used = one.ledger.months
        await until(lambda: used()[("trial", "acme")][1] > 300)
        assert used()[("trial", "acme")][1] <= 301 + 2 * BLOCK
        # A tenant that was never seen here counts too.
        assert isinstance(await two.admit("pico"), tuple)
        clock.run_until(clock.now_us() + LOOK_US)
        await until(lambda: ("trial", "pico") in used())
        assert used()[("trial", "pico")][1] == BLOCK + 1
        for gateway in (two, one):
            await gateway.quotas.aclose()
        assert mark(postgres) == 301

    run(scenario())


def test_all_tenants_together_share_one_mark(postgres):
    async def scenario():
        clock = SystemClock(asyncio.get_running_loop())
        gateways = [Gateway(postgres, clock, (TOTAL,), lambda _: 1) for _ in range(2)]
        for gateway in gateways:
            await gateway.quotas.start()
        for number in range(40):
            assert await gateways[number % 2].admit(f"tenant-{number % 3}")
        for gateway in gateways:
            await gateway.quotas.aclose()
        assert mark(postgres, QuotaKey("2026-11", "requests:all", "")) == 40

    run(scenario())


@pytest.mark.slow
def test_while_the_database_is_away_what_was_reserved_is_served_and_the_rest_refused(own_postgres):
    url = own_postgres.new_database()

    async def scenario():
        clock = SystemClock(asyncio.get_running_loop())
        one, two = Gateway(url, clock), Gateway(url, clock)
        for gateway in (one, two):
            await gateway.quotas.start()
            assert isinstance(await gateway.admit(), tuple)
        own_postgres.stop()
        for gateway in (one, two):
            outcomes = [await gateway.admit() for _ in range(20)]
            served = sum(isinstance(outcome, tuple) for outcome in outcomes)
            assert 1 <= served <= 2 * BLOCK
            assert outcomes[-1] == "store"
            assert gateway.quotas.failing
        own_postgres.start()
        await until(lambda: not one.quotas.failing and not two.quotas.failing)
        for gateway in (one, two):
            assert isinstance(await gateway.admit(), tuple)
            await gateway.quotas.aclose()
        assert mark(url) == one.granted + two.granted

    run(scenario())
