# SPDX-License-Identifier: Apache-2.0
"""The pooled client: what was sent is known, cancel closes one connection, and limits hold."""

import asyncio
import dataclasses
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from taketurns.engines.client import BaseUrl, HttpClient, parse_base_url
from taketurns.engines.connection import BUFFER_BYTES_MAX, Answer
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from taketurns.ports.engine import EngineLimits
from taketurns.testing.engine import chat_answer
from taketurns.testing.http_engine import FakeHttpEngine, Fault

BODY = b'{"model":"fake","messages":[]}'
STREAM_BODY = b'{"model":"fake","messages":[],"stream":true}'
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
Result = TypeVar("Result")

SOON_S = 0.02
NEVER_S = 3600.0
PATIENT = EngineLimits(
    connect_s=NEVER_S, first_byte_s=NEVER_S, between_chunks_s=NEVER_S, total_s=NEVER_S
)


@asynccontextmanager
async def client_of(
    url: str,
    *,
    limits: EngineLimits = PATIENT,
    connections_max: int = 8,
    idle_s: float = NEVER_S,
    trial_s: float = SOON_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[HttpClient]:
    client = HttpClient(
        parse_base_url(url),
        engine="e1",
        limits=limits,
        connections_max=connections_max,
        idle_s=idle_s,
        trial_s=trial_s,
        tls=tls,
    )
    try:
        yield client
    finally:
        await client.aclose()


async def send(client: HttpClient, body: bytes = BODY, request_id: str = "r1") -> Answer:
    head = client.head("POST", "/v1/chat/completions", [("Content-Type", "application/json")])
    return await client.open(head, body, [("X-Request-Id", request_id)])


async def whole(client: HttpClient, body: bytes = BODY) -> bytes:
    answer = await send(client, body)
    data = await answer.read(1_000_000)
    assert data is not None
    return data


def with_engine(
    run: Callable[[FakeHttpEngine], Coroutine[None, None, None]], *faults: Fault, text: str = "a b"
) -> None:
    """Run a test's coroutine beside an engine whose first requests meet these faults."""

    async def main() -> None:
        staged = dict(enumerate(faults, start=1))
        async with FakeHttpEngine(staged, text=text) as engine:
            await run(engine)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that no event tells of."""
    while not condition():
        await asyncio.sleep(0.001)


def start(work: Coroutine[None, None, Result]) -> asyncio.Task[Result]:
    return asyncio.get_running_loop().create_task(work)


# Reuse


def test_one_connection_serves_requests_that_follow_each_other() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            for _ in range(3):
                assert await whole(client) == chat_answer("a b")
            assert (client.connections, client.connections_idle) == (1, 1)
        assert [request.connection for request in engine.requests] == [1, 1, 1]

    with_engine(run)


def test_the_connection_used_last_is_used_first() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            engine.hold()
            first = start(whole(client))
            await engine.executed.reached(1)
            second = start(whole(client))
            await engine.executed.reached(2)
            engine.release()
            await asyncio.gather(first, second)
            assert client.connections_idle == 2
            for _ in range(2):
                await whole(client)
        numbers = [request.connection for request in engine.requests]
        assert numbers[2] == numbers[3]

    with_engine(run)


def test_a_connection_that_the_engine_closed_while_idle_is_not_used_again() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            await whole(client)
            await whole(client)
        assert [request.connection for request in engine.requests] == [1, 2]
        assert len(engine.executed) == 2

    with_engine(run, Fault(close_idle=True))


def test_a_connection_rests_after_an_answer_in_chunks() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            assert await whole(client) == b"ok"
            # The engine may be about to close it.
            assert (client.connections, client.connections_idle) == (1, 0)
            assert await whole(client) == b"ok"
            await until(lambda: client.connections_idle == 2)
            assert await whole(client) == b"ok"
        first, second, third = (request.connection for request in engine.requests)
        assert first != second
        assert third in {first, second}

    with_engine(run, *[Fault(raw=CHUNKS)] * 3)


def test_none_is_used_again_after_chunks_before_the_engine_is_trusted() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, trial_s=NEVER_S) as client:
            for _ in range(3):
                assert await whole(client) == b"ok"
            # However late the engine closes them.
            assert (client.connections, client.connections_idle) == (3, 0)
        assert [request.connection for request in engine.requests] == [1, 2, 3]

    with_engine(run, *[Fault(raw=CHUNKS)] * 3)


def test_an_engine_that_closes_a_resting_connection_is_trusted_no_longer() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, trial_s=NEVER_S) as client:
            client._keeps_after_chunks = True
            assert await whole(client) == b"ok"
            await until(lambda: client.connections == 0)
            assert not client._keeps_after_chunks
            for _ in range(2):
                assert await whole(client) == b"ok"
            assert (client.connections, client.connections_idle) == (2, 0)

    with_engine(run, Fault(raw=CHUNKS, close_idle=True), *[Fault(raw=CHUNKS)] * 2)


def test_an_engine_that_breaks_a_kept_connection_is_trusted_no_longer() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, trial_s=NEVER_S) as client:
            client._keeps_after_chunks = True
            assert await whole(client) == b"ok"
            await until(lambda: client.connections_idle == 1)
            with pytest.raises(EngineBrokenError, match="that was kept"):
                await whole(client)
            assert not client._keeps_after_chunks
            for _ in range(2):
                assert await whole(client) == b"ok"
            assert (client.connections, client.connections_idle) == (2, 0)

    with_engine(run, Fault(raw=CHUNKS), Fault(reset_at=0), *[Fault(raw=CHUNKS)] * 2)


def test_a_connection_closed_after_a_whole_answer_says_nothing_of_chunks() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, trial_s=NEVER_S) as client:
            client._keeps_after_chunks = True
            await whole(client)
            await until(lambda: client.connections == 0)
            assert await whole(client) == b"ok"
            await until(lambda: client.connections_idle == 1)

    with_engine(run, Fault(close_idle=True), Fault(raw=CHUNKS))


def test_a_connection_closed_while_it_rests_is_forgotten() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            for _ in range(3):
                assert await whole(client) == b"ok"
            await until(lambda: client.connections == 0)
        assert [request.connection for request in engine.requests] == [1, 2, 3]

    with_engine(run, *[Fault(raw=CHUNKS, close_idle=True)] * 3)


def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again() -> None:
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            assert await whole(client) == b"ok"
            assert client.connections == 0
            assert await whole(client) == chat_answer("a b")

    with_engine(run, Fault(raw=good + good))


def test_bytes_that_the_loop_has_not_read_are_found_before_a_request_is_written() -> None:
    # The server writes to its idle connection from the same thread, so the
    # client's loop can't have looked at its socket in between.
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            loop = asyncio.get_running_loop()
            async with client_of(f"http://127.0.0.1:{port}") as client:
                first = start(whole(client))
                peer, _ = await loop.sock_accept(listener)
                await loop.sock_recv(peer, 65536)
                await loop.sock_sendall(peer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                assert await first == b"ok"
                peer.close()
                second = start(whole(client))
                peer, _ = await loop.sock_accept(listener)
                assert await loop.sock_recv(peer, 65536)
                peer.send(b"HTTP/1.1 204 None\r\n\r\n")
                assert await second == b""
                peer.close()

    asyncio.run(main())


def test_a_connection_that_was_idle_too_long_is_not_used_again() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, idle_s=0.0) as client:
            await whole(client)
            await whole(client)
        assert [request.connection for request in engine.requests] == [1, 2]

    with_engine(run)


def test_idle_connections_are_closed_when_their_time_is_over() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, idle_s=SOON_S) as client:
            await whole(client)
            assert client.connections == 1
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            loop.call_later(2 * SOON_S, over.set_result, None)
            await over
            assert client.connections == 0

    with_engine(run)


@pytest.mark.parametrize("reply", [b"Connection: close\r\nContent-Length: 2\r\n\r\nok", b"\r\nok"])
def test_a_connection_that_the_engine_does_not_keep_is_not_used_again(reply: bytes) -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            assert await whole(client) == b"ok"
            assert client.connections == 0

    with_engine(run, Fault(raw=b"HTTP/1.1 200 OK\r\n" + reply, close_idle=True))


def test_an_answer_before_the_whole_request_was_read_ends_the_connection() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            port = listener.getsockname()[1]
            async with client_of(f"http://127.0.0.1:{port}") as client:
                sending = start(send(client, b"x" * 64_000_000))
                peer, _ = await loop.sock_accept(listener)
                assert await loop.sock_recv(peer, 1) == b"P"
                peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
                answer = await sending
                assert answer.status == 413
                assert client.connections == 0
                peer.close()

    asyncio.run(main())


# What was sent


def test_a_refused_connection_means_that_nothing_was_sent() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        await engine.refuse()
        async with client_of(engine.url) as client:
            with pytest.raises(EngineUnavailableError) as caught:
                await send(client)
            assert not caught.value.executed
            assert client.connections == 0
            await engine.listen()
            assert await whole(client)

    with_engine(run)


def test_a_connection_that_takes_too_long_means_that_nothing_was_sent() -> None:
    # The port accepts and stays silent, so that the TLS handshake never ends.
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            limits = dataclasses.replace(PATIENT, connect_s=SOON_S)
            async with client_of(url, limits=limits) as client:
                with pytest.raises(EngineUnavailableError, match="no connection within"):
                    await send(client)
                assert client.connections == 0

    asyncio.run(main())


def test_a_name_that_nobody_has_means_that_nothing_was_sent() -> None:
    async def main() -> None:
        async with client_of("http://a..invalid") as client:
            with pytest.raises(EngineUnavailableError):
                await send(client)

    asyncio.run(main())


def test_more_calls_than_connections_are_refused_before_anything_is_sent() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, connections_max=1) as client:
            engine.hold()
            first = start(whole(client))
            await engine.executed.reached(1)
            with pytest.raises(EngineUnavailableError, match="all 1 connections are in use"):
                await send(client)
            engine.release()
            assert await first
            assert await whole(client)
        assert len(engine.requests) == 2

    with_engine(run)


def test_connections_under_way_count_towards_the_most() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, connections_max=2) as client:
            results = await asyncio.gather(
                *[whole(client) for _ in range(5)], return_exceptions=True
            )
        kinds = [type(result) for result in results]
        assert kinds.count(bytes) == 2
        assert kinds.count(EngineUnavailableError) == 3

    with_engine(run)


@pytest.mark.parametrize("at", [0, 1, 20, 90])
@pytest.mark.parametrize("way", ["reset_at", "cut_at"])
def test_an_answer_that_breaks_off_may_have_been_executed_and_is_not_sent_again(
    way: str, at: int
) -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            with pytest.raises(EngineBrokenError) as caught:
                await whole(client)
            assert caught.value.executed
            assert client.connections == 0
        assert len(engine.requests) == 1

    with_engine(run, Fault(**{way: at}))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["reset_at", "cut_at"])
def test_a_kept_connection_closed_on_a_request_may_have_executed_it(way: str) -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            await whole(client)
            with pytest.raises(EngineBrokenError, match="on a connection that was kept") as caught:
                await send(client)
            assert caught.value.executed
        assert [request.connection for request in engine.requests] == [1, 1]

    with_engine(run, Fault(), Fault(**{way: 0}))  # type: ignore[arg-type]


def test_the_pieces_before_a_break_are_still_delivered() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client)
            chunks = answer.chunks()
            assert await anext(chunks) == b"abc"
            with pytest.raises(EngineBrokenError, match="before the end of the body"):
                await anext(chunks)

    with_engine(run, Fault(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", close_idle=True))


def test_an_answer_that_is_not_http_is_broken() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            with pytest.raises(EngineBrokenError, match="not valid HTTP"):
                await send(client)
            assert client.connections == 0

    with_engine(run, Fault(raw=b"hello\r\n\r\n"))


def test_a_header_that_cannot_be_sent_costs_no_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            with pytest.raises(ValueError, match="X-Request-Id"):
                await send(client, request_id="a\r\nb")
            assert client.connections == 0
        assert engine.requests == []

    with_engine(run)


def test_the_host_is_the_configured_one_and_no_compression_is_asked_for() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            await whole(client)
        headers = engine.requests[0].headers
        assert f"http://{headers['host']}" == engine.url
        assert headers["accept-encoding"] == "identity"
        assert headers["content-length"] == str(len(BODY))

    with_engine(run)


# Cancel


def test_cancelling_before_the_head_closes_exactly_that_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            engine.hold()
            other = start(send(client, request_id="other"))
            await engine.executed.reached(1)
            victim = start(send(client, request_id="victim"))
            await engine.executed.reached(2)
            victim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await victim
            await engine.cancelled.reached(1)
            assert list(engine.cancelled) == ["victim"]
            assert client.connections == 1
            engine.release()
            assert (await other).status == 200

    with_engine(run)


def test_cancelling_a_reader_amid_the_answer_closes_its_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client, STREAM_BODY)
            started = asyncio.Event()

            async def read() -> None:
                async for _ in answer.chunks():
                    started.set()

            reader = start(read())
            await started.wait()
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            assert client.connections == 0
            await engine.cancelled.reached(1)

    with_engine(run, Fault(stall_at=300))


@pytest.mark.parametrize("read_first", [False, True])
def test_closing_an_answer_before_its_end_closes_its_connection(read_first: bool) -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client, STREAM_BODY)
            if read_first:
                await anext(answer.chunks())
            await answer.aclose()
            await answer.aclose()
            assert client.connections == 0
            await engine.cancelled.reached(1)

    with_engine(run, Fault(stall_at=300))


def test_closing_an_answer_that_is_complete_keeps_its_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client)
            await answer.aclose()
            assert client.connections_idle == 1
        assert len(engine.cancelled) == 0

    with_engine(run)


def test_closing_an_answer_wakes_its_reader_with_an_error() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client, STREAM_BODY)
            chunks = answer.chunks()
            await anext(chunks)

            async def read() -> bytes:
                return await anext(chunks)

            reader = start(read())
            asyncio.get_running_loop().call_soon(answer.abort)
            with pytest.raises(EngineBrokenError, match="given up"):
                await reader

    with_engine(run, Fault(stall_at=300))


def test_cancelling_while_connecting_leaves_no_connection() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            async with client_of(url) as client:
                sending = start(send(client))
                peer, _ = await asyncio.get_running_loop().sock_accept(listener)
                assert client.connections == 1
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                assert client.connections == 0
                peer.close()

    asyncio.run(main())


def test_many_cancels_leak_no_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url, connections_max=64) as client:
            engine.hold()
            for turn in range(1, 6):
                calls = [start(send(client)) for _ in range(40)]
                await engine.executed.reached(40 * turn)
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)
                assert client.connections == 0
            await engine.cancelled.reached(200)
            engine.release()
            assert await whole(client)

    with_engine(run)


def test_closing_the_client_breaks_off_what_runs_and_refuses_what_comes() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            engine.hold()
            running = start(send(client))
            await engine.executed.reached(1)
            await client.aclose()
            with pytest.raises(EngineBrokenError, match="closed"):
                await running
            with pytest.raises(EngineUnavailableError, match="closed"):
                await send(client)
            assert client.connections == 0

    with_engine(run)


# Limits


@pytest.mark.parametrize(
    ("field", "stall_at", "text"),
    [
        ("first_byte_s", 0, "no answer began within"),
        ("first_byte_s", 20, "no answer began within"),
        ("between_chunks_s", 300, "amid the answer"),
        ("total_s", 0, "not complete after"),
        ("total_s", 300, "not complete after"),
    ],
)
def test_an_engine_that_stalls_meets_the_limit(field: str, stall_at: int, text: str) -> None:
    async def run(engine: FakeHttpEngine) -> None:
        limits = dataclasses.replace(PATIENT, **{field: SOON_S})
        async with client_of(engine.url, limits=limits) as client:
            with pytest.raises(EngineTimeoutError, match=text) as caught:
                await whole(client, STREAM_BODY)
            assert caught.value.executed
            assert client.connections == 0
            await engine.cancelled.reached(1)

    with_engine(run, Fault(stall_at=stall_at))


def test_a_limit_of_one_request_does_not_strike_the_next_on_its_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        limits = dataclasses.replace(PATIENT, first_byte_s=NEVER_S, between_chunks_s=SOON_S)
        async with client_of(engine.url, limits=limits) as client:
            await whole(client, STREAM_BODY)
            await until(lambda: client.connections_idle == 1)
            engine.hold()
            second = start(whole(client))
            await engine.executed.reached(2)
            loop = asyncio.get_running_loop()
            loop.call_later(3 * SOON_S, engine.release)
            assert await second == chat_answer("a b")
        assert [request.connection for request in engine.requests] == [1, 1]

    with_engine(run)


# Back-pressure

LARGE = 8_000_000


def test_reading_pauses_while_the_reader_is_behind_and_nothing_is_lost() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE

    async def run(engine: FakeHttpEngine) -> None:
        limits = dataclasses.replace(PATIENT, between_chunks_s=SOON_S)
        async with client_of(engine.url, limits=limits) as client:
            answer = await send(client)
            loop = asyncio.get_running_loop()
            # Longer than the limit between chunks, which must not count a pause.
            later = loop.create_future()
            loop.call_later(3 * SOON_S, later.set_result, None)
            await later
            sizes = [len(chunk) async for chunk in answer.chunks()]
        assert sum(sizes) == LARGE
        # One read of asyncio's selector transport is at most 256 KiB.
        assert max(sizes) <= BUFFER_BYTES_MAX + 256 * 1024

    with_engine(run, Fault(raw=raw))


def test_an_answer_given_up_during_a_pause_closes_its_connection() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE

    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client)
            await anext(answer.chunks())
            await answer.aclose()
            assert client.connections == 0

    with_engine(run, Fault(raw=raw))


def test_an_answer_larger_than_the_cap_is_given_up() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE

    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client)
            assert await answer.read(1_000_000) is None
            assert client.connections == 0

    with_engine(run, Fault(raw=raw))


# Pouring


class Basin:
    """A sink that keeps what it's given, and may be behind, or break, at a piece."""

    def __init__(self, *, behind_at: int = 0, breaks_at: int = 0) -> None:
        self.pieces: list[bytes] = []
        self.caught_up = asyncio.Event()
        self.waits = 0
        self._behind_at = behind_at
        self._breaks_at = breaks_at

    def take(self, data: bytes) -> bool:
        self.pieces.append(data)
        if len(self.pieces) == self._breaks_at:
            raise ZeroDivisionError
        return len(self.pieces) != self._behind_at

    async def catch_up(self) -> None:
        self.waits += 1
        await self.caught_up.wait()


def test_a_stream_is_poured_byte_for_byte() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            basin = Basin()
            await (await send(client, STREAM_BODY)).pour(basin)
            data = b"".join(basin.pieces)
            assert data.count(b"data: ") == 4
            assert data.endswith(b"data: [DONE]\n\n")
            await until(lambda: client.connections_idle == 1)

    with_engine(run)


@pytest.mark.parametrize("behind_at", [1, 2, 5])
def test_pouring_pauses_while_the_sink_is_behind_and_nothing_is_lost(behind_at: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE

    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            basin = Basin(behind_at=behind_at)
            answer = await send(client)
            pouring = start(answer.pour(basin))
            await until(lambda: basin.waits == 1)
            await until(lambda: answer._size > BUFFER_BYTES_MAX)
            assert len(basin.pieces) == behind_at
            basin.caught_up.set()
            await pouring
        assert sum(map(len, basin.pieces)) == LARGE
        assert max(map(len, basin.pieces)) <= BUFFER_BYTES_MAX + 256 * 1024

    with_engine(run, Fault(raw=raw))


@pytest.mark.parametrize("breaks_at", [1, 3])
def test_what_a_sink_raises_ends_the_answer_and_its_connection(breaks_at: int) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE

    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            basin = Basin(breaks_at=breaks_at)
            answer = await send(client)
            with pytest.raises(ZeroDivisionError):
                await answer.pour(basin)
            assert len(basin.pieces) == breaks_at
            assert client.connections == 0

    with_engine(run, Fault(raw=raw))


def test_pouring_a_broken_answer_hands_over_what_came_and_says_so() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            basin = Basin()
            answer = await send(client, STREAM_BODY)
            with pytest.raises(EngineBrokenError):
                await answer.pour(basin)
            assert b"".join(basin.pieces).startswith(b"data: ")

    with_engine(run, Fault(cut_at=400))


def test_cancelling_what_is_poured_closes_its_connection() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            basin = Basin()
            answer = await send(client, STREAM_BODY)
            pouring = start(answer.pour(basin))
            await until(lambda: bool(basin.pieces))
            pouring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pouring
            assert client.connections == 0
            await engine.cancelled.reached(1)

    with_engine(run, Fault(stall_at=300))


# The stream


def test_a_stream_is_delivered_byte_for_byte() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            answer = await send(client, STREAM_BODY)
            assert answer.headers["content-type"] == "text/event-stream"
            data = b"".join([chunk async for chunk in answer.chunks()])
            assert data.count(b"data: ") == 4
            assert data.endswith(b"data: [DONE]\n\n")
            await until(lambda: client.connections_idle == 1)

    with_engine(run)


def test_an_answer_until_the_end_of_the_connection_is_whole() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            assert await whole(client) == b"abc"

    with_engine(run, Fault(raw=b"HTTP/1.0 200 OK\r\n\r\nabc", close_idle=True))


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is needed to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *[openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
            *["-nodes", "-days", "2", "-subj", "/CN=localhost"],
            *["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_an_engine_behind_tls_is_used_and_its_connection_kept(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = certificate

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n" + BODY)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.read()
        writer.close()

    async def main() -> None:
        server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_tls.load_cert_chain(cert, key)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_tls)
        async with server:
            port = server.sockets[0].getsockname()[1]
            trusting = ssl.create_default_context(cafile=str(cert))
            async with client_of(f"https://localhost:{port}", tls=trusting) as client:
                assert await whole(client) == b"ok"
                assert await whole(client) == b"ok"
                assert client.connections == 1
            async with client_of(f"https://localhost:{port}") as client:
                with pytest.raises(EngineUnavailableError, match="certificate verify failed"):
                    await send(client)

    asyncio.run(main())


# URLs


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h", BaseUrl(False, "h", 80, "h", "")),
        ("https://h/", BaseUrl(True, "h", 443, "h", "")),
        ("http://H.example:8000/v1/", BaseUrl(False, "h.example", 8000, "h.example:8000", "/v1")),
        ("http://[::1]:8000/a/b", BaseUrl(False, "::1", 8000, "[::1]:8000", "/a/b")),
        ("http://10.0.0.7:80", BaseUrl(False, "10.0.0.7", 80, "10.0.0.7:80", "")),
    ],
)
def test_a_url_is_read(url: str, base: BaseUrl) -> None:
    assert parse_base_url(url) == base


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:8000",
        "ftp://h",
        "unix:///run/x",
        "http://",
        "http://:8000",
        "http://h:0",
        "http://h:65536",
        "http://h:x",
        "http://user:pass@h",
        "http://h?x=1",
        "http://h/v1?",
        "http://h#a",
        "http://h/a b",
        "http://h//a",
        "http://h/\r\nX: y",
        "http://h\r\n",
        "http://hé",
        "http://[::1",
        " http://h",
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_base_url(url)


def test_every_error_names_its_engine_and_place() -> None:
    async def run(engine: FakeHttpEngine) -> None:
        async with client_of(engine.url) as client:
            for _ in range(2):
                with pytest.raises(EngineError, match=r"^127\.0\.0\.1:") as caught:
                    await whole(client)
                assert caught.value.engine == "e1"

    with_engine(run, Fault(reset_at=0), Fault(raw=b"?"))
