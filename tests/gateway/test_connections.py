# SPDX-License-Identifier: Apache-2.0
"""Connections: who leaves is noticed, who is refused is told, who floods is held back."""

import asyncio
import json
import socket
import struct

import pytest

from taketurns.gateway import inbound
from taketurns.gateway.inbound import AHEAD_BYTES_MAX

CHAT = "/v1/chat/completions"
GOOD = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
READ_BYTES_MAX = 256 * 1024
"""Most that either loop hands over at once."""

LINGER = struct.pack("ii", 1, 0)


def code_of(body):
    return json.loads(body)["error"]["code"]


# Who leaves


def end_half(wire):
    wire.writer.write_eof()


def reset(wire):
    sock = wire.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
    wire.cut()


def close(wire):
    wire.cut()


LEAVES = [end_half, reset, close]


@pytest.mark.parametrize("leave", LEAVES)
def test_who_leaves_while_it_waits_is_cancelled(play, leave):
    async def scenario(site):
        held = await site.fill()
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD))
        await site.queued("chat", 1)
        leave(wire)
        await site.queued("chat", 0)
        await site.until(lambda: site.records)
        assert [(one.outcome, one.status) for one in site.records] == [("cancelled", 499)]
        site.engines["gpu-0"].release()
        for task in held:
            assert (await task).status == 200

    play(scenario)


@pytest.mark.parametrize("leave", LEAVES)
def test_who_leaves_amid_its_body_is_cancelled(play, leave):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD)[:-10])
        await site.until(lambda: site.gateway.active)
        leave(wire)
        await site.until(lambda: site.records)
        assert [one.outcome for one in site.records] == ["cancelled"]
        assert not site.engines["gpu-0"].calls
        await site.until(lambda: not site.inbound())

    play(scenario)


@pytest.mark.parametrize("leave", LEAVES)
def test_who_leaves_while_the_engine_works_is_cancelled(play, leave):
    async def scenario(site):
        site.engines["gpu-0"].hold()
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD | {"stream": True}))
        await site.until(lambda: site.scheduler("chat").running == 1)
        leave(wire)
        await site.until(lambda: site.records)
        assert [one.outcome for one in site.records] == ["cancelled"]
        assert site.scheduler("chat").running == 0

    play(scenario)


@pytest.mark.parametrize("leave", LEAVES)
def test_who_has_sent_more_than_is_read_is_missed_too(play, leave):
    async def scenario(site):
        site.engines["gpu-0"].hold()
        wire = await site.wire()
        wire.writer.write(site.raw_post(CHAT, GOOD) + b"x" * (1 << 20))
        await site.until(lambda: site.scheduler("chat").running == 1)
        await site.until(lambda: any(one._paused for one in site.inbound()))
        leave(wire)
        await site.until(lambda: site.records)
        assert [one.outcome for one in site.records] == ["cancelled"]

    play(scenario, server={"head_timeout": "200ms"})


def test_a_connection_that_is_closing_is_not_looked_at(play):
    async def scenario(site):
        site.engines["gpu-0"].hold()
        wire = await site.wire()
        wire.writer.write(site.raw_post(CHAT, GOOD) + b"x" * (1 << 20))
        await site.until(lambda: any(one._paused for one in site.inbound()))
        (connection,) = site.inbound()
        connection.abort()
        connection.look_for_leave()
        await site.until(lambda: site.records)
        connection.look_for_leave()

    play(scenario)


# Who is refused


def test_who_still_sends_a_body_that_is_too_large_sees_the_answer(play):
    async def scenario(site):
        wire = await site.wire()
        head = site.raw_post(CHAT, b"").replace(b"Length: 0", b"Length: 999999999")
        wire.writer.write(head + b"x" * (4 << 20))
        status, headers, body = await wire.reply()
        assert (status, code_of(body)) == (413, "body_too_large")
        assert headers["connection"] == "close"
        assert await wire.rest() == b""
        await wire.writer.drain()

    play(scenario)


def test_who_still_sends_what_is_no_http_sees_the_answer_once(play):
    async def scenario(site):
        wire = await site.wire()
        wire.writer.write(b"GET / HTTP/1.1\nHost: a\n\n" + site.raw_post(CHAT, GOOD) * 5_000)
        status, _, body = await wire.reply()
        assert (status, code_of(body)) == (400, "malformed_http")
        assert await wire.rest() == b""
        assert not site.engines["gpu-0"].calls

    play(scenario)


def test_who_does_not_go_after_a_refusal_is_cut_off(play, monkeypatch):
    monkeypatch.setattr(inbound, "LINGER_S", 0.05)

    async def scenario(site):
        wire = await site.wire()
        await wire.send(b"nonsense\r\n\r\n")
        assert (await wire.reply())[0] == 400
        await site.until(lambda: not site.inbound())

    play(scenario, server={"head_timeout": "100ms"})


def test_who_never_reads_the_last_answer_is_cut_off(play, monkeypatch, chat_model):
    monkeypatch.setattr(inbound, "LINGER_S", 0.05)

    async def scenario(site):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", site.running.port))
        await site.until(site.inbound)
        (connection,) = site.inbound()
        connection.transport.write(b"x" * (8 << 20))
        connection.close()
        await site.until(lambda: not site.inbound())
        sock.close()

    play(scenario, server={"head_timeout": "100ms"})


def test_a_body_that_does_not_come_is_408_and_closed(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD)[:-1])
        status, headers, body = await wire.reply()
        assert (status, code_of(body)) == (408, "body_timeout")
        assert headers["connection"] == "close"
        assert await wire.rest() == b""

    play(scenario, server={"body_timeout": "50ms"})


def test_what_fails_outside_of_the_border_is_500_and_closed(play, caplog):
    async def scenario(site):
        async def fails(exchange):
            raise RuntimeError("planted")

        site.running.server._handle = fails
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD))
        status, headers, body = await wire.reply()
        assert (status, code_of(body)) == (500, "internal_error")
        assert headers["x-request-executed"] == "unknown"
        assert await wire.rest() == b""

    play(scenario)
    assert "planted" in caplog.text


# Who floods


def test_what_is_sent_ahead_is_answered_in_order_and_kept_within_bounds(play):
    async def scenario(site):
        held = await site.fill()
        wire = await site.wire()
        ahead = [
            f"GET /n{number} HTTP/1.1\r\nHost: a\r\nX: {'y' * 4000}\r\n\r\n".encode()
            for number in range(400)
        ]
        wire.writer.write(site.raw_post(CHAT, GOOD) + b"".join(ahead))
        await site.queued("chat", 1)
        await site.until(lambda: any(one._paused for one in site.inbound()))
        kept = max(len(one.reader.unread) for one in site.inbound())
        assert AHEAD_BYTES_MAX < kept <= AHEAD_BYTES_MAX + READ_BYTES_MAX
        site.engines["gpu-0"].release()
        assert (await wire.reply())[0] == 200
        for _ in ahead:
            assert (await wire.reply())[0] == 404
        for task in held:
            assert (await task).status == 200

    play(scenario)


def test_a_large_body_is_read_though_nobody_asks_at_once(play):
    async def scenario(site):
        body = GOOD | {"user": "u" * 900_000}
        assert (await site.chat(fields=body)).status == 200
        wire = await site.wire()
        for _ in range(2):
            await wire.send(site.raw_post(CHAT, body))
            assert (await wire.reply())[0] == 200
        assert not any(one._paused for one in site.inbound())

    play(scenario)


# What is answered


def test_a_head_is_asked_for_and_no_body_is_sent(play):
    async def scenario(site):
        wire = await site.wire()
        for method in (b"HEAD", b"GET"):
            await wire.send(method + b" /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            status, headers = await wire.head()
            assert status == 200
            length = int(headers["content-length"])
            assert length > 0
            assert headers["server"] == "taketurns"
            assert headers["date"].endswith(" GMT")
            assert "connection" not in headers
        assert len(await wire.reader.readexactly(length)) == length

    play(scenario)


@pytest.mark.parametrize("framed", ["Content-Length", "Transfer-Encoding: chunked"])
def test_an_upgrade_is_answered_as_plain_http_and_what_follows_is_the_next_request(play, framed):
    async def scenario(site):
        wire = await site.wire()
        upgrade = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA"]
        request = site.raw_post(CHAT, GOOD, headers=upgrade)
        if framed != "Content-Length":
            head, _, body = request.partition(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if b"Content-Length" not in line]
            head = b"\r\n".join([*lines, framed.encode()])
            request = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        await wire.send(request * 2)
        for _ in range(2):
            assert (await wire.reply())[0] == 200
        assert len(site.engines["gpu-0"].calls) == 2

    play(scenario)


def test_a_server_that_closes_lets_what_is_written_leave(play):
    async def scenario(site):
        wire, idle = await site.wire(), await site.wire()
        site.engines["gpu-0"].hold()
        await wire.send(site.raw_post(CHAT, GOOD))
        await site.until(lambda: site.scheduler("chat").running == 1)
        closing = site.start(site.running.server.aclose())
        assert await idle.rest() == b""
        site.engines["gpu-0"].release()
        status, headers, _ = await wire.reply()
        assert (status, headers["connection"]) == (200, "close")
        assert await wire.rest() == b""
        await closing
        assert not site.inbound()

    play(scenario)
