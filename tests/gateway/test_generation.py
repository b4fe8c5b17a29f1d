# SPDX-License-Identifier: Apache-2.0
"""Chat and completions: bytes pass unchanged, errors are told apart, hang-ups free the slot."""

import asyncio
import json

import openai
import pytest

from taketurns.errors import (
    REFUSED_UNEXECUTED,
    EngineBrokenError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from taketurns.testing.engine import ScriptedAnswer, chat_answer, chat_events
from taketurns.testing.http_engine import Fault

EVENTS = {"content-type": "text/event-stream"}
MESSAGES = [{"role": "user", "content": "hi"}]
STREAM = {"model": "chat", "messages": MESSAGES, "stream": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}


def backend_model(chat_model, **more):
    engine = {"url": "http://backend-0", "slots": 2, "name": "gpu-0", **more.pop("engine", {})}
    return {"chat": chat_model(engines=[engine], **more)}


def script(site, *answers):
    site.engines["gpu-0"]._script.extend(answers)


async def said(stream):
    return "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])


def test_a_whole_answer_passes_byte_by_byte(play):
    odd = b'{ "id":"x",  "choices":[{"index":0}],"unknown":{"deep":[1,2.50,"\\u00e9"]} }\n'

    async def scenario(site):
        script(site, ScriptedAnswer([odd[:9], odd[9:]], headers={"content-type": "text/odd"}))
        reply = await site.chat()
        assert (reply.status, reply.body) == (200, odd)
        assert reply.headers["Content-Type"] == "text/odd"
        (record,) = site.records
        assert (record.outcome, record.engine, record.stream) == ("completed", "gpu-0", False)

    play(scenario)


def test_a_request_reaches_the_engine_as_it_came(play):
    body = b'{"messages": [{"role":"user","content":"\\u00e9"}],\n "model":"chat","x":1.50}'

    async def scenario(site):
        assert (await site.post("/v1/chat/completions", body)).status == 200
        (call,) = site.engines["gpu-0"].calls
        assert (call.body, call.path, call.stream) == (body, "/v1/chat/completions", False)
        assert call.request_id == site.records[0].request_id

    play(scenario)


def test_an_engine_is_asked_by_its_own_name_and_key_and_not_with_the_callers(play, chat_model):
    async def scenario(site):
        reply = await site.post("/v1/completions", {"model": "chat", "prompt": "p", "seed": 7})
        assert reply.status == 200
        (request,) = site.backends[0].requests
        assert json.loads(request.body) == {"model": "org/big", "prompt": "p", "seed": 7}
        assert request.headers["authorization"] == "Bearer engine-key"
        assert request.target == "/v1/completions"
        assert request.id == site.records[0].request_id

    engine = {"model": "org/big", "key": "engine-key"}
    play(scenario, backends=1, models=backend_model(chat_model, engine=engine))


def test_a_stream_passes_byte_by_byte_whatever_its_pieces(play):
    whole = b": comment\n\n" + b"".join(chat_events("one two three", usage=True))

    async def scenario(site):
        pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
        script(site, ScriptedAnswer(pieces, headers=EVENTS))
        reply = await site.post("/v1/chat/completions", STREAM | WITH_USAGE)
        assert (reply.status, reply.body) == (200, whole)
        assert reply.headers["Content-Type"] == "text/event-stream"
        (record,) = site.records
        assert (record.outcome, record.status, record.stream) == ("completed", 200, True)
        assert (record.input_tokens, record.output_tokens) == (3, 3)
        assert record.first_byte_s is not None

    play(scenario)


def test_usage_counts_though_the_last_events_blank_line_is_missing(play):
    async def scenario(site):
        *events, usage, _done = chat_events("one two three", usage=True, prompt_tokens=9)
        pieces = [*events, usage.rstrip()]
        script(site, ScriptedAnswer(pieces, headers=EVENTS))
        reply = await site.post("/v1/chat/completions", STREAM | WITH_USAGE)
        assert reply.body == b"".join(pieces)
        assert (site.records[0].input_tokens, site.records[0].output_tokens) == (9, 3)

    play(scenario)


def test_the_first_event_comes_before_the_last_is_made(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        first, *others = chat_events("one two")

        class Stepwise:
            status, headers = 200, EVENTS

            async def chunks(self):
                yield first
                await engine.body_gate.passed()
                for event in others:
                    yield event

            async def aclose(self):
                pass

        class Engine:
            name = "gpu-0"

            async def open(self, call):
                return Stepwise()

            async def aclose(self):
                pass

        engine.body_gate.hold()
        site.pool("chat").engines["gpu-0"] = Engine()
        client = await site.openai()
        stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        parts = aiter(stream)
        assert (await anext(parts)).choices[0].delta.content == "one "
        engine.body_gate.release()
        assert await said(parts) == "two "

    play(scenario)


def test_the_official_client_chats_and_completes_and_lists(play, chat_model):
    async def scenario(site):
        client = await site.openai()
        whole = await client.chat.completions.create(model="chat", messages=MESSAGES)
        assert whole.choices[0].message.content == "one two three"
        assert whole.usage.total_tokens == 6
        stream = await client.chat.completions.create(
            model="chat", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        assert await said(stream) == "one two three "
        assert [model.id async for model in await client.models.list()] == ["chat"]
        model = await client.models.retrieve("chat")
        assert (model.id, model.object, model.owned_by) == ("chat", "model", "taketurns")

    play(scenario, backends=1, models=backend_model(chat_model))


@pytest.mark.parametrize(
    ("engine_status", "status", "code", "executed"),
    [
        (400, 400, "engine_rejected", "no"),
        (413, 400, "engine_rejected", "no"),
        (422, 400, "engine_rejected", "no"),
        (401, 502, "engine_failed", "unknown"),
        (404, 502, "engine_failed", "unknown"),
        (500, 502, "engine_failed", "unknown"),
        (429, 503, "engine_busy", "no"),
        (503, 503, "engine_busy", "no"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_error_status_is_told_apart(
    play, chat_model, engine_status, status, code, executed, stream
):
    async def scenario(site):
        # A full engine is asked three times.
        times = 3 if status == 503 else 1
        site.backends[0].faults.update(dict.fromkeys(range(1, times + 1), Fault(engine_status)))
        reply = await site.chat(fields={"stream": stream})
        assert (reply.status, reply.error["code"]) == (status, code)
        assert reply.headers["x-request-executed"] == executed
        assert ("Retry-After" in reply.headers) is (status == 503)
        if status == 400:
            assert reply.error["message"] == "staged"
        else:
            assert "staged" not in reply.error["message"]
        (record,) = site.records
        assert (record.outcome, record.status, record.code) == ("failed", status, code)
        assert (record.cost > 0) is (engine_status not in REFUSED_UNEXECUTED)
        assert (await site.chat()).status == 200

    play(scenario, backends=1, models=backend_model(chat_model))


def test_a_refusal_whose_words_are_long_or_break_off_is_still_that_refusal(play):
    async def scenario(site):
        long = b'{"error":{"message":"' + b"x" * 200_000 + b'"}}'
        broken = EngineBrokenError("gpu-0", "staged")
        script(
            site,
            ScriptedAnswer([long], status=400),
            *[ScriptedAnswer([b"{"], status=429, body_error=broken)] * 3,
        )
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (400, "engine_rejected")
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (503, "engine_busy")
        assert reply.headers["x-request-executed"] == "no"

    play(scenario)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineTimeoutError("gpu-0", "staged"), 504, "engine_timeout"),
        (EngineBrokenError("gpu-0", "staged"), 502, "engine_broken_answer"),
        (EngineUnavailableError("gpu-0", "staged"), 503, "no_capacity"),
        (ZeroDivisionError("a secret prompt"), 500, "internal_error"),
    ],
)
def test_an_engine_that_fails_before_its_head_is_told_apart(play, error, status, code):
    async def scenario(site):
        script(site, ScriptedAnswer(open_error=error), ScriptedAnswer(body_error=error))
        first = await site.chat()
        assert (first.status, first.error["code"]) == (status, code)
        expected = "no" if status == 503 else "unknown"
        assert first.headers["x-request-executed"] == expected
        assert "secret" not in first.error["message"]
        second = await site.chat()
        assert second.status == status

    play(scenario)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(reset_at=0), 502),
        (Fault(cut_at=0), 502),
        (Fault(cut_at=120), 502),
        (Fault(raw=b"HTTP/1.1 nonsense\r\n\r\n"), 502),
        (Fault(stall_at=0), 504),
        (Fault(stall_at=120), 504),
    ],
)
def test_faults_of_an_engines_connection_are_502_or_504(play, chat_model, fault, status):
    async def scenario(site):
        site.backends[0].faults[1] = fault
        reply = await site.chat()
        assert reply.status == status
        assert reply.headers["x-request-executed"] == "unknown"
        assert len(site.backends[0].requests) == 1
        assert (await site.chat()).status == 200

    limits = {"first_byte": "0.5s", "between_chunks": "0.5s"}
    play(scenario, backends=1, models=backend_model(chat_model, engine_limits=limits))


def test_an_engine_that_refuses_connections_is_503(play, chat_model):
    async def scenario(site):
        await site.backends[0].refuse()
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (503, "no_capacity")
        assert reply.headers["x-request-executed"] == "no"
        assert site.records[0].cost == 0

    play(scenario, backends=1, models=backend_model(chat_model))


@pytest.mark.parametrize("error", [EngineBrokenError, EngineTimeoutError])
def test_a_stream_that_breaks_ends_with_an_error_event_and_a_cut(play, error):
    events = chat_events("one two three")

    async def scenario(site):
        cut = ScriptedAnswer(events[:2], headers=EVENTS, body_error=error("gpu-0", "staged"))
        script(site, cut, cut)
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        status, headers = await wire.head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        rest = await wire.rest()
        assert b"".join(events[:1]) in rest
        assert b"event: error\ndata: {" in rest
        assert error.code.encode() in rest
        # The chunk of length 0 would say that the answer is whole.
        assert not rest.endswith(b"0\r\n\r\n")
        client = await site.openai()
        stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError):
            await said(stream)
        await site.settle()
        for record in site.records:
            assert (record.outcome, record.code, record.status) == ("failed", error.code, 200)
            assert record.cost > 0

    play(scenario)


def test_a_stream_cut_by_the_engine_never_looks_whole_to_a_plain_reader(play, chat_model):
    whole = len(b"".join(chat_events("one two three")))

    async def scenario(site):
        for number, cut in enumerate((200, 400, whole), start=1):
            site.backends[0].faults[number] = Fault(cut_at=cut)
            wire = await site.wire()
            await wire.send(site.raw_post("/v1/chat/completions", STREAM))
            status, headers = await wire.head()
            if cut == 200:
                # No whole event came yet.
                assert status == 502
                await wire.reader.readexactly(int(headers["content-length"]))
            else:
                assert status == 200
                rest = await wire.rest()
                assert b"event: error" in rest
                assert not rest.endswith(b"0\r\n\r\n")

    play(scenario, backends=1, models=backend_model(chat_model))


def test_an_empty_stream_is_a_502(play):
    async def scenario(site):
        script(site, ScriptedAnswer(headers=EVENTS))
        reply = await site.post("/v1/chat/completions", STREAM)
        assert (reply.status, reply.error["code"]) == (502, "engine_broken_answer")

    play(scenario)


def test_a_fault_nobody_foresaw_mid_stream_cuts_the_connection(play):
    async def scenario(site):
        events = chat_events("one two")
        script(site, ScriptedAnswer(events[:1], headers=EVENTS, body_error=ZeroDivisionError()))
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        await site.settle()
        (record,) = site.records
        assert (record.code, record.outcome, record.status) == ("internal_error", "failed", 200)

    play(scenario)


# Hang-ups


def only(site, tenant="acme"):
    (record,) = [record for record in site.records if record.tenant == tenant]
    return record


def test_a_client_that_hangs_up_while_queued_leaves_the_queue(play):
    async def scenario(site):
        held = await site.fill()
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await site.queued("chat", 1)
        wire.cut()
        await site.queued("chat", 0)
        engine = site.engines["gpu-0"]
        engine.release()
        assert [(await task).status for task in held] == [200, 200]
        assert len(engine.calls) == 2
        record = only(site)
        assert (record.outcome, record.status) == ("cancelled", 499)
        assert (record.cost, record.engine, record.wait_s) == (0, "", None)

    play(scenario)


def test_a_client_that_hangs_up_while_it_sends_another_request_is_noticed(play):
    async def scenario(site):
        held = await site.fill()
        wire = await site.wire()
        request = site.raw_post("/v1/chat/completions", STREAM)
        await wire.send(request + request + request[:-9])
        await site.queued("chat", 1)
        wire.cut()
        await site.queued("chat", 0)
        engine = site.engines["gpu-0"]
        engine.release()
        assert [(await task).status for task in held] == [200, 200]
        assert len(engine.calls) == 2

    play(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_before_the_first_byte_frees_the_slot_and_stops_the_engine(
    play, chat_model, stream
):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM | {"stream": stream}))
        await backend.executed.reached(1)
        waits = site.start(site.chat(tenant="globex"))
        await site.queued("chat", 1)
        wire.cut()
        await backend.cancelled.reached(1)
        await backend.executed.reached(2)
        assert list(backend.cancelled) == [backend.requests[0].id]
        backend.release()
        assert (await waits).status == 200
        record = only(site)
        assert (record.outcome, record.status, record.engine) == ("cancelled", 499, "gpu-0")
        assert record.cost > 0

    models = backend_model(chat_model, engine={"slots": 1})
    play(scenario, backends=1, models=models)


def test_a_client_that_hangs_up_mid_stream_frees_the_slot_and_stops_the_engine(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.faults[1] = Fault(stall_at=400)
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        await wire.reader.readuntil(b"data: {")
        wire.cut()
        await backend.cancelled.reached(1)
        assert (await site.chat(tenant="globex")).status == 200
        record = only(site)
        assert (record.outcome, record.status, record.stream) == ("cancelled", 499, True)

    models = backend_model(chat_model, engine={"slots": 1})
    play(scenario, backends=1, models=models)


def test_a_client_that_does_not_read_loses_its_slot(play):
    event = b"data: " + b"x" * 1000 + b"\n\n"

    async def scenario(site):
        script(site, ScriptedAnswer([event] * 30_000, headers=EVENTS))
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        wire.writer.transport.pause_reading()
        await site.until(lambda: site.records)
        assert site.scheduler("chat").running == 0
        (record,) = site.records
        assert (record.outcome, record.status) == ("cancelled", 499)
        assert list(site.engines["gpu-0"].cancelled) == [record.request_id]

    play(scenario, server={"unread_timeout": "0.05s"})


def test_hang_ups_in_every_phase_leave_nothing_behind(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        for number in range(1, 40, 2):
            backend.faults[number] = Fault(stall_at=(number * 37) % 700)
        for number in range(60):
            wire = await site.wire()
            stream = number % 3 != 0
            await wire.send(site.raw_post("/v1/chat/completions", STREAM | {"stream": stream}))
            if number % 2:
                await site.until(lambda seen=number // 3: len(backend.requests) >= seen)
            wire.cut()
        await site.until(lambda: len(site.records) == 60)
        assert {record.outcome for record in site.records} <= {"cancelled", "completed", "invalid"}
        await site.settle()
        ids = list(backend.executed)
        assert len(ids) == len(set(ids))

    play(scenario, backends=1, models=backend_model(chat_model))


# Order


async def order(site, requests):
    """Send requests one after another while the engine is held; return the order they ran in."""
    held = await site.fill(tenant="pico")
    tasks = []
    for number, (tenant, headers, content) in enumerate(requests, start=1):
        tasks.append(site.start(site.chat(content, tenant=tenant, headers=headers)))
        await site.queued("chat", number)
    engine = site.engines["gpu-0"]
    engine.release()
    for task in [*held, *tasks]:
        assert (await task).status == 200
    bodies = [json.loads(call.body) for call in engine.calls[len(held) :]]
    return [body["messages"][0]["content"] for body in bodies]


def single(chat_model, **more):
    engines = [{"url": "http://fake:1", "name": "gpu-0", "slots": 1}]
    return {"chat": chat_model(engines=engines, **more)}


def test_priority_orders_a_tenants_own_requests(play, chat_model):
    async def scenario(site):
        priorities = ["999", "500", None, "0", "7"]
        requests = [
            ("acme", {} if p is None else {"taketurns-priority": p}, f"{p}") for p in priorities
        ]
        assert await order(site, requests) == ["0", "7", "500", "None", "999"]

    play(scenario, models=single(chat_model))


def test_min_priority_clamps_what_a_client_asks_for(play, chat_model):
    async def scenario(site):
        requests = [("acme", {"taketurns-priority": p}, p) for p in ("650", "610", "0", "600")]
        assert await order(site, requests) == ["0", "600", "610", "650"]

    tenants = {
        "acme": {"tier": "production", "min_priority": 600},
        "pico": {"tier": "trial"},
    }
    play(scenario, models=single(chat_model), tenants=tenants)


def test_a_clamped_priority_is_no_better_than_the_clamp(play, chat_model):
    async def scenario(site):
        requests = [("acme", {"taketurns-priority": p}, p) for p in ("600", "0", "1")]
        assert await order(site, requests) == ["600", "0", "1"]

    tenants = {"acme": {"tier": "production", "min_priority": 600}, "pico": {"tier": "trial"}}
    play(scenario, models=single(chat_model), tenants=tenants)


def test_better_tiers_go_first_and_tenants_of_a_tier_take_turns(play, chat_model):
    async def scenario(site):
        requests = [
            ("pico", {}, "p1"),
            *(("acme", {}, f"a{n}") for n in range(4)),
            ("globex", {}, "g0"),
            ("globex", {}, "g1"),
        ]
        ran = await order(site, requests)
        assert ran[-1] == "p1"
        assert [name[0] for name in ran[:4]].count("a") == 2

    play(scenario, models=single(chat_model))


@pytest.mark.parametrize("wait_ms", ["1", "30"])
def test_a_deadline_of_the_clients_own_expires_in_the_queue(play, wait_ms):
    async def scenario(site):
        held = await site.fill()
        reply = await site.chat(headers={"taketurns-deadline-ms": wait_ms})
        assert (reply.status, reply.error["code"]) == (429, "queue_timeout")
        assert reply.headers["x-request-executed"] == "no"
        record = only(site)
        assert (record.outcome, record.cost, record.wait_s) == ("expired", 0, None)
        site.engines["gpu-0"].release()
        assert [(await task).status for task in held] == [200, 200]

    play(scenario)


def test_a_clients_deadline_can_not_lengthen_its_tiers_limit(play):
    async def scenario(site):
        held = await site.fill()
        reply = await site.chat(tenant="pico", headers={"taketurns-deadline-ms": "86400000"})
        assert reply.error["code"] == "queue_timeout"
        site.engines["gpu-0"].release()
        assert [(await task).status for task in held] == [200, 200]

    tiers = {"production": {"rank": 0}, "trial": {"rank": 1, "queue_timeout": "0.03s"}}
    play(scenario, tiers=tiers)


@pytest.mark.parametrize("header", ["taketurns-priority", "taketurns-deadline-ms"])
@pytest.mark.parametrize("value", ["-1", "1e2", "", "x", "99999999999999999999", "٣", "1.5"])
def test_a_header_that_is_no_whole_number_is_400(play, header, value):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post("/v1/chat/completions", STREAM)
        line = f"\r\n{header}: {value}".encode()
        await wire.send(request.replace(b"\r\nHost: gateway", line + b"\r\nHost: gateway"))
        status, _, body = await wire.reply()
        error = json.loads(body)["error"]
        assert (status, error["param"]) == (400, header)

    play(scenario)


def test_a_tenant_never_has_more_running_than_its_cap(play, chat_model):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.hold()
        capped = [site.start(site.chat(f"{n}")) for n in range(5)]
        await site.queued("chat", 3)
        assert site.scheduler("chat").running == 2
        other = [site.start(site.chat(tenant="globex")) for _ in range(3)]
        await site.until(lambda: site.scheduler("chat").running == 5)
        assert site.scheduler("chat").queued == 3
        engine.release()
        for task in [*capped, *other]:
            assert (await task).status == 200

    tenants = {"acme": {"tier": "production", "parallel": 2}, "globex": {"tier": "production"}}
    engines = [{"url": "http://fake:1", "name": "gpu-0", "slots": 8}]
    play(scenario, tenants=tenants, models={"chat": chat_model(engines=engines)})


def test_tokens_are_settled_by_the_engines_usage(play, chat_model):
    async def scenario(site):
        script(site, ScriptedAnswer([chat_answer("a b c d", prompt_tokens=11)]))
        assert (await site.chat(fields={"max_tokens": 1000})).status == 200
        script(site, ScriptedAnswer(chat_events("a b c", usage=True), headers=EVENTS))
        assert (await site.post("/v1/chat/completions", STREAM)).status == 200
        assert [record.cost for record in site.records] == [11 + 2 * 4, 3 + 2 * 3]

    play(scenario, models=single(chat_model, cost="tokens", quantum=8))


def test_usage_that_can_not_be_true_is_not_believed(play, chat_model):
    async def scenario(site):
        usage = b'{"usage":{"prompt_tokens":1%s,"completion_tokens":1}}' % (b"0" * 400)
        script(site, ScriptedAnswer([usage]))
        assert (await site.chat()).body == usage
        assert site.records[0].input_tokens < 2**53

    play(scenario, models=single(chat_model, cost="tokens"))


def test_a_full_queue_is_refused_with_its_limit(play, chat_model):
    async def scenario(site):
        held = await site.fill()
        waiting = [site.start(site.chat()) for _ in range(2)]
        await site.queued("chat", 2)
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (429, "tenant_queue_full")
        assert "2" in reply.error["message"]
        more = site.start(site.chat(tenant="pico"))
        await site.queued("chat", 3)
        reply = await site.chat(tenant="pico")
        assert (reply.status, reply.error["code"]) == (503, "pool_queue_full")
        site.engines["gpu-0"].release()
        for task in [*held, *waiting, more]:
            assert (await task).status == 200

    play(scenario, models={"chat": chat_model(tenant_queue_max=2, queue_max=3)})


@pytest.mark.slow
def test_nothing_is_lost_or_executed_twice_whatever_the_engines_do(play, chat_model, embed_model):
    kinds = [
        Fault(reset_at=0),
        Fault(cut_at=150),
        Fault(status=500),
        Fault(status=503),
        Fault(status=400),
        Fault(stall_at=130),
        Fault(close_idle=True),
        Fault(cut_at=0),
        Fault(raw=b"garbage\r\n\r\n"),
        Fault(vectors="missing"),
    ]
    requests = 400

    async def ask(site, number):
        tenant = ("acme", "globex", "pico")[number % 3]
        if number % 4 == 0:
            return await site.embed(
                [f"t {number} {n}" for n in range(number % 9 + 1)], tenant=tenant
            )
        if number % 4 == 1:
            return await site.chat(f"c {number}", tenant=tenant)
        wire = await site.wire()
        await wire.send(
            site.raw_post("/v1/chat/completions", STREAM, tenant=tenant, headers=["X-N: 1"])
        )
        head = await wire.head()
        if head[1].get("transfer-encoding") != "chunked":
            return head
        # A whole stream ends with its last chunk; a broken one with the connection.
        ended = b""
        while not ended.endswith(b"0\r\n\r\n"):
            piece = await wire.reader.read(65_536)
            if not piece:
                break
            ended += piece
        assert ended.endswith(b"0\r\n\r\n") == (b"event: error" not in ended)
        return head

    async def scenario(site):
        for backend in site.backends:
            backend.faults.update({n: kinds[n % len(kinds)] for n in range(3, 400, 4)})
        answers = await asyncio.gather(*(ask(site, number) for number in range(requests)))
        statuses = {answer.status if hasattr(answer, "status") else answer[0] for answer in answers}
        assert 200 in statuses
        assert statuses <= {200, 400, 502, 503, 504}
        await site.settle()
        assert len(site.records) == requests
        assert len({record.request_id for record in site.records}) == requests
        executed = [request_id for backend in site.backends for request_id in backend.executed]
        assert len(executed) == len(set(executed))
        everywhere = [request.id for backend in site.backends for request in backend.requests]
        generated = {record.request_id for record in site.records if record.endpoint == "chat"}
        sent = {i for i in everywhere if i.startswith("req_")}
        assert sent == generated

    limits = {"first_byte": "0.3s", "between_chunks": "0.3s"}
    two = [{"url": f"http://backend-{n}", "slots": 4} for n in (0, 1)]
    more = {"engines": two, "engine_limits": limits, "health": {"broken_after": 1_000}}
    models = {"chat": chat_model(**more), "embed": embed_model(**more, batch={"items_max": 5})}
    play(scenario, backends=2, models=models)
