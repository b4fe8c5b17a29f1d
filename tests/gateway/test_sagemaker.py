# SPDX-License-Identifier: Apache-2.0
"""SageMaker's contract: one URL, told apart by shape; the tenant comes from the platform."""

import json

import pytest

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
SERVER = {"sagemaker": True}


@pytest.fixture
def models(chat_model, embed_model):
    return {
        "chat": chat_model(),
        "embed": embed_model(endpoints=["embeddings", "rerank"]),
    }


def invoke(site, body, attributes="tenant=acme", **more):
    headers = {} if attributes is None else {ATTRIBUTES: attributes}
    return site.post("/invocations", body, tenant=None, headers=headers, **more)


def test_ping_is_empty_and_200_until_it_drains(play, models):
    async def scenario(site):
        reply = await site.send("GET", "/ping", tenant=None)
        assert (reply.status, reply.body) == (200, b"")
        site.gateway.announce_stop()
        assert (await site.send("GET", "/ping", tenant=None)).status == 503

    play(scenario, models=models, server=SERVER)


def test_ping_is_503_while_no_engine_can_be_used(play, models):
    async def scenario(site):
        for model, name in (("chat", "gpu-0"), ("embed", "cpu-0")):
            assert (await site.send("GET", "/ping", tenant=None)).status == 200
            site.pool(model).availability.drain(name, drained=True)
        reply = await site.send("GET", "/ping", tenant=None)
        assert (reply.status, reply.body) == (503, b"")
        site.pool("chat").availability.drain("gpu-0", drained=False)
        assert (await site.send("GET", "/ping", tenant=None)).status == 200

    play(scenario, models=models, server=SERVER)


HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"messages": HELLO}, "choices"),
        ({"messages": HELLO, "taketurns": {"dialect": "cohere"}}, "message"),
        ({"message": "hi"}, "generation_id"),
        ({"prompt": "hi"}, "choices"),
        ({"input": ["a"]}, "data"),
        ({"texts": ["a"], "input_type": "search_query"}, "embeddings"),
        ({"query": "a", "documents": ["a"]}, "usage"),
        ({"query": "a", "documents": ["a"], "api_version": 2}, "meta"),
        ({"query": "a", "documents": ["a"], "api_version": 1, "return_documents": True}, "meta"),
        ({"text_1": "a", "text_2": "b"}, "data"),
    ],
)
def test_a_bodys_shape_says_what_is_asked(play, models, body, found):
    models["chat"]["endpoints"] = ["chat", "completions"]

    async def scenario(site):
        model = "chat" if "message" in str(body) or "prompt" in body else "embed"
        reply = await invoke(site, {"model": model, **body})
        assert reply.status == 200, reply.body
        assert found in reply.json
        assert site.records[-1].tenant == "acme"

    play(scenario, models=models, server=SERVER)


def test_tei_is_answered_with_bare_lists(play, models):
    async def scenario(site):
        assert len((await invoke(site, {"inputs": ["a", "b"]})).json) == 2
        assert len((await invoke(site, {"query": "a", "texts": ["a"]})).json) == 1

    play(scenario, models=models, server=SERVER)


def test_tenant_priority_and_deadline_come_from_the_attributes_or_the_body(play, models):
    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        tasks = [site.start(invoke(site, {"input": ["held"]}))]
        await engine.executed.reached(1)
        asked = [
            ("tenant=globex,priority=9,trace-7", {"input": ["later"]}),
            ("tenant=globex,priority=3", {"input": ["sooner"]}),
            (None, {"input": ["first"], "taketurns": {"tenant": "globex", "priority": 0}}),
        ]
        for number, (attributes, body) in enumerate(asked, 1):
            tasks.append(site.start(invoke(site, body, attributes)))
            await site.queued("embed", number)
        late = await invoke(site, {"input": ["x"]}, "tenant=globex,deadline-ms=20")
        assert (late.status, late.error["code"]) == (429, "queue_timeout")
        engine.release()
        assert [(await task).status for task in tasks] == [200] * 4
        order = [text for call in engine.calls for text in call.inputs]
        assert order == ["held", "first", "sooner", "later"]
        assert {record.tenant for record in site.records} == {"acme", "globex"}

    models["embed"]["batch"] = {"items_max": 1}
    play(scenario, models=models, server=SERVER)


def test_answers_are_streamed(play, models):
    async def scenario(site):
        body = {"messages": HELLO, "stream": True}
        reply = await invoke(site, body)
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert reply.body.endswith(b"data: [DONE]\n\n")
        told = await invoke(site, {"message": "hi"}, "tenant=acme,stream=true")
        lines = [json.loads(line) for line in told.body.splitlines()]
        assert lines[-1]["event_type"] == "stream-end"

    play(scenario, models=models, server=SERVER)


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (None, "The tenant is missing."),
        ("tenant=nobody", "The tenant is 'nobody', which is not configured."),
        ("tenant=acme,priority=x", "priority must be a whole number"),
        ("tenant=acme,deadline-ms=0", "deadline-ms must be a whole number"),
    ],
)
def test_what_is_wrong_with_an_attribute_is_said(play, models, attributes, told):
    async def scenario(site):
        reply = await invoke(site, {"input": ["x"]}, attributes)
        assert reply.status == 400
        assert reply.error["message"].startswith(told)

    play(scenario, models=models, server=SERVER)


def test_a_suspended_tenant_is_as_good_as_none(play, models):
    tenants = {"acme": {"tier": "production", "suspended": True}, "pico": {"tier": "trial"}}

    async def scenario(site):
        assert (await invoke(site, {"input": ["x"]})).status == 400
        alone = await invoke(site, {"input": ["x"]}, None)
        assert (alone.status, site.records[-1].tenant) == (200, "pico")

    play(scenario, models=models, server=SERVER, tenants=tenants)


def test_elsewhere_nobody_is_believed(play, models):
    async def scenario(site):
        for path in ("/ping", "/invocations"):
            assert (await site.post(path, {"input": ["x"]})).status == 404
        headers = {ATTRIBUTES: "tenant=globex"}
        assert (
            await site.post("/v1/embeddings", {"input": ["x"], "model": "embed"}, headers=headers)
        ).status == 200
        assert site.records[-1].tenant == "acme"
        body = {"input": ["x"], "model": "embed", "taketurns": {"tenant": "globex"}}
        reply = await site.post("/v1/embeddings", body)
        assert (reply.status, reply.error["param"]) == (400, "taketurns.tenant")

    play(scenario, models=models)
