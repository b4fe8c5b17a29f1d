# SPDX-License-Identifier: Apache-2.0
"""The HTTP server in front: aiohttp, with limits on what it takes in.

aiohttp with its C parser was the strictest of six servers in refusing
malformed requests; see docs/decisions/0003-http-server.md.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from aiohttp import HttpVersion10, http_parser, web

from taketurns.dialects import openai
from taketurns.errors import RequestError, StartError
from taketurns.gateway.exchange import JSON, Answer, ClientGoneError, Exchange
from taketurns.ports.clock import Clock
from taketurns.system import new_id, wall_time
from taketurns.telemetry.records import RequestRecord

LOG = logging.getLogger(__name__)

Handle = Callable[[Exchange], Awaitable[None]]

SERVER_NAME = "taketurns"
"""Sent as ``Server``: aiohttp would name itself and Python with their versions."""

BODY_TIMEOUT_S = 30.0
"""Longest that a body takes to come."""

KEEPALIVE_TIMEOUT_S = 75.0
"""How long an idle connection is kept: longer than clients and load balancers keep theirs."""

HEADER_BYTES_MAX = 16 * 1024
"""Longest line of a request's head."""


class AiohttpPeer:
    """Implements :class:`taketurns.gateway.exchange.Peer` over one aiohttp request.

    Args:
        request: The request.
        request_id: Our own id of it.
        closing: Tells whether the connection is to be closed after the answer.

    Attributes:
        response: The answer that is sent, or None.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        own_headers: Mapping[str, str],
        closing: Callable[[], bool],
    ) -> None:
        self.response: web.StreamResponse | None = None
        self._request = request
        self._own_headers = own_headers
        self._closing = closing

    async def read_body(self, bytes_max: int) -> bytes:
        request = self._request
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise RequestError(
                415,
                "unsupported_encoding",
                "Compressed bodies are not accepted.",
                hint="Send the body as it is.",
            )
        length = request.content_length
        if length is not None and length > bytes_max:
            raise _too_large(bytes_max)
        if request.headers.get("Expect", "").lower() == "100-continue":
            await self._ask_to_continue()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > bytes_max:
                        raise _too_large(bytes_max)
        except TimeoutError:
            raise RequestError(
                408, "body_timeout", f"The body did not come within {BODY_TIMEOUT_S:.0f} s."
            ) from None
        except web.RequestPayloadError as error:
            raise RequestError(400, "broken_body", f"The body is broken: {error}.") from None
        return bytes(body)

    async def send(self, answer: Answer) -> None:
        response = web.Response(
            status=answer.status,
            body=answer.body,
            headers={
                **answer.headers,
                "Content-Type": answer.content_type,
                **self._own_headers,
            },
        )
        # A body that wasn't read to its end would be taken for the next request.
        if self._closing() or not self._request.content.at_eof():
            response.force_close()
        self.response = response
        try:
            await response.prepare(self._request)
            await response.write_eof()
        except ConnectionError as error:
            raise ClientGoneError(str(error)) from error

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        response = web.StreamResponse(status=status, headers={**headers, **self._own_headers})
        self.response = response
        try:
            await response.prepare(self._request)
        except ConnectionError as error:
            raise ClientGoneError(str(error)) from error

    async def write(self, data: bytes) -> None:
        assert self.response is not None, "start comes first"
        try:
            await self.response.write(data)
        except ConnectionError as error:
            raise ClientGoneError(str(error)) from error

    async def finish(self) -> None:
        assert self.response is not None, "start comes first"
        try:
            await self.response.write_eof()
        except ConnectionError as error:
            raise ClientGoneError(str(error)) from error

    def ping(self, data: bytes) -> None:
        transport = self._request.transport
        if self.response is None or transport is None or transport.get_write_buffer_size():
            return
        # With an empty buffer a write has nothing to wait for: one step ends it.
        step = self.response.write(data)
        with contextlib.suppress(StopIteration, ConnectionError):
            step.send(None)
        step.close()

    def cut(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def abort(self) -> None:
        transport = self._request.transport
        if transport is not None:
            # What was written is still sent; the chunk that would end the body is not.
            transport.close()

    async def _ask_to_continue(self) -> None:
        transport = self._request.transport
        if transport is not None and self._request.version > HttpVersion10:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class _Connection(web.RequestHandler):
    """A connection whose malformed requests are answered in our form, and logged without a word.

    aiohttp quotes what it can't read, in its answer and in the log, and a key may be part of that.
    """

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request
    ) -> web.StreamResponse:
        """Answer what can't be read, or what failed outside of the gateway's own border."""
        if status >= 500:
            LOG.error("a connection failed", exc_info=exc)
            told = RequestError(status, "internal_error", "The gateway failed.")
        else:
            LOG.info("a client sent what is no proper HTTP")
            told = RequestError(status, "malformed_http", "The request is not proper HTTP.")
        if request.writer is not None and request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        response = web.Response(
            status=status,
            body=openai.error_answer(status, told.code, str(told)),
            headers={
                "Content-Type": JSON,
                "Server": SERVER_NAME,
                "x-request-id": new_id("req_"),
                "x-request-executed": "no" if status < 500 else "unknown",
            },
        )
        response.force_close()
        return response


class _Full(asyncio.Protocol):
    """Answers a connection over the limit, and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no asyncio class.
        writable = cast(asyncio.WriteTransport, transport)
        writable.write(
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        writable.close()


class HttpServer:
    """Listens on one address and hands every request to one function.

    Args:
        handle: Answers a request.
        clock: The process's clock.
        connections_max: Most connections at once; more are answered 503.
        closing: Tells whether connections are to be closed after their answer.
    """

    def __init__(
        self,
        handle: Handle,
        clock: Clock,
        *,
        connections_max: int,
        closing: Callable[[], bool],
    ) -> None:
        if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
            raise StartError(
                "aiohttp's C parser is missing, and its Python parser is not strict enough.",
                hint="Install aiohttp from a wheel, and unset AIOHTTP_NO_EXTENSIONS.",
            )
        self._handle = handle
        self._clock = clock
        self._connections_max = connections_max
        self._closing = closing
        self._listener: asyncio.Server | None = None
        self._server = web.Server(self._answer, handler_cancellation=True)

    async def listen(self, host: str, port: int, *, setting: str) -> int:
        """Listen, and return the port.

        Args:
            host: Address.
            port: TCP port; 0: any free one.
            setting: The setting to name in an error.

        Raises:
            StartError: The address can't be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(self._connect, host, port, backlog=4096)
        except OSError as error:
            raise StartError(
                f"{setting}: can't listen on {host}:{port}: {error.strerror or error}.",
                hint=f"Is something else running there? Set {setting} to another port, or to 0.",
            ) from error
        return int(self._listener.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.close()
        self._server.pre_shutdown()
        await self._server.shutdown(timeout=1.0)

    def _connect(self) -> asyncio.Protocol:
        if len(self._server.connections) >= self._connections_max:
            return _Full()
        return _Connection(
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # None is what turns it off
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            auto_decompress=False,
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        arrived_us = self._clock.now_us()
        record = RequestRecord(
            time=wall_time().isoformat(timespec="milliseconds"), request_id=new_id("req_")
        )
        headers = {"Server": SERVER_NAME, "x-request-id": record.request_id}
        peer = AiohttpPeer(request, headers, self._closing)
        path, _, query = request.raw_path.partition("?")
        await self._handle(
            Exchange(
                method=request.method,
                path=path,
                query=query,
                headers=request.headers,
                peer=peer,
                record=record,
                arrived_us=arrived_us,
                reply_headers=headers,
            )
        )
        if peer.response is None:
            raise ConnectionResetError("the client left before it was answered")
        return peer.response


def _too_large(bytes_max: int) -> RequestError:
    return RequestError(
        413,
        "body_too_large",
        f"The body is larger than {bytes_max} bytes, the most that is accepted.",
        hint="Send less at once.",
    )
