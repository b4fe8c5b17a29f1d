# SPDX-License-Identifier: Apache-2.0
"""The admin port tells what the pools do, and keeps what names tenants behind a token."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taketurns.testing.engine import ScriptedAnswer, chat_answer

TOKEN = "t0ken-for-tests"


async def metrics(site):
    """Return the samples of a scrape as {(name, labels): value}."""
    reply = await site.admin("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def key(name, **labels):
    return (name, frozenset(labels.items()))


def test_metrics_count_what_happened(play):
    async def scenario(site):
        site.engines["gpu-0"]._script.append(
            ScriptedAnswer([chat_answer("a b c d", prompt_tokens=11)])
        )
        assert (await site.chat()).status == 200
        assert (await site.chat(tenant="globex")).status == 200
        assert (await site.chat(tenant="globex", fields={"n": 0})).status == 400
        assert (await site.chat(tenant=None)).status == 401
        assert (await site.embed(["one", "two"])).status == 200
        seen = await metrics(site)
        acme = {"model": "chat", "endpoint": "chat", "tier": "production", "tenant": "acme"}
        globex = acme | {"tenant": "globex"}
        nobody = {"model": "", "endpoint": "chat", "tier": "", "tenant": ""}
        requests = "taketurns_requests_total"
        assert seen[key(requests, **acme, outcome="completed")] == 1
        assert seen[key(requests, **globex, outcome="completed")] == 1
        assert seen[key(requests, **globex, outcome="invalid")] == 1
        assert seen[key(requests, **nobody, outcome="invalid")] == 1
        assert seen[key("taketurns_queue_wait_seconds_count", **acme)] == 1
        errors = "taketurns_errors_total"
        assert seen[key(errors, endpoint="chat", code="invalid_value")] == 1
        assert seen[key(errors, endpoint="chat", code="invalid_api_key")] == 1
        tokens = "taketurns_tokens_total"
        assert seen[key(tokens, model="chat", tenant="acme", direction="input")] == 11
        assert seen[key(tokens, model="chat", tenant="acme", direction="output")] == 4
        cost = "taketurns_served_cost_total"
        assert seen[key(cost, model="chat", tier="production", tenant="acme")] == 1000
        assert seen[key("taketurns_batch_items_sum", model="embed")] == 2
        assert seen[key("taketurns_batch_items_count", model="embed")] == 1
        assert seen[key("taketurns_slots", model="chat", engine="gpu-0")] == 2
        assert seen[key("taketurns_slots_in_use", model="chat", engine="gpu-0")] == 0
        assert seen[key("taketurns_debt_forgiven_total", model="chat")] == 0
        assert seen[key("taketurns_rounds_total", model="chat", tier="production")] >= 1
        assert seen[key("taketurns_draining")] == 0
        assert seen[key("taketurns_log_broken")] == 0
        assert any(name == "taketurns_build_info" for name, _ in seen)

    play(scenario)


def test_metrics_show_queue_and_slots_as_they_are(play):
    async def scenario(site):
        held = await site.fill()
        waiting = [site.start(site.chat(tenant=t)) for t in ("acme", "acme", "pico")]
        await site.queued("chat", 3)
        seen = await metrics(site)
        acme = {"model": "chat", "tier": "production", "tenant": "acme"}
        globex, pico = acme | {"tenant": "globex"}, acme | {"tier": "trial", "tenant": "pico"}
        assert seen[key("taketurns_queue_depth", **acme)] == 2
        assert seen[key("taketurns_queue_cost", **acme)] == 2000
        assert seen[key("taketurns_inflight", **globex)] == 2
        assert seen[key("taketurns_queue_depth", **pico)] == 1
        assert seen[key("taketurns_slots_in_use", model="chat", engine="gpu-0")] == 2
        assert key("taketurns_drr_deficit", **globex) in seen
        site.engines["gpu-0"].release()
        for task in [*held, *waiting]:
            assert (await task).status == 200

    play(scenario)


def test_strangers_and_unknown_models_make_no_labels(play):
    async def scenario(site):
        for number in range(5):
            await site.chat(model=f"nosuch-{number}")
            await site.send("GET", f"/nosuch/{number}")
            await site.send("GET", f"/v1/models/nosuch-{number}")
        text = (await site.admin("/metrics")).body
        assert b"nosuch" not in text

    play(scenario)


def test_past_the_bound_tenants_share_one_label(play, monkeypatch):
    monkeypatch.setattr("taketurns.telemetry.metrics.TENANTS_MAX", 1)

    async def scenario(site):
        held = await site.fill(tenant="globex")
        other = site.start(site.chat(tenant="pico"))
        own = site.start(site.chat(tenant="acme"))
        await site.queued("chat", 2)
        text = (await site.admin("/metrics")).body
        assert b'tenant="other"' in text
        assert b"globex" not in text
        site.engines["gpu-0"].release()
        for task in [*held, other, own]:
            assert (await task).status == 200
        seen = await metrics(site)
        shared = {"model": "chat", "endpoint": "chat", "tier": "production", "tenant": "other"}
        assert seen[key("taketurns_requests_total", **shared, outcome="completed")] == 2
        assert b"globex" not in (await site.admin("/metrics")).body

    play(scenario)


def test_one_shared_queue_has_a_label_of_its_own(play, chat_model):
    async def scenario(site):
        held = await site.fill()
        waiting = [site.start(site.chat(tenant=t)) for t in ("acme", "pico")]
        await site.queued("chat", 2)
        text = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_queue_depth{model="chat",tenant="*",tier="*"} 2.0' in text
        site.engines["gpu-0"].release()
        for task in [*held, *waiting]:
            assert (await task).status == 200

    play(scenario, models={"chat": chat_model(scheduler="shared_queue")})


def test_pools_show_the_schedulers_state(play):
    async def scenario(site):
        held = await site.fill()
        waiting = site.start(site.chat())
        await site.queued("chat", 1)
        reply = await site.admin("/pools", TOKEN)
        assert reply.status == 200
        assert set(reply.json) == {"chat", "embed"}
        pool = reply.json["chat"]
        (engine,) = pool["engines"]
        assert (engine["name"], engine["slots"], engine["in_flight"]) == ("gpu-0", 2, 2)
        assert (engine["state"], engine["limit"], engine["auto"]) == ("up", 2, False)
        production = next(tier for tier in pool["tiers"] if tier["name"] == "production")
        by_tenant = {tenant["tenant"]: tenant for tenant in production["tenants"]}
        assert by_tenant["acme"]["queued"] == 1
        assert by_tenant["globex"]["in_flight"] == 2
        site.engines["gpu-0"].release()
        for task in [*held, waiting]:
            assert (await task).status == 200

    play(scenario, server={"admin_token": TOKEN})


def test_a_waiting_ticket_is_explained(play):
    async def scenario(site):
        held = await site.fill()
        waiting = site.start(site.chat())
        await site.queued("chat", 1)
        requests = (await site.admin("/requests", TOKEN)).json
        assert len(requests) == 3
        assert {request["tenant"] for request in requests} == {"acme", "globex"}
        # The oldest comes first, and only what runs has an engine.
        assert [request["engine"] for request in requests] == ["gpu-0", "gpu-0", ""]
        ticket_id = requests[-1]["request_id"]
        reply = await site.admin(f"/pools/chat/tickets/{ticket_id}", TOKEN)
        assert reply.status == 200
        assert reply.json["ticket_id"] == ticket_id
        assert (reply.json["tenant"], reply.json["tier"]) == ("acme", "production")
        assert reply.json["tickets_ahead"] == 0
        site.engines["gpu-0"].release()
        for task in [*held, waiting]:
            assert (await task).status == 200
        reply = await site.admin(f"/pools/chat/tickets/{ticket_id}", TOKEN)
        assert (reply.status, reply.error["code"]) == (404, "ticket_not_found")
        reply = await site.admin("/pools/nosuch/tickets/x", TOKEN)
        assert reply.status == 404

    play(scenario, server={"admin_token": TOKEN})


def test_an_embeddings_request_is_explained_by_its_own_id(play, embed_model):
    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        first = site.start(site.embed(["a"]))
        await engine.executed.reached(1)
        waiting = site.start(site.embed(["b", "c"], tenant="globex"))
        await site.queued("embed", 2)
        request_id = (await site.admin("/requests", TOKEN)).json[-1]["request_id"]
        reply = await site.admin(f"/pools/embed/tickets/{request_id}", TOKEN)
        assert (reply.status, reply.json["ticket_id"]) == (200, f"{request_id}-0")
        engine.release()
        assert {(await task).status for task in (first, waiting)} == {200}

    play(scenario, server={"admin_token": TOKEN})


@pytest.mark.parametrize("path", ["/pools", "/requests", "/pools/chat/tickets/x"])
def test_without_a_configured_token_what_needs_one_is_off(play, path):
    async def scenario(site):
        for token in (None, "anything"):
            reply = await site.admin(path, token)
            assert (reply.status, reply.error["code"]) == (403, "admin_token_not_set")
            assert "server.admin_token" in reply.error["message"]

    play(scenario)


@pytest.mark.parametrize("path", ["/pools", "/requests", "/pools/chat/tickets/x"])
def test_a_wrong_token_is_401_and_health_and_metrics_need_none(play, path):
    async def scenario(site):
        for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1], "\u00e9", site.keys["acme"]):
            reply = await site.admin(path, token)
            assert (reply.status, reply.error["code"]) == (401, "invalid_admin_token")
        basic = {"Authorization": f"Basic {TOKEN}"}
        reply = await site.send("GET", path, tenant=None, headers=basic, base=site.admin_url)
        assert reply.status == 401
        for name in ("/metrics", "/livez", "/readyz"):
            assert (await site.admin(name)).status == 200

    play(scenario, server={"admin_token": TOKEN})


def test_a_token_of_bytes_that_are_no_text_is_401(play):
    async def scenario(site):
        reader, writer = await asyncio.open_connection("127.0.0.1", site.running.admin_port)
        head = b"GET /pools HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\xfe\r\n\r\n"
        writer.write(head)
        assert b" 401 " in await reader.readline()
        writer.close()

    play(scenario, server={"admin_token": TOKEN})


def test_a_fault_of_the_admin_side_is_a_bare_500_and_stands_in_the_log(play, caplog):
    async def scenario(site):
        site.gateway.snapshots = lambda: 1 / 0
        reply = await site.admin("/pools", TOKEN)
        assert (reply.status, reply.error["code"]) == (500, "internal_error")
        assert "ZeroDivisionError" not in reply.body.decode()

    play(scenario, server={"admin_token": TOKEN})
    assert "ZeroDivisionError" in caplog.text


def test_a_wrong_method_or_url_is_told(play):
    async def scenario(site):
        reply = await site.admin("/pools", TOKEN, method="POST")
        assert (reply.status, reply.headers["Allow"]) == (405, "GET")
        for path in ("/", "/v1/models", "/pools/", "/pools/chat/tickets", "/pools/a/b/c/d"):
            reply = await site.admin(path, TOKEN)
            assert (reply.status, reply.error["code"]) == (404, "unknown_url")

    play(scenario, server={"admin_token": TOKEN})
