# SPDX-License-Identifier: Apache-2.0
"""A mock engine and load for it: raw asyncio protocols, so that neither is what is measured.

    python benchmarks/loopback.py          # serves as an engine, and prints its port

The engine answers a chat request with about 1 KB of JSON, or with events of 150
bytes, one every ``seed`` milliseconds, for as long as the client listens; with a
``seed`` of 0, with a few at once and the end. Each event holds the moment at
which it was written.
"""

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from itertools import count

import httptools
import uvloop

EVENT_BYTES = 150
MOMENT = re.compile(rb'"t(\d{20})"')
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
SEED = re.compile(rb'"seed":\s*(\d+)')


def answer_of(words: int) -> bytes:
    """Return a whole answer to a chat request."""
    body = json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "chat",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "word " * words},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 20, "completion_tokens": words, "total_tokens": 20 + words},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


ANSWER = answer_of(150)
MODELS = json.dumps({"object": "list", "data": [{"id": "chat", "object": "model"}]}).encode()
MODELS_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
    % (len(MODELS), MODELS)
)


def event(moment_ns: int) -> bytes:
    """Return one event of a stream as a chunk."""
    text = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"chat",'
    text += b'"choices":[{"index":0,"delta":{"content":"t%020d"}}]}' % moment_ns
    text = text[:-1].ljust(EVENT_BYTES - 3) + b"}\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


SHORT_EVENTS = 4
"""Events of a stream with a ``seed`` of 0, before its end."""


def short_stream() -> bytes:
    """Return a stream that is whole at once."""
    events = b"".join(event(time.monotonic_ns()) for _ in range(SHORT_EVENTS))
    return b"%b%b%b" % (STREAM_HEAD, events, b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Wheel:
    """Writes events to many streams, those of equal period spread evenly over it."""

    def __init__(self) -> None:
        self._rings: dict[int, list[list[asyncio.WriteTransport]]] = {}
        self._added = count()
        self._begin_s = time.perf_counter()
        self._tick = 0

    def add(self, transport: asyncio.WriteTransport, period_ms: int) -> None:
        """Write an event every ``period_ms``."""
        ring = self._rings.setdefault(period_ms, [[] for _ in range(period_ms)])
        ring[next(self._added) % period_ms].append(transport)

    def turn(self) -> None:
        """Write what is due."""
        due = int((time.perf_counter() - self._begin_s) * 1e3)
        while self._tick < due:
            self._tick += 1
            for period_ms, ring in self._rings.items():
                place = self._tick % period_ms
                ring[place] = [item for item in ring[place] if not item.is_closing()]
                for transport in ring[place]:
                    transport.write(event(time.monotonic_ns()))
        asyncio.get_running_loop().call_later(0.001, self.turn)


class Engine(asyncio.Protocol):
    """One connection of the mock engine; a request may come in pieces."""

    wheel: Wheel

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        data = self._data + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            place = head.find(b"content-length:")
            length = int(head[place + 15 :].partition(b"\r\n")[0]) if place >= 0 else 0
            if len(data) < end + 4 + length:
                break
            self._answer(head, data[end + 4 : end + 4 + length])
            data = data[end + 4 + length :]
        self._data = data

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post"):
            self._transport.write(MODELS_ANSWER)
        elif b'"stream":true' in body or b'"stream": true' in body:
            period_ms = int(SEED.search(body)[1])
            if period_ms == 0:
                self._transport.write(short_stream())
                return
            self._transport.write(STREAM_HEAD + event(time.monotonic_ns()))
            self.wheel.add(self._transport, period_ms)
        else:
            self._transport.write(ANSWER)


def request(port: int, key: str, *, period_ms: int = 0, extra: str = "") -> bytes:
    """Return a chat request as it's sent; a period asks for a stream."""
    asked: dict[str, object] = {
        "model": "chat",
        "messages": [{"role": "user", "content": "How are you today? " * 10}],
        "max_tokens": 100,
    }
    if period_ms:
        asked.update(stream=True, seed=period_ms)
    body = json.dumps(asked, separators=(",", ":")).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n{extra}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class JsonClient(asyncio.Protocol):
    """One connection that sends a request at a time."""

    def __init__(self, idle: "list[JsonClient]", latencies_us: list[float]) -> None:
        self.faults = 0
        self._idle = idle
        self._latencies_us = latencies_us
        self._sent_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._parser = httptools.HttpResponseParser(self)
        self._sent_ns = time.perf_counter_ns()
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Count an answer; the connection is free."""
        self._latencies_us.append((time.perf_counter_ns() - self._sent_ns) / 1e3)
        self.faults += self._parser.get_status_code() != 200
        self._idle.append(self)


async def open_loop(
    port: int, requests: Sequence[bytes], *, per_s: float, seconds: float
) -> list[float]:
    """Send requests at moments that don't depend on the answers; return latencies, sorted, in us.

    Raises:
        RuntimeError: An answer was missing or not a 200.
    """
    loop = asyncio.get_running_loop()
    rng = random.Random(1)
    idle: list[JsonClient] = []
    clients: list[JsonClient] = []
    latencies_us: list[float] = []

    async def connect() -> None:
        _, client = await loop.create_connection(
            lambda: JsonClient(idle, latencies_us), "127.0.0.1", port
        )
        clients.append(client)
        idle.append(client)

    for _ in range(256):
        await connect()
    sent = 0
    begin_s = time.perf_counter()
    due_s = 0.0
    while due_s < seconds:
        now_s = time.perf_counter() - begin_s
        while due_s <= now_s and due_s < seconds:
            if not idle:
                await connect()
            idle.pop().send(requests[sent % len(requests)])
            sent += 1
            due_s += rng.expovariate(per_s)
        await asyncio.sleep(0.001)
    for _ in range(1000):
        if len(latencies_us) == sent:
            break
        await asyncio.sleep(0.01)
    for client in clients:
        client.transport.close()
    faults = sum(client.faults for client in clients)
    if faults or len(latencies_us) != sent:
        raise RuntimeError(f"{faults} faults, {len(latencies_us)} of {sent} answers")
    return sorted(latencies_us)


class StreamClient(asyncio.Protocol):
    """One stream that counts events, and looks at the delay of some."""

    def __init__(self, data: bytes, delays_us: list[float]) -> None:
        self.events = 0
        self.good = False
        self._data = data
        self._delays_us = delays_us
        self._looked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self.transport = transport
        transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        """Count events."""
        if not self.good:
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data.decode())
            self.good = True
        self.events += data.count(b'"t0')
        self._looked += 1
        if self._looked & 7 == 0:
            found = MOMENT.search(data)
            if found:
                self._delays_us.append((time.monotonic_ns() - int(found[1])) / 1e3)


class Streams:
    """Many streams at once."""

    def __init__(self) -> None:
        self._clients: list[StreamClient] = []
        self.delays_us: list[float] = []

    @property
    def events(self) -> int:
        """Events that came."""
        return sum(client.events for client in self._clients)

    async def open(self, port: int, requests: Sequence[bytes], streams: int) -> None:
        """Open streams, and wait until each has begun.

        Raises:
            RuntimeError: Some don't begin.
        """
        loop = asyncio.get_running_loop()
        for number in range(streams):
            data = requests[number % len(requests)]
            _, client = await loop.create_connection(
                lambda data=data: StreamClient(data, self.delays_us), "127.0.0.1", port
            )
            self._clients.append(client)
        for _ in range(300):
            if all(client.good for client in self._clients):
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("some streams never began")

    def close(self) -> None:
        """Leave all of them."""
        for client in self._clients:
            client.transport.abort()


async def serve() -> None:
    """Serve as an engine until the end."""
    loop = asyncio.get_running_loop()
    Engine.wheel = Wheel()
    server = await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    Engine.wheel.turn()
    await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    uvloop.run(serve())
