# SPDX-License-Identifier: Apache-2.0
"""A reload changes the configuration whole or not at all, and never the requests under way."""

import json

import pytest

from taketurns.config.model import Config
from taketurns.core.model import Tenant
from taketurns.errors import ConfigError, ConfigFault
from taketurns.gateway.auth import mint
from taketurns.gateway.reload import check_reload


def changed(config, **sections):
    """Return a configuration with other sections, merged two levels deep."""
    data = config.model_dump(exclude_unset=True)
    for section, entries in sections.items():
        for name, fields in entries.items():
            data[section][name] = {**data[section].get(name, {}), **fields}
    return Config.model_validate(data)


def reload(site, **sections):
    wanted = changed(site.gateway.config, **sections)
    site.gateway.reload(lambda: wanted)
    return site.gateway.config is wanted


def test_a_new_tenant_is_served_and_a_suspended_one_is_not(play):
    async def scenario(site):
        key = mint()
        assert reload(
            site,
            tenants={
                "newcomer": {"tier": "production", "keys": (key.line,)},
                "globex": {"suspended": True},
            },
        )
        site.keys["newcomer"] = key.key
        assert (await site.chat(tenant="newcomer")).status == 200
        assert (await site.chat(tenant="globex")).status == 401
        assert (await site.chat(tenant="acme")).status == 200
        assert site.records[0].tenant == "newcomer"

    play(scenario)


def test_more_slots_start_what_waits_and_fewer_take_nothing_back(play, chat_model):
    async def scenario(site):
        held = await site.fill()
        waiting = [site.start(site.chat()) for _ in range(2)]
        await site.queued("chat", 2)
        engines = site.gateway.config.model_dump(exclude_unset=True)["models"]["chat"]["engines"]
        assert reload(site, models={"chat": {"engines": ({**engines[0], "slots": 3},)}})
        await site.queued("chat", 1)
        assert site.scheduler("chat").running == 3
        assert reload(site, models={"chat": {"engines": ({**engines[0], "slots": 1},)}})
        assert site.scheduler("chat").running == 3
        site.engines["gpu-0"].release()
        for task in [*held, *waiting]:
            assert (await task).status == 200

    play(scenario, models={"chat": chat_model()})


def test_no_slots_drain_an_engine_until_it_has_some_again(play, chat_model):
    engines = [
        {"url": f"http://fake:{8 + number}", "name": f"gpu-{number}", "slots": 2}
        for number in (0, 1)
    ]

    async def scenario(site):
        for engine in site.engines.values():
            engine.hold()
        held = [site.start(site.chat()) for _ in range(4)]
        await site.until(lambda: sum(len(e.calls) for e in site.engines.values()) == 4)
        drained = {**engines[0], "slots": 0}
        assert reload(site, models={"chat": {"engines": (drained, engines[1])}})
        for engine in site.engines.values():
            engine.release()
        for task in held:
            assert (await task).status == 200
        for _ in range(4):
            assert (await site.chat()).status == 200
        assert [len(site.engines[name].calls) for name in ("gpu-0", "gpu-1")] == [2, 6]
        assert reload(site, models={"chat": {"engines": tuple(engines)}})
        assert (await site.chat()).status == 200
        assert len(site.engines["gpu-0"].calls) == 3

    play(scenario, models={"chat": chat_model(engines=engines)})


def test_weights_caps_and_the_quantum_that_follows_them_hold_at_once(play):
    async def scenario(site):
        held = await site.fill()
        assert reload(site, tenants={"globex": {"weight": 4, "parallel": 2}})
        scheduler = site.scheduler("chat")
        (row,) = scheduler.snapshot().tiers[0].tenants
        assert (row.tenant, row.weight, row.cap) == ("globex", 4, 2)
        ring = scheduler._tiers.states[0].ring
        # A quantum is one request over the largest weight.
        assert ring.quantum == 1000 // 4
        assert scheduler._tenants["globex"] == Tenant("globex", 4, 2)
        site.engines["gpu-0"].release()
        for task in held:
            assert (await task).status == 200

    play(scenario)


def test_what_cant_change_is_refused_whole_and_named(play):
    async def scenario(site):
        before = site.gateway.config
        assert not reload(
            site,
            tenants={"acme": {"weight": 9}},
            models={"chat": {"endpoints": ("chat",), "queue_max": 7}},
            tiers={"trial": {"floor": "5%"}},
        )
        assert site.gateway.config is before
        metrics = (await site.admin("/metrics")).body.decode()
        assert "taketurns_config_last_reload_successful 0.0" in metrics
        assert reload(site, tenants={"acme": {"weight": 9}})
        metrics = (await site.admin("/metrics")).body.decode()
        assert "taketurns_config_last_reload_successful 1.0" in metrics
        assert (await site.chat()).status == 200

    play(scenario)


def test_an_engine_that_is_left_out_gets_nothing_more_and_finishes_what_it_has(play, chat_model):
    engines = tuple(
        {"url": f"http://fake:{8 + number}", "name": f"gpu-{number}", "slots": 1}
        for number in (0, 1)
    )

    async def scenario(site):
        site.engines["gpu-1"].hold()
        held = [*await site.fill(), site.start(site.chat())]
        await site.until(lambda: site.engines["gpu-1"].calls)
        waiting = site.start(site.chat())
        await site.queued("chat", 1)
        assert reload(site, models={"chat": {"engines": (engines[1],)}})
        slots = {state.name: state.slots for state in site.pool("chat").availability.states()}
        assert slots == {"gpu-0": 0, "gpu-1": 1}
        site.engines["gpu-0"].release()
        site.engines["gpu-1"].release()
        for task in [*held, waiting]:
            assert (await task).status == 200
        assert len(site.engines["gpu-0"].calls) == 1

    play(scenario, models={"chat": chat_model(engines=list(engines))})


def test_a_file_with_faults_changes_nothing(play):
    async def scenario(site):
        before = site.gateway.config

        def read():
            raise ConfigError([ConfigFault("tenants", "is missing")])

        site.gateway.reload(read)
        assert site.gateway.config is before
        assert (await site.chat()).status == 200

    play(scenario)


@pytest.mark.parametrize(
    ("sections", "paths"),
    [
        ({"tenants": {"acme": {"weight": 2}}}, []),
        ({"tiers": {"trial": {"queue_timeout": 1}}}, []),
        # What was measured for no target so far can't be predicted.
        ({"models": {"chat": {"wait_targets": {"trial": 1}}}}, ["models.chat"]),
        ({"tiers": {"trial": {"wait_target": 1}}}, ["models.chat", "models.embed"]),
        ({"models": {"chat": {"tenants": ("acme",), "quantum": 5}}}, []),
        ({"models": {"chat": {"queue_max": 1}}}, ["models.chat.queue_max"]),
        ({"tiers": {"trial": {"floor": "5%", "queue_timeout": 2}}}, ["tiers.trial.floor"]),
        ({"tiers": {"gold": {"rank": 7}}}, ["tiers"]),
        ({"models": {"chat": {"cost": "tokens"}}}, ["models.chat.cost"]),
        (
            {
                "models": {
                    "chat": {"engines": ({"url": "http://a"}, {"url": "http://b", "name": "gpu-0"})}
                }
            },
            ["models.chat.engines[1].url"],
        ),
        ({"models": {"chat": {"engines": ({"url": "http://a"}, {"url": "http://b"})}}}, []),
    ],
)
def test_every_place_that_cant_change_is_named(play, sections, paths):
    async def scenario(site):
        new = changed(site.gateway.config, **sections)
        if paths == []:
            check_reload(site.gateway.config, new)
            return
        with pytest.raises(ConfigError) as raised:
            check_reload(site.gateway.config, new)
        assert [fault.path for fault in raised.value.faults] == paths
        assert "restart" in raised.value.faults[0].hint.lower()

    play(scenario)


def test_a_wait_target_can_change_where_there_was_one(play):
    async def scenario(site):
        new = changed(site.gateway.config, tiers={"production": {"wait_target": 9}})
        check_reload(site.gateway.config, new)
        assert reload(site, tiers={"production": {"wait_target": 9}})
        assert site.pool("chat").model.wait_target_us["production"] == 9_000_000

    tiers = {"production": {"rank": 0, "wait_target": 3}, "trial": {"rank": 1}}
    play(scenario, tiers=tiers)


# Engines that come and go

FIRST = {"url": "http://backend-0", "slots": 1}


def engines_of(site, *parts):
    """Return a section with these engines; their URLs may name a backend by its number."""
    served = [
        {**part, "url": site.backends[part["url"]].url}
        if isinstance(part.get("url"), int)
        else part
        for part in parts
    ]
    return {"chat": {"engines": tuple(served)}}


def known(site):
    pool = site.pool("chat")
    names = {engine.name for engine in pool.turns.scheduler.snapshot().engines}
    assert names == {state.name for state in pool.availability.states()} == set(pool.engines)
    return names


def test_an_engine_that_is_added_serves_at_once(play, chat_model):
    async def scenario(site):
        first, second = site.backends
        first.hold()
        held = site.start(site.chat())
        await first.executed.reached(1)
        waiting = site.start(site.chat())
        await site.queued("chat", 1)
        parts = ({"url": 0, "slots": 1}, {"url": 1, "model": "other"})
        assert reload(site, models=engines_of(site, *parts))
        assert (await waiting).status == 200
        assert [json.loads(request.body)["model"] for request in second.requests] == ["other"]
        listed = (await site.admin("/metrics")).body.decode()
        assert f'engine="127.0.0.1:{second.port}"' in listed
        first.release()
        assert (await held).status == 200

    play(scenario, models={"chat": chat_model(engines=[FIRST])}, backends=2)


def test_an_engine_comes_back_by_a_reload_while_it_is_known_and_later(play, chat_model):
    async def scenario(site):
        zero, one = ({"url": number, "name": f"gpu-{number}"} for number in (0, 1))
        assert reload(site, models=engines_of(site, zero, one))
        assert reload(site, models=engines_of(site, one))
        assert (await site.chat()).status == 200
        # Left out, and known: as it was.
        before = site.pool("chat").engines["gpu-0"]
        assert reload(site, models=engines_of(site, one, zero))
        assert site.pool("chat").engines["gpu-0"] is before
        # Left out for two reloads: forgotten.
        for _ in range(2):
            assert reload(site, models=engines_of(site, one))
        assert known(site) == {"gpu-1"}
        assert reload(site, models=engines_of(site, zero))
        assert reload(site, models=engines_of(site, zero))
        assert known(site) == {"gpu-0"}
        assert (await site.chat()).status == 200
        assert [len(backend.requests) for backend in site.backends] == [1, 1]

    models = {"chat": chat_model(engines=[{**FIRST, "name": "gpu-0"}])}
    play(scenario, models=models, backends=2)


def test_another_engine_of_the_same_name_waits_until_the_first_has_ended(play, chat_model, caplog):
    async def scenario(site):
        one = {"url": 1, "name": "gpu-1"}
        site.backends[0].hold()
        held = site.start(site.chat())
        await site.backends[0].executed.reached(1)
        assert reload(site, models=engines_of(site, one))
        other = {"url": 1, "name": "gpu-0"}
        assert not reload(site, models=engines_of(site, other, one))
        assert "models.chat.engines[0]: has other settings than gpu-0" in caplog.text
        site.backends[0].release()
        assert (await held).status == 200
        await site.settle()
        assert reload(site, models=engines_of(site, other))
        assert (await site.chat()).status == 200
        assert len(site.backends[1].requests) == 1

    models = {"chat": chat_model(engines=[{**FIRST, "name": "gpu-0"}])}
    play(scenario, models=models, backends=2)


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"embedded": "smollm2"}, "adds an embedded engine, and those are loaded at the start"),
        ({"url": "http://fake:7//v"}, "its URL or key can't be used"),
    ],
)
def test_an_engine_that_cant_be_added_changes_nothing(play, caplog, part, fault):
    async def scenario(site):
        before = known(site)
        good = {"url": "http://fake:5", "name": "gpu-0"}
        wanted = engines_of(site, {"url": "http://fake:1", "name": "gpu-0"}, good | {"name": "b"})
        wanted["chat"]["engines"] += (part,)
        assert not reload(site, models=wanted, tenants={"acme": {"weight": 9}})
        assert f"models.chat.engines[2]: {fault}" in caplog.text.replace("engine fake:7: ", "")
        assert known(site) == before
        assert (await site.chat()).status == 200

    play(scenario)


def test_an_embedding_engine_is_added_and_what_all_can_cut_off_follows(play, embed_model):
    async def scenario(site):
        assert (await site.embed(["a"])).status == 200
        assert site.pool("embed").truncates == {"end"}
        tei = {"url": site.backends[1].url, "kind": "tei"}
        assert reload(site, models={"embed": {"engines": (tei,)}})
        assert site.pool("embed").truncates == {"start", "end"}
        assert (await site.embed(["a"])).status == 200
        assert site.backends[1].requests[-1].target == "/embed"

    engines = [{"url": "http://backend-0", "kind": "vllm"}]
    play(scenario, models={"embed": embed_model(engines=engines)}, backends=2)


def test_an_engine_that_would_change_how_all_are_asked_takes_a_restart(play, embed_model, caplog):
    async def scenario(site):
        served = site.gateway.config.models["embed"].engines
        more = ({"url": "http://fake:3", "kind": "infinity"},)
        parts = tuple(part.model_dump(exclude_unset=True) for part in served)
        assert not reload(site, models={"embed": {"engines": (*parts, *more)}})
        assert "models.embed.engines: turn rerank from pairs to query. Restart" in caplog.text

    engines = [{"url": "http://fake:2", "kind": "vllm"}]
    endpoints = ["rerank"]
    play(
        scenario,
        models={"embed": embed_model(endpoints=endpoints, engines=engines, dimensions=False)},
    )
