# SPDX-License-Identifier: Apache-2.0
"""One connection to an engine and the answer that is read from it.

A connection is an :class:`asyncio.Protocol` around the sans-IO
:class:`taketurns.wire.http1.Http1Client`; an answer is what its reader holds.
Each ends apart from the other: a connection is free for the next request as
soon as the last byte came, even where the reader is behind.
"""

import asyncio
import math
import select
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Protocol, cast

from taketurns.errors import EngineBrokenError, EngineTimeoutError
from taketurns.ports.engine import EngineLimits, Sink
from taketurns.wire.http1 import Http1Client, ResponseHead

BUFFER_BYTES_MAX = 64 * 1024
"""How far the engine may be ahead of the reader before reading pauses."""


class Pool(Protocol):
    """Where a connection belongs."""

    def release(self, connection: "Connection") -> None:
        """Keep a connection, whose answer is complete, for the next request."""
        ...

    def closed_idle(self, connection: "Connection") -> None:
        """Note that the engine closed a connection without a word since its last answer."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Drop a connection that is closed."""
        ...


class Answer:
    """Implements :class:`taketurns.ports.engine.GenerationAnswer`: one answer as it comes.

    Attributes:
        status: HTTP status, 200 to 599; 0 before the head came.
        headers: Headers with lower-case names; those repeated are joined by commas.
    """

    __slots__ = (
        "_behind",
        "_connection",
        "_ended",
        "_error",
        "_fault",
        "_loop",
        "_pieces",
        "_sink",
        "_size",
        "_waiter",
        "headers",
        "status",
    )

    def __init__(self, connection: "Connection", loop: asyncio.AbstractEventLoop) -> None:
        self._connection: Connection | None = connection
        self._loop = loop
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._behind = False
        self._fault: Exception | None = None

    def news(self) -> "asyncio.Future[None]":
        """Return a future that is done when more has come, or the end."""
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def begun(self) -> bool:
        """Tell whether the head came.

        Raises:
            EngineError: The answer has ended without it.
        """
        if self.status == 0 and self._error is not None:
            raise self._error
        return self.status != 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes; leaving before its end gives the answer up."""
        try:
            while True:
                if self._pieces:
                    yield self._take()
                elif self._error is not None:
                    raise self._error
                elif self._ended:
                    return
                else:
                    await self.news()
        finally:
            self.abort()

    async def pour(self, sink: Sink) -> None:
        """Hand the body to a sink as it comes, without waking a task for each piece."""
        try:
            while True:
                if self._pieces:
                    self._behind = not sink.take(self._take())
                elif self._error is not None:
                    raise self._error
                elif self._ended:
                    return
                else:
                    self._sink = sink
                    await self.news()
                    self._sink = None
                if self._fault is not None:
                    raise self._fault
                if self._behind:
                    self._behind = False
                    await sink.catch_up()
        finally:
            self._sink = None
            self.abort()

    async def read(self, bytes_max: int) -> bytes | None:
        """Return the whole body, or None (and give it up) where it is larger than ``bytes_max``."""
        pieces: list[bytes] = []
        size = 0
        try:
            while not self._ended or self._pieces:
                if self._pieces:
                    size += self._size
                    if size > bytes_max:
                        return None
                    pieces.append(self._take())
                elif self._error is not None:
                    raise self._error
                else:
                    await self.news()
        finally:
            self.abort()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def aclose(self) -> None:
        """Give the answer up: before its end this closes its connection."""
        self.abort()

    def abort(self) -> None:
        """Do what :meth:`aclose` does, at once."""
        connection = self._connection
        if connection is not None:
            error = EngineBrokenError(connection.engine, "the answer was given up by its reader")
            connection.abort(error)

    def _take(self) -> bytes:
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        self._size = 0
        if self._connection is not None:
            self._connection.resume()
        return data

    # What follows is called by the connection.

    def hear(self, head: ResponseHead | None, pieces: list[bytes]) -> int:
        """Take what came and return how many bytes are waiting to be read."""
        sink = self._sink
        if sink is not None and pieces:
            try:
                if sink.take(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
                    return 0
                self._behind = True
            except Exception as error:  # noqa: BLE001 - raised where the sink was handed in
                self._fault = error
            # From here on pieces are kept until the task has dealt with it.
            self._sink = None
            self._wake()
            return 0
        woken = bool(pieces)
        if head is not None and self.status == 0:
            self.status, self.headers = head
            woken = True
        for piece in pieces:
            self._size += len(piece)
        self._pieces += pieces
        if woken:
            self._wake()
        return self._size

    def end(self, error: Exception | None) -> None:
        """Take the end, good or bad; the connection is no longer the answer's."""
        self._connection = None
        if error is None:
            self._ended = True
        else:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One connection of a pool; it serves one answer at a time.

    Args:
        pool: Told when the connection is free again, and when it is closed.
        loop: The loop it runs on.
        engine: Name of the engine, for errors.
        limits: How long it may take.
        at: Host and port, for errors.

    Attributes:
        engine: As given.
        idle_since_s: The loop's time when it was released; set by the pool.
        after_chunks: Its last answer came in chunks.
    """

    def __init__(
        self,
        pool: Pool,
        loop: asyncio.AbstractEventLoop,
        *,
        engine: str,
        limits: EngineLimits,
        at: str,
    ) -> None:
        self.engine = engine
        self.idle_since_s = 0.0
        self.after_chunks = False
        self._pool = pool
        self._loop = loop
        self._limits = limits
        self._at = at
        self._http = Http1Client()
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._answer: Answer | None = None
        self._used = False
        self._paused = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at_s = math.inf
        self._deadline_s = math.inf
        self._total_deadline_s = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream's transport, though uvloop's class doesn't say so.
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(select, "poll"):
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    @property
    def open(self) -> bool:
        """Whether it can still be written to, as far as the loop has looked."""
        transport = self._transport
        return not self._closed and transport is not None and not transport.is_closing()

    def reusable(self) -> bool:
        """Whether a kept connection may take a request: open, and nothing came meanwhile."""
        transport = self._transport
        if self._closed or transport is None or transport.is_closing() or not self._http.reusable:
            return False
        # The loop may not have looked at the socket since the peer closed it.
        return self._poll is None or not self._poll.poll(0)

    def begin(self, head: bytes, body: bytes, headers: Iterable[tuple[str, str]]) -> Answer:
        """Write a request on a new or reusable connection and return its answer-to-be."""
        assert self._transport is not None
        data = self._http.send(head, body, headers)
        answer = Answer(self, self._loop)
        self._answer = answer
        now_s, limits = self._loop.time(), self._limits
        self._total_deadline_s = now_s + limits.total_s
        self._set_deadline(now_s + limits.first_byte_s)
        self._transport.write(data)
        return answer

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort(None)
            return
        http = self._http
        pieces = http.receive(data)
        waiting = answer.hear(http.head, pieces)
        if http.done:
            self._finish(answer)
        elif http.fault is not None:
            self.abort(self._broken(http.fault))
        elif waiting > BUFFER_BYTES_MAX:
            self._pause()
        elif http.head is not None:
            deadline_s = self._loop.time() + self._limits.between_chunks_s
            if self._fires_at_s <= deadline_s <= self._total_deadline_s:
                self._deadline_s = deadline_s
            else:
                self._set_deadline(deadline_s)

    def eof_received(self) -> None:
        self._http.receive_eof()
        if self._answer is None:
            self._note_closed()
            self.abort(None)
        elif self._http.done:
            self._finish(self._answer)
        else:
            self.abort(self._broken(self._http.fault or "the connection was closed"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the connection was reset" if exc is not None else "the connection was closed"
        if self._answer is None:
            self._note_closed()
        self.abort(self._broken(reason))

    def abort(self, error: Exception | None) -> None:
        """Close at once, whatever is under way; the answer at hand ends with ``error``."""
        answer = self._answer
        self._answer = None
        if not self._closed:
            self._closed = True
            self._pool.forget(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._transport is not None:
                self._transport.abort()
        if answer is not None:
            answer.end(error)

    def resume(self) -> None:
        """Read on after a pause."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
            self._set_deadline(self._loop.time() + self._limits.between_chunks_s)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
            # The wait is the reader's now: only the total limit goes on.
            self._set_deadline(math.inf)

    def _finish(self, answer: Answer) -> None:
        transport = self._transport
        assert transport is not None
        self._answer = None
        self._used = True
        # An engine may answer before it read the whole request: what is left
        # of it must not be taken for the beginning of the next.
        if self._http.reusable and not self._paused and not transport.get_write_buffer_size():
            head = self._http.head
            self.after_chunks = head is not None and "transfer-encoding" in head.headers
            self._pool.release(self)
        else:
            self.abort(None)
        answer.end(None)

    def _note_closed(self) -> None:
        if not self._closed and self._used:
            self._pool.closed_idle(self)

    def _broken(self, fault: str) -> EngineBrokenError:
        message = f"{self._at}: {fault}"
        if self._used and self._http.head is None:
            self._note_closed()
            return EngineBrokenError(
                self.engine,
                f"{message}, on a connection that was kept",
                hint="Keep connections for less time than the engine does.",
            )
        return EngineBrokenError(self.engine, message)

    def _set_deadline(self, deadline_s: float) -> None:
        # The timer is left as it is where it fires early enough: then it looks
        # again. So an answer that comes in one piece costs no timer.
        deadline_s = min(deadline_s, self._total_deadline_s)
        self._deadline_s = deadline_s
        if deadline_s < self._fires_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at_s = deadline_s
            self._timer = self._loop.call_at(deadline_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._fires_at_s = math.inf
        if self._answer is None or self._transport is None:
            return
        now_s = self._loop.time()
        limits = self._limits
        if now_s < self._deadline_s:
            self._set_deadline(self._deadline_s)
        elif now_s >= self._total_deadline_s:
            self._time_out(f"the answer was not complete after {limits.total_s:g} s")
        elif self._http.head is not None:
            self._time_out(f"nothing came for {limits.between_chunks_s:g} s amid the answer")
        elif self._transport.get_write_buffer_size():
            # The request is still on its way; the engine's time begins after it.
            self._set_deadline(now_s + limits.first_byte_s)
        else:
            self._time_out(f"no answer began within {limits.first_byte_s:g} s")

    def _time_out(self, fault: str) -> None:
        self.abort(EngineTimeoutError(self.engine, f"{self._at}: {fault}"))
