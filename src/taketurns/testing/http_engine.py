# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible engine behind a real socket, with faults by the number of the request.

It computes nothing: chats say three words, vectors are those of
:func:`taketurns.testing.engine.fake_vector`. It is strict enough for tests of a
client and much too lenient for anything else.
"""

import asyncio
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, cast

import msgspec

from taketurns.testing.batch_routes import batch_answer
from taketurns.testing.engine import Tally, chat_answer, chat_events


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request; what is set may be combined.

    Attributes:
        status: Answer with this status and an error's body.
        headers: Further headers of that answer.
        reset_at: Reset the connection (RST) after so many bytes of the answer; 0: before its head.
        cut_at: Close the connection in the regular way after so many bytes of the answer.
        stall_at: Send so many bytes of the answer and then nothing more.
        close_idle: Close the connection once the whole answer went out, without having said so.
        raw: Send these bytes instead of an answer.
        vectors: What is wrong with embeddings or scores: the last one missing, all there but
            in reverse (with the right indexes), all with index 0, or numbers
            although base64 was asked for.
    """

    status: int = 200
    headers: Mapping[str, str] | None = None
    reset_at: int | None = None
    cut_at: int | None = None
    stall_at: int | None = None
    close_idle: bool = False
    raw: bytes | None = None
    vectors: Literal["right", "missing", "reversed", "repeated", "numbers"] = "right"


class Request(msgspec.Struct, frozen=True):
    """A request as it came.

    Attributes:
        number: 1 for the first over all connections.
        connection: 1 for the first connection that was made.
        method: Such as ``POST``.
        target: As sent.
        headers: Names in lower case.
        body: As sent.
    """

    number: int
    connection: int
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The header ``x-request-id``, or empty."""
        return self.headers.get("x-request-id", "")


class FakeHttpEngine:
    """Listens on 127.0.0.1 while its context is open; :attr:`url` says where.

    Args:
        faults: By the number of the request, from 1.
        text: What chats and completions say: words without quotes or backslashes.

    Attributes:
        pages: What a GET of a path answers, at once, such as that of ``/health``; a path that
            isn't here has none.
        asked: Every GET of these, in order of arrival.
        requests: Every other request, in order of arrival.
        executed: Ids of requests that the engine began to compute.
        completed: Ids of requests whose whole answer went out.
        cancelled: Ids of requests whose connection was closed by the client before that.
        connected: One entry for each connection that was made.
    """

    def __init__(
        self, faults: Mapping[int, Fault] | None = None, *, text: str = "one two three"
    ) -> None:
        self.faults = dict(faults or {})
        self.text = text
        self.pages: dict[str, bytes] = {}
        self.asked: list[Request] = []
        self.requests: list[Request] = []
        self.executed = Tally()
        self.completed = Tally()
        self.cancelled = Tally()
        self.connected = Tally()
        self._port = 0
        self._server: asyncio.Server | None = None
        self._peers: set[_Peer] = set()
        self._holding = False

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """TCP port."""
        return self._port

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._peers)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.refuse()
        for peer in list(self._peers):
            peer.transport.abort()

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Peer(self), "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Refuse connections from here on and close those without a request."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in list(self._peers):
            if peer.request is None:
                peer.transport.close()

    def hold(self) -> None:
        """Hold answers before their first byte, until :meth:`release`."""
        self._holding = True

    def release(self) -> None:
        """Send what is held, and answer at once from here on."""
        self._holding = False
        for peer in list(self._peers):
            peer.go_on()

    # What follows is called by connections.

    def connect(self, peer: "_Peer") -> int:
        """Note a connection and return its number."""
        self._peers.add(peer)
        self.connected.add(f"connection {len(self.connected) + 1}")
        return len(self.connected)

    def disconnect(self, peer: "_Peer") -> None:
        """Forget a connection."""
        self._peers.discard(peer)

    def next_number(self) -> int:
        """Return the number of the next request."""
        return len(self.requests) + 1

    def receive(self, peer: "_Peer", request: Request) -> None:
        """Take a request and answer it, at once or when released."""
        if request.method == "GET" and request.target in self.pages:
            self.asked.append(request)
            peer.pending = (_whole(200, self.pages[request.target]), Fault())
            peer.go_on()
            return
        self.requests.append(request)
        fault = self.faults.get(request.number, Fault())
        if fault.status == 200:
            self.executed.add(request.id)
        peer.pending = (self._answer(request, fault), fault)
        if not self._holding:
            peer.go_on()

    def _answer(self, request: Request, fault: Fault) -> bytes:
        if fault.raw is not None:
            return fault.raw
        if fault.status != 200:
            body = b'{"error":{"message":"staged","type":"staged","param":null,"code":null}}'
            return _whole(fault.status, body, fault.headers or {})
        route = request.target.partition("?")[0]
        if route.endswith("/models"):
            return _whole(200, b'{"object":"list","data":[{"id":"fake","object":"model"}]}')
        if request.method != "POST":
            return _whole(404, b'{"error":{"message":"no such route"}}')
        fields = msgspec.json.decode(request.body, type=dict[str, object])
        batch = batch_answer(route, fields, fault.vectors)
        if batch is not None:
            return _whole(200, *batch)
        if not route.endswith("/completions"):
            return _whole(404, b'{"error":{"message":"no such route"}}')
        if fields.get("stream"):
            options = fields.get("stream_options")
            usage = isinstance(options, dict) and bool(options.get("include_usage"))
            return _chunked(chat_events(self.text, usage=usage))
        return _whole(200, chat_answer(self.text))


class _Peer(asyncio.Protocol):
    """One connection of the fake engine; answers one request at a time."""

    def __init__(self, engine: FakeHttpEngine) -> None:
        self.request: Request | None = None
        self.pending: tuple[bytes, Fault] | None = None
        self.transport: asyncio.Transport
        self._engine = engine
        self._number = 0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._number = self._engine.connect(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._engine.disconnect(self)
        if self.request is not None:
            self._engine.cancelled.add(self.request.id)
            self.request = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if self.request is not None or not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._received = rest[length:]
        method, target, _ = first.split(" ", 2)
        number = self._engine.next_number()
        self.request = Request(number, self._number, method, target, headers, rest[:length])
        self._engine.receive(self, self.request)

    def go_on(self) -> None:
        """Send the pending answer, as far as its fault lets it."""
        if self.pending is None or self.request is None:
            return
        answer, fault = self.pending
        self.pending = None
        ends = [at for at in (fault.reset_at, fault.cut_at, fault.stall_at) if at is not None]
        end = min(ends, default=len(answer))
        self.transport.write(answer[:end])
        if ends and end == fault.stall_at:
            return
        request_id = self.request.id
        self.request = None
        if ends and end == fault.reset_at:
            self._reset()
        elif ends or fault.close_idle:
            self.transport.close()
        if not ends:
            self._engine.completed.add(request_id)

    def _reset(self) -> None:
        # With a linger time of 0 the kernel sends RST; what was written before
        # may be lost with it, as in a real crash.
        linger = struct.pack("ii", 1, 0)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} Staged\r\n{lines}\r\n".encode("latin-1")


def _whole(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    own = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return _head(status, own | dict(headers or {})) + body


def _chunked(pieces: list[bytes]) -> bytes:
    own = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return _head(200, own) + chunks + b"0\r\n\r\n"
