# SPDX-License-Identifier: Apache-2.0
"""Gateways that share pools through a real Redis."""

import asyncio
import contextlib
import os

import pytest
from fleet.conftest import linked, run, until

from taketurns.aio import TurnExpiredError, TurnRefusedError
from taketurns.core.model import PoolRules, Tenant, Tier
from taketurns.fleet.settings import FleetSettings
from taketurns.fleet.turns import FleetTurns
from taketurns.testing.fault_proxy import UNHARMED, FaultProxy, Harm

PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
PARTS = ["queue", "tickets", "ring", "flows", "free", "engines", "own"]
RULES = PoolRules(quantum=10)
TIERS = (Tier("only"),)


@contextlib.asynccontextmanager
async def gateways(
    url,
    count,
    *,
    rules=RULES,
    tiers=TIERS,
    tenants=(),
    slots=2,
    on_decision=None,
    call_s_max=5.0,
    **settings,
):
    """So many gateways, each with its own link, which share one pool with one engine.

    They wait for answers longer than in service: a busy machine is no outage.
    """
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        made = []
        for number in range(count):
            link = await stack.enter_async_context(linked(url, call_s_max=call_s_max))
            shared = FleetSettings(f"g{number}", link, **settings)
            turns = FleetTurns(
                "pool",
                rules,
                tiers,
                tenants,
                settings=shared,
                clock=link._clock,
                on_decision=on_decision,
            )
            turns.link = link
            turns.set_engine("gpu", slots)
            turns.serve(tasks)
            made.append(turns)
        await until(lambda: all(turns.driver.talking for turns in made))
        try:
            yield made
        finally:
            for turns in made:
                turns.close()
            for turns in made:
                await turns.driver.wait_closed()


async def hold(turns, tenant, running, release, **how):
    """Take a turn, and keep it until told to let it go."""
    async with turns.turn(tenant, tier="only", **how) as turn:
        running.append((tenant, turn))
        await release.wait()


def test_slots_are_shared_and_go_on_to_who_waits_elsewhere(redis):
    async def scenario():
        async with gateways(redis.url, 2, slots=2) as (one, two), asyncio.TaskGroup() as tasks:
            running, first, second = [], asyncio.Event(), asyncio.Event()
            for _ in range(2):
                tasks.create_task(hold(one, "a", running, first))
            await until(lambda: len(running) == 2)
            waiting = tasks.create_task(hold(two, "b", running, second))
            await until(lambda: two.scheduler.queued == 1)
            await until(lambda: not two.driver._events)
            assert len(running) == 2
            first.set()
            await until(lambda: len(running) == 3)
            assert running[2][1].engine == "gpu"
            second.set()
            await waiting

    run(scenario())


def test_shares_are_by_weight_whatever_way_requests_come(redis):
    tenants = [Tenant("a", 1), Tenant("b", 2), Tenant("c", 4)]

    async def scenario():
        async with gateways(redis.url, 2, tenants=tenants, slots=0) as (one, two):
            order = []

            async def work(turns, tenant):
                async with turns.turn(tenant, tier="only", cost=10):
                    order.append(tenant)

            async with asyncio.TaskGroup() as tasks:
                # A by the first gateway, B by the second, C by both.
                for _ in range(70):
                    tasks.create_task(work(one, "a"))
                    tasks.create_task(work(two, "b"))
                    tasks.create_task(work(one, "c"))
                    tasks.create_task(work(two, "c"))
                await until(
                    lambda: (
                        one.holdings.queued == 140
                        and two.holdings.queued == 140
                        and not one.driver._events
                        and not two.driver._events
                    )
                )
                # Nothing was granted before all of it is queued.
                assert not order
                for turns in (one, two):
                    turns.set_engine("gpu", 2)
            # All are backlogged in the first 200 grants: there the shares are 1 : 2 : 4.
            counts = [order[:175].count(tenant) for tenant in "abc"]
            assert [round(count / 25) for count in counts] == [1, 2, 4]

    run(scenario())


def test_a_full_queue_a_deadline_and_a_cancel(redis):
    rules = PoolRules(quantum=10, tenant_queue_max=1)

    async def scenario():
        async with gateways(redis.url, 1, rules=rules, slots=1) as (turns,):
            async with turns.turn("a", tier="only"):
                async with asyncio.TaskGroup() as tasks:
                    release = asyncio.Event()
                    waiting = tasks.create_task(hold(turns, "a", [], release))
                    await until(lambda: turns.forecast.waiting == 1)
                    with pytest.raises(TurnRefusedError):
                        async with turns.turn("a", tier="only"):
                            pass
                    waiting.cancel()
                soon_us = turns.clock.now_us() + 20_000
                with pytest.raises(TurnExpiredError):
                    async with turns.turn("a", tier="only", deadline_us=soon_us):
                        pass
            assert len(turns.holdings) == 0
            async with turns.turn("a", tier="only") as turn:
                assert turn.engine == "gpu"

    run(scenario())


def test_a_gateway_that_goes_gives_its_slots_back_at_once(redis):
    async def scenario():
        async with gateways(redis.url, 2, slots=1) as (one, two):
            release = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                running = []
                held = tasks.create_task(hold(one, "a", running, release))
                await until(lambda: running)
                tasks.create_task(hold(two, "b", running, release))
                await until(lambda: two.holdings.queued == 1 and not two.driver._events)
                one.close()
                await until(lambda: len(running) == 2)
                held.cancel()
                release.set()

    run(scenario())


def test_a_gateway_goes_on_alone_with_its_share_and_comes_back(own_redis):
    async def scenario():
        async with gateways(own_redis.url, 2, slots=4) as (one, two):
            running, release = [], asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for turns in (one, two):
                    tasks.create_task(hold(turns, "a", running, release))
                await until(lambda: len(running) == 2)
                await until(lambda: all(len(t.driver.pool.members) == 2 for t in (one, two)))
                own_redis.kill()
                for turns in (one, two):
                    for _ in range(5):
                        tasks.create_task(hold(turns, "b", running, release))
                await until(lambda: one.alone and two.alone)
                # One of each gateway's two slots was in use before.
                await until(lambda: len(running) == 4)
                assert one.holdings.queued == two.holdings.queued == 4
                own_redis.start()
                await until(lambda: one.driver.talking and two.driver.talking)
                await until(lambda: not one.alone and not two.alone)
                await until(lambda: one.forecast.running == 4)
                assert len(running) == 4
                release.set()
            assert len(running) == 12

    run(scenario())


def test_half_open_connections_are_given_up_and_turns_go_on(own_redis):
    async def scenario():
        async with FaultProxy(own_redis.port) as proxy:
            proxy.harm = lambda _: Harm("hang", request_at=100_000)
            url = f"redis://127.0.0.1:{proxy.port}"
            async with gateways(url, 1, slots=2, call_s_max=0.25) as (one,):
                had = 0

                async def until_it(is_alone):
                    nonlocal had
                    while one.alone is not is_alone:
                        async with one.turn("a", tier="only"):
                            had += 1
                        # Alone, a turn is had without waiting for anything.
                        await asyncio.sleep(0)  # noqa: TID251

                await until_it(True)
                # What is connected anew dies at once, and nobody is told.
                proxy.harm = lambda _: Harm("hang", answer_at=0)
                before = had
                for _ in range(100):
                    async with one.turn("a", tier="only"):
                        had += 1
                assert one.alone
                assert had == before + 100
                proxy.harm = lambda _: UNHARMED
                await until_it(False)

    run(scenario())


def test_a_pool_that_is_wiped_is_put_together_again(own_redis):
    async def scenario():
        async with gateways(own_redis.url, 2, slots=2) as (one, two):
            running, release = [], asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for turns in (one, two):
                    for _ in range(3):
                        tasks.create_task(hold(turns, "a", running, release))
                await until(lambda: len(running) == 2)
                own_redis.ask("FLUSHALL")
                await until(lambda: one.driver.joins == two.driver.joins == 2)
                await until(lambda: one.forecast.running == 2 and one.forecast.waiting == 4)
                assert len(running) == 2
                release.set()
            assert len(running) == 6

    run(scenario())


def test_slots_are_kept_for_who_holds_none_in_the_whole_fleet(own_redis):
    rules = PoolRules(quantum=10, headroom_percent=50)

    async def scenario():
        async with gateways(own_redis.url, 2, rules=rules, slots=2) as (one, two):
            running, release = [], asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(hold(one, "a", running, release))
                await until(lambda: len(running) == 1)
                for turns in (one, two, two):
                    tasks.create_task(hold(turns, "a", running, release))
                await until(lambda: one.forecast.waiting == two.forecast.waiting == 3)
                # Also after it has been put together again, in whatever order.
                own_redis.ask("FLUSHALL")
                await until(lambda: one.driver.joins == two.driver.joins == 2)
                await until(lambda: one.forecast.running == 1 and one.forecast.waiting == 3)
                assert len(running) == 1
                tasks.create_task(hold(two, "b", running, release))
                await until(lambda: len(running) == 2)
                assert running[1][0] == "b"
                release.set()
            assert len(running) == 5

    run(scenario())


def test_the_same_goes_to_the_same_engine_whatever_way_it_comes(redis):
    rules = PoolRules(quantum=10, sticky=True)

    async def engine_of(turns, affinity):
        turn = turns.turn("a", tier="only")
        turn.prefer(affinity)
        async with turn:
            engine = turn.engine
        # Its slot is known to be free before the next is asked for.
        await until(lambda: not turns.driver._events and turns.forecast.running == 0)
        return engine

    async def scenario():
        async with gateways(redis.url, 2, rules=rules, slots=2) as (one, two):
            for turns in (one, two):
                turns.set_engine("cpu", 2)
                turns.set_engine("tpu", 2)
            await until(lambda: not one.driver._events and not two.driver._events)
            chosen = {}
            for affinity in range(1, 9):
                chosen[affinity] = await engine_of(one, affinity)
                assert await engine_of(two, affinity) == chosen[affinity]
            assert len(set(chosen.values())) > 1
            # An engine that one can't reach is none for its own.
            one.set_engine(chosen[1], 0)
            await until(lambda: not one.driver._events)
            assert await engine_of(one, 1) != chosen[1]
            assert await engine_of(two, 1) == chosen[1]

    run(scenario())


@pytest.mark.parametrize("part", PARTS if PROOF else ["queue", "engines"])
def test_a_key_that_is_deleted_is_noticed(own_redis, part):
    async def scenario():
        async with gateways(own_redis.url, 1, slots=2) as (one,):
            running, release = [], asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    tasks.create_task(hold(one, "a", running, release))
                await until(lambda: one.forecast.waiting == 2)
                own_redis.ask("DEL", one.driver.pool.base + part)
                await until(lambda: one.driver.joins == 2)
                release.set()
            assert len(running) == 4

    run(scenario())
