# SPDX-License-Identifier: Apache-2.0
"""The client's side of one exchange: aiohttp has read the request, the answer is written here.

An answer is a few lines of text and its body: written in one piece, it costs a
fraction of what a general response object does.
"""

from asyncio import Transport, timeout
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol, cast

from aiohttp import HttpVersion10, web
from aiohttp.helpers import rfc822_formatted_time

from taketurns.dialects import openai
from taketurns.errors import RequestError
from taketurns.gateway.exchange import JSON, Answer, ClientGoneError
from taketurns.system import new_id

SERVER_NAME = "taketurns"
"""Sent as ``Server``: aiohttp would name itself and Python with their versions."""

REASONS = {status.value: status.phrase for status in HTTPStatus}


class Connected(Protocol):
    """A client's connection.

    Attributes:
        transport: Its transport; None once it's closed.
        behind: The client is behind with reading.
    """

    transport: Transport | None
    behind: bool


class Sent:
    """Stands for an answer that is written already, in the place of an aiohttp response.

    Attributes:
        keep_alive: The connection may take another request.
    """

    __slots__ = ("keep_alive",)

    def __init__(self) -> None:
        self.keep_alive = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the head is sent."""

    async def write_eof(self) -> None:
        """Do nothing: the end is sent."""


class AiohttpPeer(Sent):
    """Implements :class:`taketurns.gateway.exchange.Peer` over one aiohttp request.

    Args:
        request: The request.
        own_headers: Sent with whatever is answered, as they are by then.
        closing: Tells whether the connection is to be closed after the answer.
        body_timeout_s: Longest that the body takes to come.

    Attributes:
        begun: The head of an answer is sent.
    """

    __slots__ = (
        "_body_timeout_s",
        "_chunked",
        "_closing",
        "_inbound",
        "_own_headers",
        "_request",
        "begun",
    )

    def __init__(
        self,
        request: web.BaseRequest,
        own_headers: Mapping[str, str],
        closing: Callable[[], bool],
        body_timeout_s: float,
    ) -> None:
        super().__init__()
        self.begun = False
        self._request = request
        self._inbound = cast(Connected, request.protocol)
        self._own_headers = own_headers
        self._closing = closing
        self._body_timeout_s = body_timeout_s
        self._chunked = False

    async def read_body(self, bytes_max: int) -> bytes:
        request = self._request
        headers = request.headers
        coded = headers.get("Transfer-Encoding", "chunked").lower() != "chunked"
        if coded or headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestError(
                415,
                "unsupported_encoding",
                "Compressed bodies are not accepted.",
                hint="Send the body as it is.",
            )
        expect = headers.get("Expect", "").lower()
        if expect not in {"", "100-continue"}:
            raise RequestError(
                417, "expectation_failed", "`Expect` can only be 100-continue.", param="Expect"
            )
        length = request.content_length
        if length is not None and length > bytes_max:
            raise _too_large(bytes_max)
        content = request.content
        if content.is_eof():
            # Most bodies came with their heads.
            body = content.read_nowait(-1)
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
            return body
        if expect:
            self._ask_to_continue()
        return await self._read_on(bytes_max)

    async def _read_on(self, bytes_max: int) -> bytes:
        body = bytearray()
        try:
            async with timeout(self._body_timeout_s):
                async for chunk in self._request.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        raise _too_large(bytes_max)
        except TimeoutError:
            raise RequestError(
                408, "body_timeout", f"The body did not come within {self._body_timeout_s:g} s."
            ) from None
        except web.RequestPayloadError as error:
            raise RequestError(400, "broken_body", f"The body is broken: {error}.") from None
        return bytes(body)

    async def send(self, answer: Answer) -> None:
        request = self._request
        body = answer.body
        # A body that wasn't read to its end would be taken for the next request.
        keep_alive = request.keep_alive and request.content.at_eof() and not self._closing()
        headers = {**answer.headers, "Content-Type": answer.content_type, **self._own_headers}
        framing = f"Content-Length: {len(body)}\r\n"
        head = self._head(answer.status, headers, framing, keep_alive=keep_alive)
        await self._write_out(head if request.method == "HEAD" else head + body)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        request = self._request
        self._chunked = request.version > HttpVersion10
        keep_alive = self._chunked and request.keep_alive and request.content.at_eof()
        framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        merged = {**headers, **self._own_headers}
        await self._write_out(self._head(status, merged, framing, keep_alive=keep_alive))

    async def write(self, data: bytes) -> None:
        if not self.write_now(data):
            await self.drain()

    def write_now(self, data: bytes) -> bool:
        assert self.begun, "start comes first"
        # An empty chunk would be the last one.
        if not data:
            return True
        return self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def drain(self) -> None:
        try:
            await self._request.writer.drain()
        except ConnectionError as error:
            raise ClientGoneError(str(error)) from error

    async def finish(self) -> None:
        assert self.begun, "start comes first"
        if self._chunked:
            await self._write_out(b"0\r\n\r\n")

    @property
    def unread(self) -> int:
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def ping(self, data: bytes) -> None:
        transport = self._request.transport
        if self.begun and transport is not None and not self.unread:
            transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def abort(self) -> None:
        transport = self._request.transport
        if transport is not None:
            # What was written is still sent; the chunk that would end the body is not.
            transport.close()

    def _head(
        self, status: int, headers: Mapping[str, str], framing: str, *, keep_alive: bool
    ) -> bytes:
        self.begun = True
        self.keep_alive = keep_alive
        if self._request.version > HttpVersion10:
            connection = "" if keep_alive else "Connection: close\r\n"
        else:
            connection = "Connection: keep-alive\r\n" if keep_alive else ""
        return head_of(status, headers, framing + connection)

    async def _write_out(self, data: bytes) -> None:
        if not self._write(data):
            await self.drain()

    def _write(self, data: bytes) -> bool:
        """Write; False where the client is behind with reading."""
        transport = self._inbound.transport
        if transport is None or transport.is_closing():
            raise ClientGoneError("the connection is closed")
        transport.write(data)
        return not self._inbound.behind

    def _ask_to_continue(self) -> None:
        transport = self._request.transport
        if transport is not None and self._request.version > HttpVersion10:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


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
    return (
        f"HTTP/1.1 {status} {REASONS[status]}\r\n{lines}{more}"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_NAME}\r\n\r\n"
    ).encode()


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
