# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that harms the connections through it: late, in drips, reset, cut off, dead.

It stands before a server that works, so that what is tested meets real sockets
and nothing in the server knows of the fault.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, cast


@dataclass(frozen=True, slots=True)
class Harm:
    """What happens to one connection.

    Attributes:
        kind: ``reset`` (RST), ``cut`` (closed in the regular way), ``hang`` (nothing more passes in
            either direction, and no end of either side is told to the other) or "".
        request_at: It happens after so many bytes of what the client sends.
        answer_at: It happens after so many bytes of what the server sends; 0: before any of it.
        delay_s: Each piece of what the server sends comes so much later.
        piece_bytes: What the server sends passes in pieces of so many bytes, ``delay_s`` apart;
            None: as it comes.
    """

    kind: Literal["reset", "cut", "hang", ""] = ""
    request_at: int | None = None
    answer_at: int | None = None
    delay_s: float = 0.0
    piece_bytes: int | None = None


UNHARMED = Harm()


class FaultProxy:
    """Listens on 127.0.0.1 while its context is open, and passes on to a port there.

    Args:
        port: Where the server listens.
        harm: Returns what happens to a connection, by its number from 1.

    Attributes:
        port: Where it listens itself.
        accepted: Connections so far.
    """

    def __init__(self, port: int, harm: Callable[[int], Harm] = lambda _: UNHARMED) -> None:
        self.port = 0
        self.accepted = 0
        self.harm = harm
        self._target = port
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._left: set[_Pair] = set()

    @property
    def url(self) -> str:
        """Base URL, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Connections of clients that are open."""
        return len(self._pairs)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Pair(self).client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pair in [*self._pairs, *self._left]:
            pair.end("reset")
        # One turn of the loop, in which transports close.
        closed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(closed.set_result, None)
        await closed

    # What follows is called by connections.

    def admit(self, pair: "_Pair") -> tuple[int, Harm]:
        """Note a connection; return the server's port, and what happens to it."""
        self._pairs.add(pair)
        self.accepted += 1
        return self._target, self.harm(self.accepted)

    def forget(self, pair: "_Pair") -> None:
        """Drop a connection that has ended."""
        self._pairs.discard(pair)

    def left(self, pair: "_Pair") -> None:
        """Note that the client of a connection that hangs has gone; the server isn't told."""
        self._pairs.discard(pair)
        self._left.add(pair)


class _Side(asyncio.Protocol):
    """One end of a connection through the proxy."""

    def __init__(
        self,
        made: Callable[[], None],
        received: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self._made = made
        self._received = received
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._made()

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._lost()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing() and data:
            self.transport.write(data)

    def close(self, *, reset: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if not reset:
            self.transport.close()
            return
        # With a linger time of 0 the kernel sends RST.
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Pair:
    """A client's connection and the one that stands for it at the server."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._loop = asyncio.get_running_loop()
        self._harm = UNHARMED
        self._asked = b""  # Before the server's side is there.
        self._request_bytes = 0
        self._answer_bytes = 0
        self._late: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._server_ended = False
        self._hung = self._ended = False
        self._connecting: asyncio.Task[tuple[asyncio.Transport, _Side]] | None = None
        self.client = _Side(self._begin, self._ask, self._client_lost)
        self.server = _Side(self._connected, self._answer, self._server_lost)

    def end(self, kind: str) -> None:
        """End both sides in a way; ``hang`` lets them stand as they are."""
        if kind == "hang":
            self._hung = True
            return
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        self._proxy.forget(self)
        self.client.close(reset=kind == "reset")
        self.server.close(reset=True)

    def _begin(self) -> None:
        port, self._harm = self._proxy.admit(self)
        connect = self._loop.create_connection(lambda: self.server, "127.0.0.1", port)
        self._connecting = self._loop.create_task(connect)
        self._connecting.add_done_callback(self._tried)

    def _tried(self, task: "asyncio.Task[tuple[asyncio.Transport, _Side]]") -> None:
        self._connecting = None
        if task.cancelled() or task.exception() is not None:
            self.end("reset")
        elif self._ended:
            self.server.close(reset=True)

    def _connected(self) -> None:
        asked, self._asked = self._asked, b""
        self.server.write(asked)

    def _ask(self, data: bytes) -> None:
        if self._hung or self._ended:
            return
        at = self._harm.request_at
        rest = None if at is None else max(0, at - self._request_bytes)
        harmed = rest is not None and len(data) >= rest
        data = data[:rest] if harmed else data
        self._request_bytes += len(data)
        if self.server.transport is None:
            self._asked += data
        else:
            self.server.write(data)
        if harmed:
            self.end(self._harm.kind)

    def _answer(self, data: bytes) -> None:
        if self._hung or self._ended:
            return
        size = self._harm.piece_bytes or len(data)
        self._late += [data[at : at + size] for at in range(0, len(data), size)]
        if self._timer is None:
            self._later()

    def _later(self) -> None:
        if self._harm.delay_s:
            self._timer = self._loop.call_later(self._harm.delay_s, self._pass_next)
        else:
            while self._late and not self._ended and not self._hung:
                self._pass(self._late.pop(0))
            self._pass_end()

    def _pass_next(self) -> None:
        self._timer = None
        if self._late and not self._hung:
            self._pass(self._late.pop(0))
        if self._late and not self._ended and not self._hung:
            self._later()
        else:
            self._pass_end()

    def _pass(self, data: bytes) -> None:
        at = self._harm.answer_at
        rest = None if at is None else max(0, at - self._answer_bytes)
        harmed = rest is not None and len(data) >= rest
        data = data[:rest] if harmed else data
        self._answer_bytes += len(data)
        self.client.write(data)
        if harmed:
            self.end(self._harm.kind)

    def _pass_end(self) -> None:
        if self._server_ended and not self._late and not self._hung:
            self.end("cut")

    def _client_lost(self) -> None:
        # Whoever hung sees no end of the other side, but its own socket is gone.
        if self._hung:
            self._proxy.left(self)
        else:
            self.end("cut")

    def _server_lost(self) -> None:
        self._server_ended = True
        if self._timer is None:
            self._pass_end()
