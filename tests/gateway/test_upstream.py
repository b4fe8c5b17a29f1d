# SPDX-License-Identifier: Apache-2.0
"""What engines get of a client's request, and what clients may ask of them."""

import json

import pytest

from taketurns.dialects.openai_generation import NOT_PASSED

MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"model": "chat", "messages": MESSAGES, "stream": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}


def backend(chat_model, **engine):
    return {"chat": chat_model(engines=[{"url": "http://backend-0", "name": "gpu-0"} | engine])}


def sent(site):
    # Engines of some kinds are asked for their gauges too.
    requests = site.backends[0].requests
    return [json.loads(request.body) for request in requests if request.method == "POST"]


def test_the_usage_of_a_stream_is_asked_for_and_kept_from_who_did_not_ask(play, chat_model):
    async def scenario(site):
        plain = await site.post("/v1/chat/completions", STREAM)
        asked = await site.post("/v1/chat/completions", STREAM | WITH_USAGE)
        assert b'"usage"' not in plain.body
        assert plain.body.endswith(b"data: [DONE]\n\n")
        assert asked.body.count(b'"usage":{"prompt_tokens":3,') == 1
        assert [body["stream_options"] for body in sent(site)] == [{"include_usage": True}] * 2
        assert [record.output_tokens for record in site.records] == [3, 3]

    play(scenario, backends=1, models=backend(chat_model))


def test_an_engine_that_refuses_stream_options_is_not_asked(play, chat_model):
    async def scenario(site):
        assert (await site.post("/v1/chat/completions", STREAM)).status == 200
        assert sent(site) == [STREAM]
        # The events are counted instead; this engine's first carries a token already.
        assert site.records[0].output_tokens == 2

    play(scenario, backends=1, models=backend(chat_model, ask_usage=False))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_tenants_have_salts_of_their_own_whatever_they_send(play, chat_model, kind):
    async def scenario(site):
        for tenant in ("acme", "acme", "globex"):
            assert (await site.chat(tenant=tenant, fields={"cache_salt": "acme"})).status == 200
        first, again, other = [body["cache_salt"] for body in sent(site)]
        assert first == again
        assert len({first, other, "acme"}) == 3
        assert len(first) == 64

    play(scenario, backends=1, models=backend(chat_model, kind=kind))


@pytest.mark.parametrize("apart", [True, False])
def test_an_engine_without_salts_that_keeps_prompts_is_told_not_to(play, chat_model, apart):
    async def scenario(site):
        assert (await site.chat(fields={"cache_prompt": True})).status == 200
        (body,) = sent(site)
        assert body["cache_prompt"] is not apart
        assert "cache_salt" not in body

    engine = {"kind": "llamacpp", "cache_per_tenant": apart}
    play(scenario, backends=1, models=backend(chat_model, **engine))


def test_salts_are_the_same_wherever_the_secret_is(play, chat_model):
    salts = []

    async def scenario(site):
        assert (await site.chat()).status == 200
        salts.extend(body["cache_salt"] for body in sent(site))

    models = backend(chat_model, kind="vllm")
    for secret in ("one", "one", "two"):
        play(scenario, backends=1, models=models, server={"secret": secret})
    assert salts[0] == salts[1] != salts[2]


@pytest.mark.parametrize("engine", [{"kind": "tgi"}, {"kind": "vllm", "cache_per_tenant": False}])
def test_an_engine_without_salts_gets_none(play, chat_model, engine):
    async def scenario(site):
        assert (await site.chat(fields={"cache_salt": "acme"})).status == 200
        assert "cache_salt" not in sent(site)[0]

    play(scenario, backends=1, models=backend(chat_model, **engine))


def test_priority_is_told_where_it_is_configured_and_is_the_gateways(play, chat_model):
    async def scenario(site):
        reply = await site.chat(fields={"priority": 0}, headers={"taketurns-priority": "40"})
        assert reply.status == 200
        assert sent(site)[0]["priority"] == 40

    play(scenario, backends=1, models=backend(chat_model, kind="vllm", priority=True))


def test_a_clients_priority_reaches_no_engine_that_would_refuse_it(play, chat_model):
    async def scenario(site):
        assert (await site.chat(fields={"priority": 0})).status == 200
        assert "priority" not in sent(site)[0]

    play(scenario, backends=1, models=backend(chat_model, kind="vllm"))


@pytest.mark.parametrize("field", sorted(NOT_PASSED - {"priority", "cache_salt"}))
def test_no_field_chooses_an_upstream_a_header_or_an_id(play, chat_model, field):
    async def scenario(site):
        value = {"X-Request-Id": "mine", "remote_host": "169.254.169.254"}
        assert (await site.chat(fields={field: value})).status == 200
        assert field not in sent(site)[0]
        (request,) = site.backends[0].requests
        assert request.id == site.records[0].request_id
        assert request.id != "mine"

    play(scenario, backends=1, models=backend(chat_model))


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {}},
        {"guided_regex": "a*"},
        {"chat_template": "{{ 1 }}"},
        {"grammar": 'root ::= "a"'},
        {"custom_logit_processor": "{}"},
    ],
)
def test_fields_that_run_programs_at_the_engine_are_refused(play, chat_model, fields):
    async def scenario(site):
        reply = await site.chat(fields=fields)
        assert (reply.status, reply.error["code"]) == (400, "field_refused")
        assert reply.error["param"] == next(iter(fields))
        assert sent(site) == []

    play(scenario, backends=1, models=backend(chat_model))


def test_the_operator_says_which_fields_are_refused(play, chat_model):
    async def scenario(site):
        assert (await site.chat(fields={"guided_json": {}})).status == 200
        assert (await site.chat(fields={"tools": []})).error["param"] == "tools"

    models = backend(chat_model)
    models["chat"]["fields_refused"] = ["tools"]
    play(scenario, backends=1, models=models)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": MESSAGES, "n": 5}, "n"),
        ({"messages": MESSAGES, "max_tokens": 101}, "max_tokens"),
        ({"messages": MESSAGES, "n": 2, "max_completion_tokens": 101}, "max_tokens"),
        ({"prompt": "p", "best_of": 5}, "n"),
        ({"prompt": ["p"] * 5}, "n"),
        ({"prompt": "p", "best_of": 10**9}, "best_of"),
        ({"prompt": "p", "max_tokens": 10**12}, "max_tokens"),
        ({"prompt": "p", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "p", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "p", "max_tokens": "x"}, "max_tokens"),
    ],
)
def test_how_much_a_request_may_ask_for_is_bounded(play, chat_model, body, param):
    async def scenario(site):
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        reply = await site.post(path, {"model": "chat", **body})
        assert (reply.status, reply.error["param"]) == (400, param)
        assert sent(site) == []
        few = {"model": "chat", "messages": MESSAGES, "n": 4, "max_tokens": 100}
        assert (await site.post("/v1/chat/completions", few)).status == 200

    models = backend(chat_model)
    models["chat"] |= {"choices_max": 4, "output_tokens_max": 100}
    play(scenario, backends=1, models=models)
