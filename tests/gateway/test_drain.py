# SPDX-License-Identifier: Apache-2.0
"""A gateway that is told to stop serves what it took, refuses what is new, and breaks off late."""

import asyncio
import json

from taketurns.testing.engine import ScriptedAnswer, chat_events
from taketurns.testing.http_engine import Fault

CHAT = "/v1/chat/completions"
STREAM = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
EVENTS = {"content-type": "text/event-stream"}


async def ended(site):
    """Wait until the gateway has stopped, and see that nothing is left behind."""
    await asyncio.wait({site.gateway_task})
    site.gateway_task.result()
    assert not site.leaks()


def test_it_is_ready_until_it_is_told_to_stop_and_alive_until_it_ends(play):
    async def scenario(site):
        held = await site.fill()
        for base in (None, site.admin_url):
            reply = await site.send("GET", "/readyz", tenant=None, base=base)
            assert (reply.status, reply.json) == (200, {"status": "ready"})
        site.running.stop.set()
        await site.until(lambda: not site.gateway.ready)
        for base in (None, site.admin_url):
            reply = await site.send("GET", "/readyz", tenant=None, base=base)
            assert (reply.status, reply.json) == (503, {"status": "draining"})
            assert reply.headers["Retry-After"] == "1"
            reply = await site.send("GET", "/livez", tenant=None, base=base)
            assert (reply.status, reply.json) == (200, {"status": "alive"})
        site.engines["gpu-0"].release()
        assert [(await task).status for task in held] == [200, 200]
        await ended(site)
        # Health checks are no requests of tenants.
        assert len(site.records) == 2

    play(scenario)


def test_while_the_delay_lasts_it_is_not_ready_and_takes_requests(play):
    async def scenario(site):
        site.running.stop.set()
        await site.until(lambda: not site.gateway.ready)
        assert (await site.send("GET", "/readyz", tenant=None)).status == 503
        assert (await site.chat()).status == 200
        assert not site.gateway.draining
        # Ten minutes are not waited for.
        site.gateway_task.cancel()
        await asyncio.wait({site.gateway_task})

    play(scenario, server={"drain_delay": "600s"})


def test_what_was_taken_is_served_and_what_is_new_is_refused(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.body_gate.hold()
        script = ScriptedAnswer(chat_events("one two"), headers=EVENTS)
        engine._script.append(script)
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM))
        await site.until(lambda: len(engine.calls) == 1)
        others = [site.start(site.chat(f"{n}", tenant="globex")) for n in range(4)]
        await site.queued("chat", 3)
        embeds = site.engines["cpu-0"]
        embeds.hold()
        texts = [site.start(site.embed([f"{n}"])) for n in range(2)]
        await site.queued("embed", 1)
        site.running.stop.set()
        await site.until(lambda: site.gateway.draining)
        for reply in (await site.chat(), await site.embed(["late"])):
            assert (reply.status, reply.error["code"]) == (503, "draining")
            assert reply.headers["Retry-After"] == "1"
            assert reply.headers["x-request-executed"] == "no"
            assert reply.headers["Connection"] == "close"
        wrong = await site.chat(tenant=None)
        assert wrong.status == 401
        engine.body_gate.release()
        embeds.release()
        status, _ = await wire.head()
        streamed = await wire.rest()
        assert status == 200
        assert streamed.endswith(b"0\r\n\r\n")
        assert b"[DONE]" in streamed
        for task in [*others, *texts]:
            assert (await task).status == 200
        await ended(site)
        outcomes = [record.outcome for record in site.records]
        assert outcomes.count("completed") == 7
        assert outcomes.count("refused") == 2

    play(scenario)


def test_past_its_limit_the_queued_are_told_not_executed_and_the_running_are_broken_off(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.body_gate.hold()
        running = site.start(site.chat("running"))
        await site.until(lambda: len(engine.calls) == 1)
        engine.head_gate.hold()
        opening = site.start(site.chat("opening", fields={"stream": True}))
        await site.until(lambda: len(engine.calls) == 2)
        queued = [site.start(site.chat(f"{n}")) for n in range(3)]
        await site.queued("chat", 3)
        site.running.stop.set()
        for task in queued:
            reply = await task
            assert (reply.status, reply.error["code"]) == (503, "draining")
            assert reply.headers["x-request-executed"] == "no"
        for task in (running, opening):
            reply = await task
            assert (reply.status, reply.error["code"]) == (502, "engine_broken_answer")
            assert reply.headers["x-request-executed"] == "unknown"
        await ended(site)
        assert len(list(engine.cancelled)) == 2
        costs = {record.code: record.cost for record in site.records}
        assert costs["draining"] == 0
        assert costs["engine_broken_answer"] > 0

    play(scenario, server={"drain": "0.05s"})


def test_past_its_limit_a_stream_is_cut_and_never_looks_whole(play, chat_model):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(stall_at=400)
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM))
        assert (await wire.head())[0] == 200
        await wire.reader.readuntil(b"data: {")
        site.running.stop.set()
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        await ended(site)
        await site.backends[0].cancelled.reached(1)
        (record,) = site.records
        assert (record.outcome, record.status) == ("cancelled", 499)

    engines = [{"url": "http://backend-0", "name": "gpu-0"}]
    models = {"chat": chat_model(engines=engines)}
    play(scenario, backends=1, server={"drain": "0.05s"}, models=models)


def test_past_its_limit_texts_in_a_batch_are_told_apart_from_those_that_wait(play, embed_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        running = site.start(site.embed(["running"]))
        await backend.executed.reached(1)
        queued = site.start(site.embed(["queued"], tenant="globex"))
        await site.queued("embed", 1)
        site.running.stop.set()
        reply = await queued
        assert (reply.status, reply.headers["x-request-executed"]) == (503, "no")
        reply = await running
        assert (reply.status, reply.headers["x-request-executed"]) == (502, "unknown")
        await ended(site)
        await backend.cancelled.reached(1)
        assert len(backend.requests) == 1

    engines = [{"url": "http://backend-0", "slots": 1}]
    models = {"embed": embed_model(engines=engines)}
    play(scenario, backends=1, server={"drain": "0.05s"}, models=models)


def test_an_answer_that_its_client_reads_slowly_is_sent_to_its_end(play):
    whole = b'{"x":"' + b"x" * 30_000_000 + b'"}'

    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine._script.append(ScriptedAnswer([whole]))
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM | {"stream": False}))
        await engine.completed.reached(1)
        site.running.stop.set()
        await site.until(lambda: site.gateway.draining)
        status, _, body = await wire.reply()
        assert (status, body) == (200, whole)
        await ended(site)
        (record,) = site.records
        assert (record.outcome, record.status) == ("completed", 200)

    play(scenario)


def test_past_its_limit_an_answer_that_nobody_reads_does_not_hold_it_up(play):
    async def scenario(site):
        site.engines["gpu-0"]._script.append(ScriptedAnswer([b"x" * 30_000_000]))
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM | {"stream": False}))
        await site.engines["gpu-0"].completed.reached(1)
        site.running.stop.set()
        await ended(site)
        (record,) = site.records
        assert (record.outcome, record.status) == ("cancelled", 499)

    play(scenario, server={"drain": "0.05s"})


def test_a_whole_answer_that_nobody_reads_is_given_up(play):
    async def scenario(site):
        site.engines["gpu-0"]._script.append(ScriptedAnswer([b"x" * 30_000_000]))
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM | {"stream": False}))
        await site.until(lambda: site.records)
        (record,) = site.records
        assert (record.outcome, record.status) == ("cancelled", 499)
        assert len(site.gateway.pools.watch) == 0

    play(scenario, server={"unread_timeout": "0.05s"})


def test_a_client_that_leaves_amid_its_answer_is_noted_as_gone(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine._script.append(ScriptedAnswer([b"x" * 30_000_000]))
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM | {"stream": False}))
        assert (await wire.head())[0] == 200
        wire.cut()
        await site.until(lambda: site.records)
        (record,) = site.records
        assert (record.outcome, record.status, record.cost) == ("cancelled", 499, 1000)

    play(scenario)


def test_idle_connections_do_not_hold_it_up(play):
    async def scenario(site):
        used, unused = await site.wire(), await site.wire()
        await used.send(site.raw_post(CHAT, STREAM | {"stream": False}))
        assert (await used.reply())[0] == 200
        site.running.stop.set()
        await ended(site)
        assert await used.rest() == b""
        assert await unused.rest() == b""

    play(scenario)


def test_the_last_records_reach_the_log_file(play, tmp_path):
    log = tmp_path / "requests.jsonl"

    async def scenario(site):
        site.gateway._border.log = site.own_log
        assert (await site.chat()).status == 200
        site.running.stop.set()
        await ended(site)
        (line,) = log.read_text().splitlines()
        record = json.loads(line)
        assert (record["tenant"], record["outcome"], record["status"]) == ("acme", "completed", 200)

    play(scenario, server={"log": str(log)})


def test_a_log_that_can_not_be_written_stops_nothing(play, caplog):
    async def scenario(site):
        site.gateway._border.log = site.own_log
        for _ in range(3):
            assert (await site.chat()).status == 200
        site.running.stop.set()
        await ended(site)
        assert b"taketurns_log_broken 1.0" in site.gateway.metrics.exposition()

    play(scenario, server={"log": "/dev/full"})
    assert caplog.text.count("the request log can't be written") == 1


def test_a_gateway_that_is_cancelled_leaves_nothing_behind(play, embed_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        wires = [await site.wire() for _ in range(5)]
        for wire in wires:
            await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": "x"}))
        await site.queued("embed", 4)
        await backend.executed.reached(1)
        site.gateway_task.cancel()
        await asyncio.wait({site.gateway_task})
        assert site.gateway_task.cancelled()
        for wire in wires:
            assert b" 200 OK" not in await wire.rest()
        assert len(backend.requests) == 1

    engines = [{"url": "http://backend-0", "slots": 1}]
    models = {"embed": embed_model(engines=engines, batch={"items_max": 1})}
    play(scenario, backends=1, models=models, settles=False)
