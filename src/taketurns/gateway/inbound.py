# SPDX-License-Identifier: Apache-2.0
"""One connection of a client: how much may come on it, in what time, and one request at a time.

Rules:

* At most one task at a time, and none between requests.
* A client that closes its side, be it only its half, is gone: what it asked for is cancelled.
* Time is kept by the server's sweep, which looks at ``deadline_s``; no request has a timer.
* What can't be read is answered once, in our form and without a word of it; nothing after it is
  read. The connection then lingers, so that the answer is seen before its end.
"""

import asyncio
import logging
import math
import select
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import cast

from taketurns.errors import RequestError
from taketurns.gateway.exchange import ClientGoneError
from taketurns.gateway.peer import Http1Peer, write_refusal
from taketurns.system import give_way
from taketurns.wire.request_head import Head, HeadLimits
from taketurns.wire.requests import RequestReader

LOG = logging.getLogger(__name__)

AHEAD_BYTES_MAX = 64 * 1024
"""What is kept of a body that nobody reads yet, or of further requests, before reading pauses."""

LINGER_S = 5.0
"""How long what a client still sends is thrown away after an answer that ends the connection."""

Serve = Callable[[Head, Http1Peer, str], Awaitable[None]]
"""Answers a request: its head, the client's side, the client's address."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """What clients may send.

    Attributes:
        connections_max: Most connections at once; more are answered 503.
        address_connections_max: Most of them from one address; None: as many as in all.
        head_timeout_s: From the first byte of a request's head to its last.
        body_timeout_s: From the end of the head to the end of the body.
        idle_timeout_s: How long a connection is kept on which nothing comes.
        head_bytes_max: Largest head, and largest header.
        headers_max: Most headers of a request.
        target_bytes_max: Longest URL, without scheme and host; less than ``head_bytes_max``.
    """

    connections_max: int
    address_connections_max: int | None = None
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    head_bytes_max: int = 16 * 1024
    headers_max: int = 100
    target_bytes_max: int = 8 * 1024

    @property
    def head_limits(self) -> HeadLimits:
        """How large heads may be."""
        return HeadLimits(self.head_bytes_max, self.headers_max, self.target_bytes_max)


class Crowd:
    """All connections of a server.

    Attributes:
        connections: Those that are open.
        empty: Set while there is none.
    """

    __slots__ = ("_by_address", "connections", "empty")

    def __init__(self) -> None:
        self.connections: set[Inbound] = set()
        self.empty = asyncio.Event()
        self._by_address: dict[str, int] = {}

    def add(self, connection: "Inbound") -> int:
        """Count a connection in; return how many its address has."""
        self.connections.add(connection)
        self.empty.clear()
        count = self._by_address[connection.address] = self.of(connection.address) + 1
        return count

    def remove(self, connection: "Inbound") -> None:
        """Count it out."""
        self.connections.discard(connection)
        left = self.of(connection.address) - 1
        if left > 0:
            self._by_address[connection.address] = left
        else:
            self._by_address.pop(connection.address, None)
        if not self.connections:
            self.empty.set()

    def of(self, address: str) -> int:
        """Return how many an address has."""
        return self._by_address.get(address, 0)


class Phase(Enum):
    """What a connection is at."""

    IDLE = "nothing came since the last answer"
    HEAD = "a head has begun"
    BUSY = "a request is under way"
    LINGERING = "the last answer is out, and what comes is thrown away"


class Inbound(asyncio.Protocol):
    """A client's connection.

    Args:
        loop: The loop it runs on.
        receiving: What may be sent.
        crowd: The server's connections; this is one of them while it's open.
        serve: Answers one request.
        closing: Tells whether connections are to be closed after their answer.

    Attributes:
        address: The client's.
        behind: The client is behind with reading.
        reader: Reads what comes.
        transport: Its transport; None before it's made.
        task: Handles the request under way, or None.
        deadline_s: When the sweep is to look, by the loop's time.
        phase: What it's at.
        ending: It ends after the answer to the request under way.
    """

    __slots__ = (
        "_caught_up",
        "_closing",
        "_crowd",
        "_loop",
        "_more",
        "_paused",
        "_receiving",
        "_serve",
        "_unwritten",
        "address",
        "behind",
        "deadline_s",
        "ending",
        "phase",
        "reader",
        "task",
        "transport",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receiving: Receiving,
        crowd: Crowd,
        serve: Serve,
        closing: Callable[[], bool],
    ) -> None:
        self.address = ""
        self.behind = False
        self.reader = RequestReader(receiving.head_limits)
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self.deadline_s = loop.time() + receiving.idle_timeout_s
        self.phase = Phase.IDLE
        self.ending = False
        self._loop = loop
        self._receiving = receiving
        self._crowd = crowd
        self._serve = serve
        self._closing = closing
        # Who waits for more of a body, and who for the client to catch up.
        self._more: asyncio.Future[None] | None = None
        self._caught_up: asyncio.Future[None] | None = None
        self._paused = False
        self._unwritten: float = math.inf

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        # A stream's transport, though uvloop's class doesn't say so.
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        count = self._crowd.add(self)
        receiving = self._receiving
        most = receiving.address_connections_max
        if len(self._crowd.connections) > receiving.connections_max:
            self._turn_away("The gateway has no connection left.")
        elif most is not None and count > most:
            self._turn_away(f"Your address has {most} connections open.")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - it's gone either way
        """Count the connection out, and cancel what's under way on it."""
        self._crowd.remove(self)
        self._leave()

    def pause_writing(self) -> None:
        """Note that the client doesn't read as fast as it's written to."""
        self.behind = True

    def resume_writing(self) -> None:
        """Note that it has caught up."""
        self.behind = False
        if self._caught_up is not None and not self._caught_up.done():
            self._caught_up.set_result(None)

    def eof_received(self) -> None:
        """Take the end of the client's side for its leave."""
        self._leave()
        self.close()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self.phase is Phase.LINGERING:
            return
        reader = self.reader
        reader.feed(data)
        if self.phase is not Phase.BUSY:
            self._read_next()
        elif self._more is not None:
            if not self._more.done():
                self._more.set_result(None)
        else:
            if reader.done and len(reader.unread) == len(data):
                self.deadline_s = self._loop.time() + self._receiving.head_timeout_s
            self._hold_back()

    # What follows is called by the server.

    def look(self, now_s: float) -> None:
        """Deal with a deadline that has passed."""
        receiving = self._receiving
        if self.phase is Phase.IDLE:
            self.close()
        elif self.phase is Phase.HEAD:
            message = f"The request did not come within {receiving.head_timeout_s:g} s."
            self._refuse(RequestError(408, "head_timeout", message))
        elif self.phase is Phase.LINGERING:
            self._look_at_end(now_s)
        elif self._more is not None:
            if not self._more.done():
                message = f"The body did not come within {receiving.body_timeout_s:g} s."
                self._more.set_exception(RequestError(408, "body_timeout", message))
        elif self.reader.done:
            self.deadline_s = math.inf
            if self.reader.unread and b"\r\n\r\n" not in self.reader.unread:
                # A further request's head doesn't come to its end. The answer under way does.
                self.ending = True

    def look_for_leave(self) -> None:
        """See whether a client has left of whom nothing is read at present."""
        transport = self.transport
        if self._paused and transport is not None and not transport.is_closing():
            poll = select.poll()
            poll.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
            if poll.poll(0):
                self._leave()
                self.abort()

    def end(self) -> None:
        """End it as soon as the request under way is answered; at once where there is none."""
        self.ending = True
        if self.phase is not Phase.BUSY:
            self.close()

    # What follows is called by who answers the request under way.

    def read_now(self) -> bytes:
        """Return what has come of the body.

        Raises:
            RequestError: 400 where it's broken.
        """
        body = self.reader.read_body()
        self._resume()
        return body

    async def read_on(self, body: bytes, bytes_max: int) -> bytes:
        """Return a body from what has come of it on, to its end or beyond ``bytes_max``.

        Raises:
            RequestError: 400 where it's broken, 408 where it doesn't come.
        """
        whole = bytearray(body)
        while not self.reader.done and len(whole) <= bytes_max:
            if self.reader.more:
                await give_way()
            else:
                await self._wait_for_more()
            whole += self.read_now()
        return bytes(whole)

    async def _wait_for_more(self) -> None:
        self._more = self._loop.create_future()
        try:
            await self._more
        finally:
            self._more = None

    def write(self, data: bytes) -> bool:
        """Write; False where the client is behind with reading.

        Raises:
            ClientGoneError: The connection is closed.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ClientGoneError("the connection is closed")
        transport.write(data)
        return not self.behind

    async def drain(self) -> None:
        """Wait until the client has caught up.

        Raises:
            ClientGoneError: The connection is closed.
        """
        while self.behind:
            if self.transport is None or self.transport.is_closing():
                raise ClientGoneError("the connection is closed")
            self._caught_up = self._loop.create_future()
            try:
                await self._caught_up
            finally:
                self._caught_up = None

    def can_go_on(self) -> bool:
        """Return whether another request may follow the one under way."""
        # A body that wasn't read to its end would be taken for the next request.
        return self.reader.done and not self.ending and not self._closing()

    def close(self) -> None:
        """Close after what was written; nothing more is read."""
        self._set(Phase.LINGERING, LINGER_S)
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    # What follows is its own.

    def _leave(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _set(self, phase: Phase, within_s: float) -> None:
        self.phase = phase
        self.deadline_s = self._loop.time() + within_s

    def _read_next(self) -> None:
        try:
            head = self.reader.read_head()
        except RequestError as error:
            LOG.info("a client sent what is no proper HTTP")
            self._refuse(error)
            return
        if head is not None:
            self._set(Phase.BUSY, self._receiving.body_timeout_s)
            self.task = self._loop.create_task(self._run(head))
        elif not self.reader.unread:
            self._set(Phase.IDLE, self._receiving.idle_timeout_s)
        elif self.phase is not Phase.HEAD:
            self._set(Phase.HEAD, self._receiving.head_timeout_s)

    async def _run(self, head: Head) -> None:
        peer = Http1Peer(self, head)
        try:
            await self._serve(head, peer, self.address)
        except asyncio.CancelledError:
            # Broken off: what was sent must be seen not to be whole.
            self.close()
            raise
        except Exception:
            LOG.exception("a connection failed")
            if peer.begun:
                self.abort()
            else:
                failure = RequestError(500, "internal_error", "The gateway failed.")
                self._refuse(failure, executed="unknown")
        else:
            self._go_on(peer)

    def _go_on(self, peer: Http1Peer) -> None:
        """Take the next request, or end."""
        self.task = None
        if not peer.ended:
            self.close()
        elif peer.keep_alive and not self.ending:
            self._set(Phase.IDLE, self._receiving.idle_timeout_s)
            self._resume()
            if self.reader.unread:
                self._read_next()
        elif self.reader.done and not self.reader.unread:
            self.close()
        else:
            self._linger()

    def _hold_back(self) -> None:
        if not self._paused and len(self.reader.unread) > AHEAD_BYTES_MAX:
            assert self.transport is not None
            self._paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and len(self.reader.unread) <= AHEAD_BYTES_MAX:
            assert self.transport is not None
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def _turn_away(self, message: str) -> None:
        assert self.transport is not None
        write_refusal(self.transport, RequestError(503, "too_many_connections", message))
        self.close()

    def _refuse(self, error: RequestError, *, executed: str = "no") -> None:
        """Answer what can't be served, and end."""
        assert self.transport is not None
        if self.transport.is_closing():
            return
        write_refusal(self.transport, error, executed=executed)
        self._linger()

    def _linger(self) -> None:
        """End our side, and throw away what comes until the client has ended its own.

        Closing while it sends would reset the connection, and take the answer with it.
        """
        assert self.transport is not None
        self._set(Phase.LINGERING, LINGER_S)
        self.reader.drop()
        self._resume()
        if not self.transport.is_closing():
            self.transport.write_eof()

    def _look_at_end(self, now_s: float) -> None:
        """Give a client more time that takes what was written, half of what is left each time."""
        assert self.transport is not None
        unwritten = self.transport.get_write_buffer_size()
        if 0 < unwritten <= self._unwritten / 2:
            self._unwritten = unwritten
            self.deadline_s = now_s + LINGER_S
        else:
            self.abort()
