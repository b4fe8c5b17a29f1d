# SPDX-License-Identifier: Apache-2.0
"""The HTTP server in front: aiohttp, with limits on what it takes in.

aiohttp with its C parser was the strictest of six servers in refusing
malformed requests; see docs/decisions/0003-http-server.md.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import http_parser, web

from taketurns.errors import StartError
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.inbound import Inbound, Receiving
from taketurns.gateway.peer import AiohttpPeer
from taketurns.ports.clock import Clock
from taketurns.system import new_id, wall_text
from taketurns.telemetry.records import RequestRecord

Handle = Callable[[Exchange], Awaitable[None]]


class HttpServer:
    """Listens on one address and hands every request to one function.

    Args:
        handle: Answers a request.
        clock: The process's clock.
        receiving: What clients may send.
        closing: Tells whether connections are to be closed after their answer.
    """

    def __init__(
        self,
        handle: Handle,
        clock: Clock,
        receiving: Receiving,
        *,
        closing: Callable[[], bool],
    ) -> None:
        if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
            raise StartError(
                "aiohttp's C parser is missing, and its Python parser is not strict enough.",
                hint="Install aiohttp from a wheel, and unset AIOHTTP_NO_EXTENSIONS.",
            )
        self._handle = handle
        self._clock = clock
        self._receiving = receiving
        self._by_address: dict[str, int] = {}
        self._closing = closing
        self._listener: asyncio.Server | None = None
        self._server = web.Server(self._answer, handler_cancellation=True)

    async def listen(self, host: str, port: int, *, setting: str, shared: bool = False) -> int:
        """Listen, and return the port.

        Args:
            host: Address.
            port: TCP port; 0: any free one.
            setting: The setting to name in an error.
            shared: Other processes listen on that port too, and each gets some connections.

        Raises:
            StartError: The address can't be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self._connect, host, port, backlog=4096, reuse_port=shared or None
            )
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

    @property
    def connections(self) -> list[Inbound]:
        """Connections at present."""
        return cast(list[Inbound], self._server.connections)

    def _connect(self) -> asyncio.Protocol:
        return Inbound(self._server, self._receiving, self._by_address)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        arrived_us = self._clock.now_us()
        record = RequestRecord(time=wall_text(), request_id=new_id("req_"))
        headers = {"x-request-id": record.request_id}
        peer = AiohttpPeer(request, headers, self._closing, self._receiving.body_timeout_s)
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
                address=cast(Inbound, request.protocol).address,
            )
        )
        if not peer.begun:
            raise ConnectionResetError("the client left before it was answered")
        return cast(web.StreamResponse, peer)
