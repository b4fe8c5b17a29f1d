# SPDX-License-Identifier: Apache-2.0
"""Engines are asked how they fare, drained by order, and a gateway without any isn't ready."""

from taketurns.testing.http_engine import Fault

TOKEN = "t" * 32
SOON = {"interval": "10ms", "timeout": "1s", "unhealthy_after": 2, "healthy_after": 2}


def one(chat_model, **engine):
    engine = {"url": "http://backend-0", "name": "gpu-0", "slots": 2, **engine}
    return {"chat": chat_model(engines=[engine], health={**SOON, "slow_start": "0s"})}


def state(site):
    (engine,) = site.pool("chat").availability.states()
    return engine


def test_a_server_whose_checks_fail_gets_nothing_until_they_succeed(play, chat_model):
    async def scenario(site):
        await site.until(lambda: state(site).state == "unhealthy")
        reply = await site.send("GET", "/readyz", tenant=None)
        assert (reply.status, reply.json) == (503, {"status": "no_engine"})
        site.backends[0].pages["/health"] = b"{}"
        await site.until(lambda: state(site).state == "up")
        assert (await site.send("GET", "/readyz", tenant=None)).status == 200
        assert (await site.chat()).status == 200
        del site.backends[0].pages["/health"]
        await site.until(lambda: state(site).state == "unhealthy")

    play(scenario, backends=1, models=one(chat_model, kind="vllm"))


def test_a_server_of_no_known_kind_is_not_asked(play, chat_model):
    async def scenario(site):
        for _ in range(5):
            assert (await site.chat()).status == 200
        assert all(request.method == "POST" for request in site.backends[0].requests)
        assert not site.backends[0].asked

    play(scenario, backends=1, models=one(chat_model))


def test_the_servers_gauge_moves_slots_that_are_found(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.pages = {"/health": b"", "/metrics": b"llamacpp:requests_deferred 6\n"}
        await site.until(lambda: any(r.target == "/metrics" for r in backend.asked))
        backend.hold()
        held = [site.start(site.chat()) for _ in range(20)]
        # Six of eight wait inside: two are worked on, but it's lowered by half at most.
        await site.until(lambda: state(site).slots == 4)
        assert (state(site).auto, state(site).waiting) == (True, 6)
        text = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_engine_queue{engine="gpu-0",model="chat"} 6.0' in text
        assert 'taketurns_engine_slot_limit{engine="gpu-0",model="chat"} 4.0' in text
        backend.release()
        assert {(await task).status for task in held} == {200}

    play(scenario, backends=1, models=one(chat_model, kind="llamacpp", slots="auto"))


def test_an_engine_is_drained_and_used_again_by_order(play, chat_model):
    async def scenario(site):
        path = "/pools/chat/engines/gpu-0/"
        assert (await site.admin(path + "drain", method="POST")).status == 401
        reply = await site.admin(path + "drain", TOKEN)
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")
        reply = await site.admin(path + "drain", TOKEN, method="POST")
        assert (reply.status, reply.json["state"], reply.json["slots"]) == (200, "drained", 0)
        waiting = site.start(site.chat())
        await site.queued("chat", 1)
        text = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_engine_state{engine="gpu-0",model="chat",state="drained"} 1.0' in text
        reply = await site.admin(path + "resume", TOKEN, method="POST")
        assert (reply.json["state"], reply.json["slots"]) == ("up", 2)
        assert (await waiting).status == 200
        for wrong in ("/pools/chat/engines/gpu-9/drain", "/pools/x/engines/gpu-0/drain"):
            reply = await site.admin(wrong, TOKEN, method="POST")
            assert (reply.status, reply.error["code"]) == (404, "engine_not_found")
        assert (await site.admin(path + "stop", TOKEN, method="POST")).status == 404

    health = {"no_engine_wait": "60s"}
    engine = {"url": "http://backend-0", "name": "gpu-0", "slots": 2}
    models = {"chat": chat_model(engines=[engine], health=health)}
    play(scenario, backends=1, models=models, server={"admin_token": TOKEN})


def test_failures_are_counted_by_reason(play, chat_model):
    async def scenario(site):
        site.backends[0].faults.update(
            {1: Fault(status=500), 2: Fault(reset_at=0), 3: Fault(status=400)}
        )
        assert [(await site.chat()).status for _ in range(4)] == [502, 502, 400, 200]
        failures = state(site).failures
        none = dict.fromkeys(("full", "timeout", "unreachable", "misfit"), 0)
        assert failures == {"status": 1, "broken": 1, **none}
        text = (await site.admin("/metrics")).body.decode()
        labels = 'engine="gpu-0",model="chat",reason="broken"'
        assert f"taketurns_engine_failures_total{{{labels}}} 1.0" in text

    play(scenario, backends=1, models=one(chat_model))


def test_a_reload_changes_what_is_asked(play, chat_model):
    async def scenario(site):
        await site.until(lambda: state(site).state == "unhealthy")
        config = site.gateway.config
        section = config.models["chat"]
        health = section.health.model_copy(update={"path": "/v1/models"})
        models = {"chat": section.model_copy(update={"health": health})}
        site.gateway.reload(lambda: config.model_copy(update={"models": models}))
        await site.until(lambda: state(site).state == "up")

    play(scenario, backends=1, models=one(chat_model, kind="vllm"))
