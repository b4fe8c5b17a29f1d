# SPDX-License-Identifier: Apache-2.0
"""Where one request ends and the next begins is never in doubt: no engine sees one too many.

Each case is followed by a whole request on the same connection. What can be read in two ways
is refused and the connection closed, so that nobody's request comes out of another's body.
Source of the cases: RFC 9112, sections 6 and 7, and what llhttp, h11 and Go have had to mend.
"""

import json

import pytest

from taketurns.system import give_way

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]}).encode()
SIZE = b"%x" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
WHOLE = SIZE + b"\r\n" + BODY + b"\r\n0\r\n\r\n"
LENGTH = b"Content-Length: %d" % len(BODY)

REFUSED = {
    # name: (headers, body)
    "length and chunked": (LENGTH + b"\r\n" + CHUNKED, WHOLE),
    "chunked and length": (CHUNKED + b"\r\n" + LENGTH, WHOLE),
    "two lengths that differ": (LENGTH + b"\r\nContent-Length: 3", BODY),
    "lengths in a list": (b"Content-Length: 3, 4", BODY),
    "a length with a plus": (b"Content-Length: +%d" % len(BODY), BODY),
    "a length in hex": (b"Content-Length: 0x%x" % len(BODY), BODY),
    "a length with a blank within": (b"Content-Length: 1 0", BODY),
    "a length over 64 bits": (b"Content-Length: 99999999999999999999999", BODY),
    "an empty length": (b"Content-Length:", BODY),
    "a blank before the colon": (b"Transfer-Encoding : chunked", WHOLE),
    "a vertical tab before the value": (b"Transfer-Encoding:\x0bchunked", WHOLE),
    "an unknown coding": (b"Transfer-Encoding: xchunked", WHOLE),
    "identity": (b"Transfer-Encoding: identity", WHOLE),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked", WHOLE),
    "chunked in two headers": (CHUNKED + b"\r\n" + CHUNKED, WHOLE),
    "chunked, and then not": (b"Transfer-Encoding: chunked, identity", WHOLE),
    "gzip before chunked": (b"Transfer-Encoding: gzip, chunked", WHOLE),
    "a value with a blank within": (b"Transfer-Encoding: chun ked", WHOLE),
    "a value and a parameter": (b"Transfer-Encoding: chunked;q=1", WHOLE),
    "quoted": (b'Transfer-Encoding: "chunked"', WHOLE),
    "folded": (b"Transfer-Encoding:\r\n chunked", WHOLE),
    "a bare line feed in the head": (b"X: 1\nTransfer-Encoding: chunked", WHOLE),
    "a bare carriage return in the head": (b"X: 1\rTransfer-Encoding: chunked", WHOLE),
    "a chunk's size with a plus": (CHUNKED, b"+" + WHOLE),
    "a chunk's size with a minus": (CHUNKED, b"-" + WHOLE),
    "a chunk's size with 0x": (CHUNKED, b"0x" + WHOLE),
    "a chunk's size with an underscore": (CHUNKED, b"1_0\r\n" + WHOLE),
    "a blank before a chunk's size": (CHUNKED, b" " + WHOLE),
    "no size": (CHUNKED, b"\r\n" + WHOLE),
    "a chunk's size over 64 bits": (CHUNKED, b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a size that wraps around": (CHUNKED, b"10000000000000000" + SIZE + b"\r\n" + BODY),
    "a chunk longer than its size": (CHUNKED, b"1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    "a chunk that ends in a bare line feed": (CHUNKED, SIZE + b"\r\n" + BODY + b"\n0\r\n\r\n"),
    "a size that ends in a bare line feed": (CHUNKED, SIZE + b"\n" + BODY + b"\r\n0\r\n\r\n"),
    "an extension with a bare line feed": (CHUNKED, SIZE + b";a\n=b\r\n" + BODY + b"\r\n0\r\n\r\n"),
}


def one(site, path, headers, body):
    head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {site.keys['acme']}\r\n"
    return head.encode() + headers + b"\r\n\r\n" + body


@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_and_closed(play, name):
    headers, body = REFUSED[name]

    async def scenario(site):
        wire = await site.wire()
        await wire.send(one(site, CHAT, headers, body) + site.raw_post(CHAT, BODY))
        received = await wire.rest()
        assert not site.engines["gpu-0"].calls
        assert received.count(b"HTTP/1.1 ") == 1
        assert received.startswith(b"HTTP/1.1 4")

    play(scenario)


@pytest.mark.parametrize(
    ("begins", "endless"),
    [
        (SIZE + b";", b"x" * 1024),
        (SIZE + b";a=", b'"y" ;b=' * 128),
        (SIZE + b"\r\n" + BODY + b"\r\n0\r\n", b"X-Trailer: 1\r\n" * 64),
        (b"0" * 64, b"0" * 1024),
    ],
)
def test_what_is_no_content_does_not_go_on_for_ever(play, begins, endless):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(one(site, CHAT, CHUNKED, begins))
        rest = site.start(wire.rest())
        try:
            while not rest.done():
                await wire.send(endless)
                await give_way()
        except ConnectionError:
            pass
        received = await rest
        assert received.count(b"HTTP/1.1 ") == received.count(b"HTTP/1.1 4") <= 1
        assert not site.engines["gpu-0"].calls

    play(scenario)


def test_a_body_of_the_smallest_chunks_is_read(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(one(site, CHAT, CHUNKED, b""))
        long = json.dumps(json.loads(BODY) | {"user": "u" * 10_000}).encode()
        for at in range(len(long)):
            await wire.send(b"1;x\r\n%b\r\n" % long[at : at + 1])
        await wire.send(b"0\r\n\r\n" + site.raw_post(CHAT, BODY))
        for _ in range(2):
            assert (await wire.reply())[0] == 200
        assert len(site.engines["gpu-0"].calls) == 2

    play(scenario)


# What is meant for this hop alone

HOP = {
    "trailers": (CHUNKED, WHOLE[:-2] + b"Authorization: Bearer x\r\nX-Own: 1\r\n\r\n"),
    "Connection that names the key": (LENGTH + b"\r\nConnection: authorization, x-a", BODY),
    "Keep-Alive, TE, Proxy-*": (
        LENGTH
        + b"\r\nKeep-Alive: timeout=5\r\nTE: trailers"
        + b"\r\nProxy-Connection: x\r\nProxy-Authorization: Basic eDp5\r\nX-Own: 1",
        BODY,
    ),
    "an upgrade to what isn't there": (
        LENGTH + b"\r\nConnection: upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        BODY,
    ),
    "a WebSocket": (
        LENGTH
        + b"\r\nConnection: upgrade\r\nUpgrade: websocket"
        + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        BODY,
    ),
}


@pytest.mark.parametrize("name", HOP)
def test_what_is_meant_for_one_hop_reaches_no_engine_and_changes_nothing(play, name, chat_model):
    headers, body = HOP[name]

    async def scenario(site):
        wire = await site.wire()
        await wire.send(one(site, CHAT, headers + b"\r\nX-Tenant: globex", body))
        status, _, _ = await wire.reply()
        assert status in {200, 400}
        assert (status == 200) == (len(site.backends[0].requests) == 1)
        for request in site.backends[0].requests:
            assert set(request.headers) == {
                "host",
                "content-type",
                "accept",
                "accept-encoding",
                "user-agent",
                "x-request-id",
                "content-length",
            }
        assert {record.tenant for record in site.records} <= {"acme"}

    play(scenario, backends=1, models={"chat": chat_model(engines=[{"url": "http://backend-0"}])})


def test_an_expectation_that_is_not_known_is_417(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(one(site, CHAT, LENGTH + b"\r\nExpect: 200-ok", BODY))
        status, _, answer = await wire.reply()
        assert (status, json.loads(answer)["error"]["code"]) == (417, "expectation_failed")
        assert not site.engines["gpu-0"].calls

    play(scenario)
