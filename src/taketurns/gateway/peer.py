# SPDX-License-Identifier: Apache-2.0
"""The client's side of one exchange: its body is read here, and the answer is written.

An answer is a few lines of text and its body: written in one piece, it costs a
fraction of what a general response object does.
"""

from asyncio import Transport
from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Protocol

from taketurns.dialects import openai
from taketurns.errors import RequestError
from taketurns.gateway.exchange import JSON, Answer
from taketurns.system import new_id, wall_time_s
from taketurns.wire.request_head import Head

SERVER_NAME = "taketurns"
"""Sent as ``Server``: no versions."""

STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n" for one in HTTPStatus}


class Connected(Protocol):
    """A client's connection.

    Attributes:
        transport: Its transport; None before it's made.
    """

    transport: Transport | None

    def read_now(self) -> bytes:
        """Return what has come of the body."""
        ...

    async def read_on(self, body: bytes, bytes_max: int) -> bytes:
        """Return a body from what has come of it on, to its end or beyond ``bytes_max``."""
        ...

    def write(self, data: bytes) -> bool:
        """Write; False where the client is behind with reading."""
        ...

    async def drain(self) -> None:
        """Wait until the client has caught up."""
        ...

    def can_go_on(self) -> bool:
        """Return whether another request may follow the one under way."""
        ...

    def close(self) -> None:
        """Close after what was written."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class Http1Peer:
    """Implements :class:`taketurns.gateway.exchange.Peer` for one request of a connection.

    Args:
        connection: Where it came.
        head: Its head.

    Attributes:
        own_lines: Header lines, whole, sent with whatever is answered, as they are by then.
        begun: The head of an answer is sent.
        ended: The answer is sent to its end.
        keep_alive: The connection may take another request; known once the answer has begun.
    """

    __slots__ = (
        "_chunked",
        "_connection",
        "_head",
        "begun",
        "ended",
        "keep_alive",
        "own_lines",
    )

    def __init__(self, connection: Connected, head: Head) -> None:
        self.own_lines: Mapping[str, str] = {}
        self.begun = False
        self.ended = False
        self.keep_alive = False
        self._connection = connection
        self._head = head
        self._chunked = False

    async def read_body(self, bytes_max: int) -> bytes:
        head = self._head
        headers = head.headers
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(
                415,
                "unsupported_encoding",
                "Compressed bodies are not accepted.",
                hint="Send the body as it is.",
            )
        expect = headers.get("expect")
        if expect is not None and expect.lower() != "100-continue":
            raise RequestError(
                417, "expectation_failed", "`Expect` can only be 100-continue.", param="Expect"
            )
        length = head.length
        if length is not None and length > bytes_max:
            raise _too_large(bytes_max)
        # Most bodies came with their heads.
        body = self._connection.read_now()
        if len(body) != length:
            if expect is not None and head.persistent:
                self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await self._connection.read_on(body, bytes_max)
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
        return body

    async def send(self, answer: Answer) -> None:
        body = answer.body
        headers = {**answer.headers, "Content-Type": answer.content_type}
        head = self._begin(answer.status, headers, f"Content-Length: {len(body)}\r\n")
        whole = head if self._head.method == "HEAD" else head + body
        if not self._connection.write(whole):
            await self._connection.drain()
        self.ended = True

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._chunked = self._head.persistent
        framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        head = self._begin(status, headers, framing)
        if not self._connection.write(head):
            await self._connection.drain()

    async def write(self, data: bytes) -> None:
        if not self.write_now(data):
            await self.drain()

    def write_now(self, data: bytes) -> bool:
        assert self.begun, "start comes first"
        # An empty chunk would be the last one.
        return not data or self._connection.write(self._piece(data))

    async def drain(self) -> None:
        await self._connection.drain()

    async def finish(self) -> None:
        assert self.begun, "start comes first"
        if self._chunked and not self._connection.write(b"0\r\n\r\n"):
            await self._connection.drain()
        self.ended = True

    @property
    def unread(self) -> int:
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def ping(self, data: bytes) -> None:
        transport = self._connection.transport
        if self.begun and transport is not None and not transport.is_closing() and not self.unread:
            transport.write(self._piece(data))

    def cut(self) -> None:
        self._connection.abort()

    def abort(self) -> None:
        # What was written is still sent; the chunk that would end the body is not.
        self._connection.close()

    def _piece(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _begin(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        persistent = self._head.persistent
        bounded = self._chunked or framing.startswith("Content-Length")
        self.keep_alive = bounded and self._head.keep_alive and self._connection.can_go_on()
        connection = ""
        if self.keep_alive != persistent:
            connection = f"Connection: {'keep-alive' if self.keep_alive else 'close'}\r\n"
        more = "".join((*self.own_lines.values(), framing, connection))
        head = head_of(status, headers, more)
        self.begun = True
        return head


def head_of(status: int, headers: Mapping[str, str], more: str) -> bytes:
    """Return the head of an answer.

    Args:
        status: HTTP status.
        headers: Those of the answer; ``Date`` and ``Server`` come beside them.
        more: Further lines, whole.

    Raises:
        ValueError: A header holds a line break.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header holds a line break")
    return f"{STATUS_LINES[status]}{lines}{more}{_last_lines(wall_time_s())}".encode()


@lru_cache(2)
def _last_lines(seconds: int) -> str:
    return f"Date: {formatdate(seconds, usegmt=True)}\r\nServer: {SERVER_NAME}\r\n\r\n"


def write_refusal(transport: Transport, error: RequestError, *, executed: str = "no") -> None:
    """Write the answer to what never became a request; the connection is to be closed then."""
    body = openai.error_answer(error.status, error.code, str(error))
    headers = {
        "Content-Type": JSON,
        "Content-Length": str(len(body)),
        "Connection": "close",
        "x-request-id": new_id("req_"),
        "x-request-executed": executed,
    }
    if error.status == 503:
        headers["Retry-After"] = "1"
    transport.write(head_of(error.status, headers, "") + body)


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(
        413,
        "body_too_large",
        f"The body is larger than {bytes_max} bytes, the most that is accepted.",
        hint="Send less at once.",
    )
