# SPDX-License-Identifier: Apache-2.0
"""Whole gateways that share one Redis, on real sockets; only their engines are fakes."""

import asyncio
import contextlib

import aiohttp
import pytest
from gateway.conftest import CHAT, EMBED, configure, until

from taketurns.errors import ConfigError
from taketurns.gateway.availability import AUTO_START
from taketurns.gateway.run import run
from taketurns.testing.engine import FakeEmbeddingEngine, FakeGenerationEngine, ScriptedAnswer

SAFETY_S = 60
TIERS = {"production": {"rank": 0}, "trial": {"rank": 1}}
EVENT = b"data: {}\n\n"


class Fleet:
    """Gateways with the same configuration; each has fake engines of its own by the same names."""

    def __init__(self, url, *, count, models, tenants):
        self.url, self.count, self.models, self.tenants = url, count, models, tenants
        self.sites, self.engines, self.tasks = [], [], []

    async def __aenter__(self):
        self.stack = contextlib.AsyncExitStack()
        self.group = await self.stack.enter_async_context(asyncio.TaskGroup())
        self.http = await self.stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        config, self.keys = configure(
            tiers=TIERS, models=self.models, tenants=self.tenants, coordinator=self.url
        )
        for _ in range(self.count):
            await self.add(config)
        return self

    async def add(self, config):
        ready = asyncio.get_running_loop().create_future()
        task = self.group.create_task(run(config, ready.set_result, handle_signals=False))
        running = await ready
        engines = {}
        for pool in running.gateway.pools.all().values():
            for name in list(pool.engines):
                batches = hasattr(pool, "embed")
                fake = FakeEmbeddingEngine(name) if batches else FakeGenerationEngine(name)
                pool.engines[name] = engines[name] = fake
        self.sites.append(running)
        self.engines.append(engines)
        self.tasks.append(task)
        await until(lambda: running.gateway.coordination.ready)

    async def __aexit__(self, *error):
        for running in self.sites:
            running.stop.set()
        if error[0] is None:
            await asyncio.gather(*self.tasks)
        await self.stack.__aexit__(*error)

    async def post(self, at, path, tenant, body):
        url = f"http://127.0.0.1:{self.sites[at].port}{path}"
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"}
        async with self.http.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.read(), answer.headers

    def chat(self, at, tenant):
        body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
        return self.group.create_task(self.post(at, "/v1/chat/completions", tenant, body))

    def embed(self, at, tenant, texts):
        body = {"model": "embed", "input": texts}
        return self.group.create_task(self.post(at, "/v1/embeddings", tenant, body))

    def turns(self, at, model):
        return self.sites[at].gateway.pools.of(model).turns


TENANTS = {name: {"tier": "production"} for name in ("acme", "globex")}
CHAT_ONE_SLOT = {**CHAT, "engines": [{"url": "http://fake:1", "name": "gpu-0", "slots": 1}]}


def play(scenario, url, *, count=2, models=None, tenants=TENANTS):
    async def whole():
        async with asyncio.timeout(SAFETY_S):
            async with Fleet(
                url, count=count, models=models or {"chat": CHAT_ONE_SLOT}, tenants=tenants
            ) as fleet:
                await scenario(fleet)

    asyncio.run(whole())


def test_two_gateways_share_one_slot(redis):
    async def scenario(fleet):
        one, two = (engines["gpu-0"] for engines in fleet.engines)
        one.hold()
        first = fleet.chat(0, "acme")
        await one.executed.reached(1)
        second = fleet.chat(1, "globex")
        await until(lambda: fleet.turns(1, "chat").forecast.waiting == 1)
        assert len(two.executed) == 0
        one.release()
        assert [(await task)[0] for task in (first, second)] == [200, 200]
        assert len(two.executed) == 1

    play(scenario, redis.url)


def test_a_batch_has_only_its_own_gateways_texts_and_mixes_their_tenants(redis):
    embed = {**EMBED, "dimensions": False, "batch": {"items_max": 4}}

    async def scenario(fleet):
        one, two = (engines["cpu-0"] for engines in fleet.engines)
        one.hold()
        first = fleet.embed(0, "acme", ["first"])
        await one.executed.reached(1)
        waiting = [
            fleet.embed(0, "acme", ["a0", "a1"]),
            fleet.embed(0, "globex", ["g0", "g1"]),
            fleet.embed(1, "globex", ["other"]),
        ]
        await until(
            lambda: (
                fleet.sites[0].gateway.pools.of("embed").items == 5
                and fleet.turns(1, "embed").forecast.waiting == 5
            )
        )
        one.release()
        for task in (first, *waiting):
            assert (await task)[0] == 200
        assert [len(call.inputs) for call in one.calls] == [1, 4]
        assert [len(call.inputs) for call in two.calls] == [1]

    play(scenario, redis.url, models={"embed": embed})


def test_readiness_and_metrics_say_that_a_gateway_is_alone(own_redis):
    async def scenario(fleet):
        running = fleet.sites[0]
        admin = f"http://127.0.0.1:{running.admin_port}"
        async with fleet.http.get(f"{admin}/readyz") as answer:
            assert await answer.json() == {"status": "ready"}
        own_redis.kill()
        await until(lambda: running.gateway.coordination.alone)
        async with fleet.http.get(f"{admin}/readyz") as answer:
            assert (answer.status, (await answer.json())["detail"]) == (
                200,
                "without the coordinator",
            )
        async with fleet.http.get(f"{admin}/metrics") as answer:
            assert "taketurns_coordinator_alone 1.0" in await answer.text()
        assert (await fleet.chat(0, "acme"))[0] == 200
        own_redis.start()
        await until(lambda: not running.gateway.coordination.alone)
        assert (await fleet.chat(0, "acme"))[0] == 200

    play(scenario, own_redis.url, count=1)


def test_a_closed_gateway_refuses_while_the_coordinator_is_away(own_redis):
    async def scenario(fleet):
        running = fleet.sites[0]
        fleet.turns(0, "chat")._settings.on_store_error = "closed"
        engine = fleet.engines[0]["gpu-0"]
        engine.hold()
        runs = fleet.chat(0, "acme")
        await engine.executed.reached(1)
        waits = fleet.chat(0, "acme")
        await until(lambda: fleet.turns(0, "chat").forecast.waiting == 1)
        own_redis.kill()
        status, body, headers = await waits
        assert (status, headers["x-request-executed"]) == (503, "no")
        assert b"coordinator_unavailable" in body
        assert (await fleet.chat(0, "acme"))[0] == 503
        engine.release()
        assert (await runs)[0] == 200
        own_redis.start()
        await until(lambda: running.gateway.coordination.ready)
        assert (await fleet.chat(0, "acme"))[0] == 200

    play(scenario, own_redis.url, count=1)


def test_gateways_find_slots_together_and_a_refusal_to_one_lowers_them_for_both(redis):
    engine = {"url": "http://fake:1", "name": "gpu-0", "slots": "auto"}

    def limit(fleet, at):
        (state,) = fleet.sites[at].gateway.pools.of("chat").availability.states()
        return state.slots

    async def scenario(fleet):
        one, two = (engines["gpu-0"] for engines in fleet.engines)
        one.hold()
        two.hold()
        one._script.append(ScriptedAnswer((b"{}",), status=429))
        asked = [fleet.chat(at, "acme") for at in (0, 1) * 6]
        # Both together run no more than one finder begins with.
        await until(lambda: fleet.turns(0, "chat").forecast.waiting == 12 - AUTO_START)
        await until(lambda: len(one.executed) + len(two.executed) == AUTO_START)
        one.release()
        await until(lambda: limit(fleet, 0) < AUTO_START)
        await until(lambda: limit(fleet, 1) < AUTO_START)
        two.release()
        assert {(await task)[0] for task in asked} == {200}

    play(scenario, redis.url, models={"chat": {**CHAT, "engines": [engine]}})


def test_a_lingering_engine_gets_what_comes_in_the_meantime(redis):
    embed = {**EMBED, "dimensions": False, "batch": {"linger": "1s", "items_max": 4}}

    async def scenario(fleet):
        asked = [fleet.embed(0, "acme", [f"t{number}"]) for number in range(4)]
        assert {(await task)[0] for task in asked} == {200}
        # Nobody fills this one up.
        assert (await fleet.embed(1, "acme", ["alone"]))[0] == 200
        one, two = (engines["cpu-0"] for engines in fleet.engines)
        assert [len(call.inputs) for call in one.calls] == [4]
        assert [len(call.inputs) for call in two.calls] == [1]

    play(scenario, redis.url, models={"embed": embed})


def test_what_a_fleet_cannot_do_is_told_before_it_starts():
    with pytest.raises(ConfigError) as told:
        configure(
            models={"chat": {**CHAT, "scheduler": "shared_queue"}}, coordinator="redis://cache"
        )
    assert [fault.path for fault in told.value.faults] == ["models.chat.scheduler"]


def test_a_coordinator_that_is_none_is_told():
    with pytest.raises(ConfigError, match="memcached"):
        configure(coordinator="memcached://cache")
