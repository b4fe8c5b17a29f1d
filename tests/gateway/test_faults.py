# SPDX-License-Identifier: Apache-2.0
"""Failures between gateway, engine and client, staged on real sockets: what the client is told,
that nothing runs twice, and that nothing is left behind."""

import asyncio
import json
import os
import socket

import pytest

from taketurns.testing.engine import chat_events
from taketurns.testing.fault_proxy import Harm
from taketurns.testing.http_engine import Fault

PROOF = os.environ.get("TAKETURNS_PROOF") == "1"

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
WHOLE = {"model": "chat", "messages": MESSAGES}
STREAM = WHOLE | {"stream": True}
SHORT = {"connect": "0.3s", "first_byte": "0.3s", "between_chunks": "0.3s", "total": "30s"}
LONG = dict.fromkeys(SHORT, "50s")
"""What no engine here takes, however busy the machine is."""

LAST_CHUNK = b"0\r\n\r\n"


def model(chat_model, engines=1, limits=None, **more):
    parts = [{"url": f"http://backend-{n}", "name": f"gpu-{n}", "slots": 2} for n in range(engines)]
    return {"chat": chat_model(engines=parts, engine_limits=limits or LONG, **more)}


def executed(site):
    """Ids of the calls that any engine began to compute."""
    return [request_id for backend in site.backends for request_id in backend.executed]


def harmed(site, harm, *, first=1, proxy=0):
    """Harm the first connections through a proxy."""
    site.proxies[proxy].harm = lambda number: harm if number <= first else Harm()


async def streamed(site, body=STREAM, tenant="acme"):
    """Ask for a stream; return the status and all that came, to the end or the cut."""
    wire = await site.wire()
    await wire.send(site.raw_post(CHAT, body, tenant=tenant, headers=["Connection: close"]))
    status, _ = await wire.head()
    return status, await wire.rest()


def told(reply, status, code, executed):
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.headers["x-request-executed"] == executed
    assert ("Retry-After" in reply.headers) is (status in {429, 503})


def broke(received, code):
    """See that a stream ended with an error and no proper end, and that its events are whole."""
    assert not received.endswith(LAST_CHUNK)
    _, found, event = received.rpartition(b"event: error\ndata: ")
    assert found
    assert json.loads(event.partition(b"\n\n")[0])["error"]["code"] == code
    # What stands before it ends with an event, and not amid one.
    before = received.partition(b"event: error")[0].rpartition(b"\r\n")[0].rpartition(b"\r\n")[0]
    assert before.endswith(b"\n\n")


# F1: an engine that can't be reached


def test_a_refused_connection_is_tried_on_another_engine(play, chat_model):
    async def scenario(site):
        await site.backends[0].refuse()
        replies = [await site.chat() for _ in range(4)]
        assert [reply.status for reply in replies] == [200] * 4
        assert len(executed(site)) == 4
        assert {record.engine for record in site.records} == {"gpu-1"}

    play(scenario, backends=2, models=model(chat_model, 2))


def test_where_no_engine_can_be_reached_nothing_was_executed(play, chat_model):
    async def scenario(site):
        for backend in site.backends:
            await backend.refuse()
        told(await site.chat(), 503, "no_capacity", "no")
        assert executed(site) == []
        assert site.records[0].cost == 0

    play(scenario, backends=2, models=model(chat_model, 2))


def unanswered():
    """Return a listening socket whose queue is full: the kernel answers no further connection."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return listener, fillers


def test_a_connection_that_is_not_made_in_time_is_tried_on_another_engine(play, chat_model):
    listener, fillers = unanswered()
    port = listener.getsockname()[1]

    async def scenario(site):
        replies = await asyncio.gather(*[site.chat() for _ in range(4)])
        assert [reply.status for reply in replies] == [200] * 4
        assert sorted(executed(site)) == sorted(record.request_id for record in site.records)

    models = model(chat_model, limits=SHORT)
    models["chat"]["engines"].insert(0, {"url": f"http://127.0.0.1:{port}", "name": "dead"})
    try:
        play(scenario, backends=1, models=models)
    finally:
        for sock in (listener, *fillers):
            sock.close()


def test_a_client_that_leaves_while_its_connection_is_made_frees_the_slot(play, chat_model):
    listener, fillers = unanswered()
    port = listener.getsockname()[1]

    async def scenario(site):
        engine = site.pool("chat").engines["dead"]
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM))
        await site.until(lambda: engine.connections == 1)
        wire.cut()
        await site.until(lambda: engine.connections == 0)
        await site.until(lambda: site.records)
        assert (site.records[0].outcome, site.records[0].status) == ("cancelled", 499)

    engines = [{"url": f"http://127.0.0.1:{port}", "name": "dead", "slots": 1}]
    try:
        play(scenario, models={"chat": chat_model(engines=engines, engine_limits=LONG)})
    finally:
        for sock in (listener, *fillers):
            sock.close()


# F2: lost after the request was sent


@pytest.mark.parametrize("kind", ["reset", "cut"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_lost_before_the_answer_is_not_tried_again(play, chat_model, kind, stream):
    async def scenario(site):
        for proxy in range(2):
            harmed(site, Harm(kind, answer_at=0), proxy=proxy)
        reply = await site.post(CHAT, WHOLE | {"stream": stream})
        told(reply, 502, "engine_broken_answer", "unknown")
        assert len(executed(site)) == 1
        assert (await site.chat()).status == 200

    play(scenario, backends=2, proxied=True, models=model(chat_model, 2))


# F3: a kept connection that is closed just then


def test_a_kept_connection_that_the_engine_has_closed_is_not_used(play, chat_model):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(close_idle=True)
        assert (await site.chat()).status == 200
        await site.until(lambda: site.backends[0].connections == 0)
        assert (await site.chat()).status == 200
        assert len(site.backends[0].connected) == 2

    play(scenario, backends=1, models=model(chat_model))


def test_a_request_that_crosses_the_close_of_its_connection_is_not_sent_again(play, chat_model):
    async def scenario(site):
        # The first answer passes; the connection is reset once the second request is on it.
        harmed(site, Harm("reset", answer_at=10**6))
        assert (await site.chat()).status == 200
        (pair,) = site.proxies[0]._pairs
        pair._harm = Harm("reset", request_at=pair._request_bytes + 10)
        reply = await site.chat()
        told(reply, 502, "engine_broken_answer", "unknown")
        assert len(executed(site)) == 1
        assert site.proxies[0].accepted == 1
        assert (await site.chat()).status == 200

    play(scenario, backends=1, proxied=True, models=model(chat_model))


# F4: a stream that ends too soon


@pytest.mark.parametrize("kind", ["reset", "cut"])
def test_a_stream_that_breaks_ends_with_an_error_and_without_an_end(play, chat_model, kind):
    first = len(b"".join(chat_events("one two three")[:2]))

    async def scenario(site):
        harmed(site, Harm(kind, answer_at=first + 150))
        status, received = await streamed(site)
        assert status == 200
        broke(received, "engine_broken_answer")
        (record,) = site.records
        assert (record.outcome, record.code) == ("failed", "engine_broken_answer")
        assert record.cost > 0
        assert len(executed(site)) == 1

    play(scenario, backends=1, proxied=True, models=model(chat_model, cost="ema"))


def test_a_stream_that_ends_in_good_form_before_its_answer_does_is_broken(play, chat_model):
    events = chat_events("one two three")

    async def scenario(site):
        for number, (count, whole) in enumerate([(2, False), (4, True), (5, True)], 1):
            body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events[:count])
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            raw = head + b"Transfer-Encoding: chunked\r\n\r\n" + body + LAST_CHUNK
            site.backends[0].faults[number] = Fault(raw=raw)
            status, received = await streamed(site)
            assert status == 200
            assert received.endswith(LAST_CHUNK) is whole
            if not whole:
                broke(received, "engine_broken_answer")

    play(scenario, backends=1, models=model(chat_model))


# F5: an engine that falls silent


def test_silence_before_an_answer_is_a_504(play, chat_model):
    async def scenario(site):
        harmed(site, Harm("hang", answer_at=0), first=2)
        told(await site.chat(), 504, "engine_timeout", "unknown")
        told(await site.post(CHAT, STREAM), 504, "engine_timeout", "unknown")
        assert (await site.chat()).status == 200

    play(scenario, backends=1, proxied=True, models=model(chat_model, limits=SHORT))


def test_silence_amid_a_stream_is_filled_with_comments_and_then_ends_it(play, chat_model):
    async def scenario(site):
        harmed(site, Harm("hang", answer_at=400))
        status, received = await streamed(site)
        assert status == 200
        assert b": ping\n\n" in received
        broke(received, "engine_timeout")
        # The engine is told: its connection is closed.
        await site.until(lambda: site.proxies[0].connections == 0)

    play(
        scenario,
        backends=1,
        proxied=True,
        models=model(chat_model, limits=SHORT),
        server={"ping": "0.05s"},
    )


def test_a_stream_that_drips_is_no_fault(play, chat_model):
    async def scenario(site):
        harmed(site, Harm(delay_s=0.001, piece_bytes=7))
        status, received = await streamed(site)
        assert status == 200
        assert received.endswith(LAST_CHUNK)
        events = b"".join(chat_events("one two three"))
        assert [line for line in received.split(b"\n") if line.startswith(b"data: ")] == [
            line for line in events.split(b"\n") if line.startswith(b"data: ")
        ]

    play(scenario, backends=1, proxied=True, models=model(chat_model))


# F6: slow and huge heads


def test_a_head_that_does_not_come_to_its_end_is_a_504_and_a_huge_one_a_502(play, chat_model):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(stall_at=30)
        told(await site.chat(), 504, "engine_timeout", "unknown")
        huge = b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 100_000 + b"\r\n\r\n"
        site.backends[0].faults[2] = Fault(raw=huge)
        told(await site.chat(), 502, "engine_broken_answer", "unknown")

    play(scenario, backends=1, models=model(chat_model, limits=SHORT))


def test_a_head_that_hangs_on_the_way_is_a_504(play, chat_model):
    async def scenario(site):
        harmed(site, Harm("hang", answer_at=30))
        told(await site.chat(), 504, "engine_timeout", "unknown")
        assert (await site.chat()).status == 200
        assert len(executed(site)) == 2

    play(scenario, backends=1, proxied=True, models=model(chat_model, limits=SHORT))


# F7: answers that can't be read

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"5\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_can_not_be_read_is_a_502(play, chat_model, raw, stream):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(raw=raw, cut_at=len(raw))
        reply = await site.post(CHAT, WHOLE | {"stream": stream})
        told(reply, 502, "engine_broken_answer", "unknown")
        assert len(site.backends[0].requests) == 1

    play(scenario, backends=1, models=model(chat_model))


def test_an_event_that_never_ends_breaks_the_stream_and_fills_no_memory(play, chat_model):
    endless = b"data: " + b"x" * (1024 * 1024 + 1)
    event = chat_events("one")[0]

    async def scenario(site):
        raw = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (event, endless))
        site.backends[0].faults[1] = Fault(raw=raw)
        status, received = await streamed(site)
        assert status == 200
        broke(received, "engine_broken_answer")
        assert len(received) < 10_000

    play(scenario, backends=1, models=model(chat_model))


# F8, F9: the engine says that it fails, or that it's full


def test_an_engines_failure_is_not_tried_again(play, chat_model):
    async def scenario(site):
        for backend in site.backends:
            backend.faults[1] = Fault(500)
        told(await site.chat(), 502, "engine_failed", "unknown")
        assert sum(len(backend.requests) for backend in site.backends) == 1

    play(scenario, backends=2, models=model(chat_model, 2))


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_engine_is_passed_over_for_another(play, chat_model, status, stream):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(status)
        reply = await site.post(CHAT, WHOLE | {"stream": stream})
        assert reply.status == 200
        asked = [request.id for backend in site.backends for request in backend.requests]
        assert asked == [site.records[0].request_id] * 2
        assert executed(site) == asked[:1]
        assert site.records[0].engine == "gpu-1"

    play(scenario, backends=2, models=model(chat_model, 2))


def test_engines_that_stay_full_are_asked_three_times(play, chat_model):
    async def scenario(site):
        for backend in site.backends:
            backend.faults.update(dict.fromkeys(range(1, 10), Fault(503)))
        told(await site.chat(), 503, "engine_busy", "no")
        assert sum(len(backend.requests) for backend in site.backends) == 3
        assert executed(site) == []
        assert site.records[0].cost == 0

    play(scenario, backends=2, models=model(chat_model, 2))


def test_a_request_that_an_engine_refused_goes_before_its_tenants_others(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        backend.faults[1] = Fault(429)
        first = site.start(site.chat("first"))
        await site.until(lambda: len(backend.requests) == 1)
        others = [site.start(site.chat(f"other {n}")) for n in range(3)]
        await site.queued("chat", 3)
        backend.release()
        assert [(await task).status for task in (first, *others)] == [200] * 4
        said = [json.loads(request.body)["messages"][0]["content"] for request in backend.requests]
        assert said[:2] == ["first", "first"]

    models = model(chat_model)
    models["chat"]["engines"][0]["slots"] = 1
    play(scenario, backends=1, models=models)


def test_waiting_for_a_full_engine_ends_with_the_clients_deadline(play, chat_model):
    async def scenario(site):
        site.backends[0].faults.update(dict.fromkeys(range(1, 10), Fault(429)))
        reply = await site.chat(headers={"taketurns-deadline-ms": "30"})
        told(reply, 429, "queue_timeout", "no")
        assert len(site.backends[0].requests) == 1
        assert executed(site) == []

    play(scenario, backends=1, models=model(chat_model))


# F10, F11: clients that leave


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_sent(play, chat_model, stream):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        held = [site.start(site.chat(tenant="globex")) for _ in range(2)]
        await backend.executed.reached(2)
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, WHOLE | {"stream": stream}))
        await site.queued("chat", 1)
        wire.cut()
        await site.queued("chat", 0)
        backend.release()
        assert [(await task).status for task in held] == [200, 200]
        assert len(executed(site)) == 2
        (record,) = [record for record in site.records if record.tenant == "acme"]
        assert (record.outcome, record.status, record.cost) == ("cancelled", 499, 0)

    play(scenario, backends=1, models=model(chat_model))


@pytest.mark.parametrize(("stream", "bytes_read"), [(False, 0), (True, 0), (True, 300)])
def test_a_client_that_leaves_stops_the_engine_and_pays_for_what_it_got(
    play, chat_model, stream, bytes_read
):
    async def scenario(site):
        backend = site.backends[0]
        backend.faults[1] = Fault(stall_at=600 if bytes_read else 0)
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, WHOLE | {"stream": stream}))
        await backend.executed.reached(1)
        if bytes_read:
            await wire.reader.readexactly(bytes_read)
        wire.cut()
        await backend.cancelled.reached(1)
        await site.until(lambda: site.records)
        (record,) = site.records
        assert (record.outcome, record.status) == ("cancelled", 499)
        assert record.cost >= record.input_tokens > 0

    models = model(chat_model, cost="ema", quantum=8)
    play(scenario, backends=1, models=models)


# F13, F14, F15


def test_a_deadline_that_passes_in_the_queue_executes_nothing(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        held = [site.start(site.chat(tenant="globex")) for _ in range(2)]
        await backend.executed.reached(2)
        reply = await site.chat(headers={"taketurns-deadline-ms": "20"})
        told(reply, 429, "queue_timeout", "no")
        backend.release()
        assert [(await task).status for task in held] == [200, 200]
        assert len(executed(site)) == 2

    play(scenario, backends=1, models=model(chat_model))


def test_a_gateway_that_stops_serves_what_it_took_and_ends_its_streams(play, chat_model):
    async def scenario(site):
        backend = site.backends[0]
        backend.hold()
        running = [site.start(streamed(site)) for _ in range(2)]
        await backend.executed.reached(2)
        queued = site.start(site.chat(tenant="globex"))
        await site.queued("chat", 1)
        site.running.stop.set()
        await site.until(lambda: site.gateway.draining)
        told(await site.chat(tenant="globex"), 503, "draining", "no")
        backend.release()
        for task in running:
            status, received = await task
            assert status == 200
            assert received.endswith(LAST_CHUNK)
        assert (await queued).status == 200

    play(scenario, backends=1, models=model(chat_model))


# Never executed twice


def offsets(whole):
    """Byte offsets to break a connection at: all of them, or one of every eleven."""
    return range(0, whole, 1 if PROOF else 11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reset", "cut"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("side", ["request_at", "answer_at"])
def test_nothing_is_executed_twice_wherever_a_connection_breaks(
    play, chat_model, kind, stream, side
):
    body = WHOLE | {"stream": stream}

    async def scenario(site):
        proxy = site.proxies[0]
        status, _ = await streamed(site, body)
        assert status == 200
        (pair,) = proxy._pairs
        size = pair._request_bytes if side == "request_at" else pair._answer_bytes
        pair.end("reset")
        await site.until(lambda: site.pool("chat").engines["gpu-0"].connections == 0)
        for at in offsets(size):
            harm = Harm(kind, **{side: at})
            harmed(site, harm, first=proxy.accepted + 1)
            before = len(executed(site))
            status, received = await streamed(site, body)
            assert len(executed(site)) - before <= 1
            if stream and status == 200:
                assert not received.endswith(LAST_CHUNK)
                broke(received, "engine_broken_answer")
            elif not received:
                pytest.fail("the client got no answer")
            else:
                assert status == 502, at
            pairs = list(proxy._pairs)
            for pair in pairs:
                pair.end("reset")
            await site.until(lambda: site.pool("chat").engines["gpu-0"].connections == 0)
        ids = executed(site)
        assert len(ids) == len(set(ids))
        assert len({record.request_id for record in site.records}) == len(site.records)

    # So many failures in a row would put the engine out of service.
    models = model(chat_model, health={"broken_after": 1000})
    play(scenario, backends=1, proxied=True, safety_s=600, models=models)
