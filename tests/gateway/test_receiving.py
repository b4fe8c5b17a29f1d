# SPDX-License-Identifier: Apache-2.0
"""What comes slowly, in large heads or over many connections is refused; others are served."""

import json

import pytest

from taketurns.gateway.failed_auth import (
    ADDRESSES_MAX,
    WINDOW_US,
    FailedAuth,
    TooManyWrongKeysError,
)
from taketurns.gateway.inbound import Phase
from taketurns.gateway.peer import head_of

CHAT = "/v1/chat/completions"
GOOD = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
HEAD = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n"


def code_of(body):
    return json.loads(body)["error"]["code"]


LARGE = {
    "a long url": (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414, "url_too_long"),
    "a longer one": (b"GET /" + b"x" * 30_000, 414, "url_too_long"),
    "a long header": (HEAD + b"X: " + b"SECRET" * 4_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "long headers": (HEAD + b"X: " + (b"SECRET" * 900 + b"\r\nX: ") * 4, 431, "headers_too_large"),
    "many headers": (
        HEAD + b"".join(b"X%d: SECRET\r\n" % number for number in range(200)) + b"\r\n",
        431,
        "too_many_headers",
    ),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_head_that_is_too_large_is_told_so_and_the_connection_closed(play, case):
    data, expected, code = LARGE[case]

    async def scenario(site):
        wire = await site.wire()
        await wire.send(data)
        status, headers, body = await wire.reply()
        assert (status, code_of(body)) == (expected, code)
        assert (headers["connection"], headers["x-request-executed"]) == ("close", "no")
        assert b"SECRET" not in body
        assert await wire.rest() == b""
        assert (await site.chat()).status == 200

    play(scenario)


def test_a_head_that_grows_piece_by_piece_is_431(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(HEAD)
        for number in range(100):
            try:
                await wire.send(b"X%d: %b\r\n" % (number, b"y" * 500))
            except ConnectionError:
                break
        received = await wire.rest()
        assert received.startswith(b"HTTP/1.1 431 ") or not received

    play(scenario)


def test_a_head_at_its_bound_is_served(play):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post(CHAT, GOOD, headers=["X: " + "y" * 7_000, "Y: " + "z" * 7_000])
        await wire.send(request)
        assert (await wire.reply())[0] == 200

    play(scenario)


@pytest.mark.parametrize("after", ["nothing", "an answer"])
def test_a_head_that_does_not_come_to_its_end_is_408(play, after):
    async def scenario(site):
        wire = await site.wire()
        if after == "an answer":
            await wire.send(site.raw_post(CHAT, GOOD))
            assert (await wire.reply())[0] == 200
        await wire.send(HEAD)
        status, headers, body = await wire.reply()
        assert (status, code_of(body)) == (408, "head_timeout")
        assert headers["connection"] == "close"
        assert await wire.rest() == b""

    play(scenario, server={"head_timeout": "50ms"})


def test_a_slow_head_behind_a_request_under_way_does_not_take_its_answer(play):
    async def scenario(site):
        held = await site.fill(tenant="globex")
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD))
        await site.queued("chat", 1)
        await wire.send(HEAD)
        await site.until(lambda: any(one.ending for one in site.inbound()))
        site.engines["gpu-0"].release()
        received = await wire.rest()
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert received.count(b"HTTP/1.1 ") == 1
        for task in held:
            assert (await task).status == 200

    play(scenario, server={"head_timeout": "50ms"})


def test_a_head_in_pieces_is_served_when_it_is_whole(play):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post(CHAT, GOOD)
        for start in range(0, len(request), 7):
            await wire.send(request[start : start + 7])
        assert (await wire.reply())[0] == 200
        assert all(one.phase is Phase.IDLE for one in site.inbound())

    play(scenario)


def test_an_idle_connection_is_closed(play):
    async def scenario(site):
        wire = await site.wire()
        assert await wire.rest() == b""
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD))
        assert (await wire.reply())[0] == 200
        assert await wire.rest() == b""

    play(scenario, server={"idle_timeout": "50ms"})


def test_an_address_has_so_many_connections_and_others_are_not_counted(play):
    async def scenario(site):
        wires = [await site.wire() for _ in range(2)]
        for wire in wires:
            await wire.send(site.raw_post(CHAT, GOOD))
            assert (await wire.reply())[0] == 200
        third = await site.wire()
        status, headers, body = await third.reply()
        assert (status, code_of(body)) == (503, "too_many_connections")
        assert headers["retry-after"] == "1"
        assert await third.rest() == b""
        other = await site.wire(source="127.0.0.2")
        await other.send(site.raw_post(CHAT, GOOD))
        assert (await other.reply())[0] == 200
        await wires[0].close()
        await site.until(lambda: len(site.inbound()) == 2)
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD))
        assert (await wire.reply())[0] == 200

    play(scenario, server={"address_connections_max": 2})


def test_wrong_keys_become_429_and_a_right_one_is_still_accepted(play):
    async def scenario(site):
        wrong = {"Authorization": "Bearer sk-nobody"}
        statuses = [(await site.chat(headers=wrong)).status for _ in range(3)]
        assert statuses == [401, 401, 401]
        reply = await site.chat(headers=wrong)
        assert (reply.status, reply.error["code"]) == (429, "too_many_wrong_keys")
        assert 1 <= int(reply.headers["Retry-After"]) <= 60
        assert (await site.chat()).status == 200

    play(scenario, server={"auth_failures_max": 3})


def failures(counter, address, now_us):
    """Return how many wrong keys pass before one is refused."""
    for number in range(100):
        try:
            counter.count(address, now_us)
        except TooManyWrongKeysError:
            return number
    return None


def test_it_is_told_when_wrong_keys_are_counted_anew():
    counter = FailedAuth(1)
    counter.count("10.0.0.1", 100)
    with pytest.raises(TooManyWrongKeysError) as caught:
        counter.count("10.0.0.1", 1_100)
    assert caught.value.retry_us == WINDOW_US - 1_000


def test_wrong_keys_are_counted_by_address_and_minute():
    counter = FailedAuth(5)
    assert failures(counter, "10.0.0.1", 0) == 5
    assert failures(counter, "10.0.0.2", 0) == 5
    assert failures(counter, "10.0.0.1", WINDOW_US - 1) == 0
    assert failures(counter, "10.0.0.1", WINDOW_US) == 5
    assert failures(FailedAuth(None), "10.0.0.1", 0) is None


def test_an_ipv6_client_is_its_network():
    counter = FailedAuth(5)
    assert failures(counter, "2001:db8::1", 0) == 5
    assert failures(counter, "2001:db8::2", 0) == 0
    assert failures(counter, "2001:db8:0:1::1", 0) == 5


def test_what_is_kept_of_addresses_is_bounded():
    counter = FailedAuth(3)
    for number in range(ADDRESSES_MAX + 2):
        counter.count(f"name-{number}", 0)
    assert len(counter._counts) == ADDRESSES_MAX + 1
    counter.count("one more", 0)
    with pytest.raises(TooManyWrongKeysError):
        counter.count("and another", 0)


@pytest.mark.parametrize("value", ["a\r\nSet-Cookie: b", "a\nb", "a\rb"])
def test_a_header_with_a_line_break_is_never_written(value):
    with pytest.raises(ValueError, match="line break"):
        head_of(200, {"X-Good": "1", "X-Bad": value}, "")


def test_http_1_0_keeps_a_connection_where_the_client_asks_for_it(play):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post(CHAT, GOOD, headers=["Connection: keep-alive"])
        for _ in range(2):
            await wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            status, headers, _ = await wire.reply()
            assert (status, headers["connection"]) == (200, "keep-alive")

    play(scenario)
