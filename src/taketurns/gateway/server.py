# SPDX-License-Identifier: Apache-2.0
"""The HTTP server in front: listens, keeps the time of its connections, and makes exchanges.

Why it is our own: docs/decisions/0036-http-server-of-our-own.md.
"""

import asyncio
import contextlib
import select
import socket
from collections.abc import Awaitable, Callable

from taketurns.errors import StartError
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.inbound import Crowd, Inbound, Receiving
from taketurns.gateway.peer import Http1Peer
from taketurns.ports.clock import Clock
from taketurns.system import new_id, wall_text
from taketurns.telemetry.records import RequestRecord
from taketurns.wire.request_head import Head

SWEEP_S = 1.0
"""Most time between two looks at the connections' deadlines."""

CLOSE_S = 1.0
"""What requests have to end when the server closes, and then what is written has to leave."""

POLLS = hasattr(select, "POLLRDHUP")
"""Whether the system tells that a client left while nothing is read: Linux does."""

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
        self._handle = handle
        self._clock = clock
        self._receiving = receiving
        self._crowd = Crowd()
        self._closing = closing
        self._listener: asyncio.Server | None = None
        shortest = min(receiving.head_timeout_s, receiving.body_timeout_s, receiving.idle_timeout_s)
        self._sweep_s = min(SWEEP_S, shortest / 4)
        self._sweep_timer: asyncio.TimerHandle | None = None

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
                lambda: self._connect(loop), host, port, backlog=4096, reuse_port=shared or None
            )
        except OSError as error:
            raise StartError(
                f"{setting}: can't listen on {host}:{port}: {error.strerror or error}.",
                hint=f"Is something else running there? Set {setting} to another port, or to 0.",
            ) from error
        for listening in self._listener.sockets:
            # Accepted sockets inherit it: a client's machine that is gone is found.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sweep(loop)
        return int(self._listener.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        """Stop listening and close every connection, in a few seconds at most."""
        if self._listener is not None:
            self._listener.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for connection in self.connections:
            connection.end()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=CLOSE_S)
        for task in (tasks := self._tasks()):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._crowd.empty.wait(), CLOSE_S)
        for connection in self.connections:
            connection.abort()

    @property
    def connections(self) -> list[Inbound]:
        """Connections at present."""
        return list(self._crowd.connections)

    def _tasks(self) -> "set[asyncio.Task[None]]":
        return {one.task for one in self.connections if one.task is not None}

    def _connect(self, loop: asyncio.AbstractEventLoop) -> Inbound:
        return Inbound(loop, self._receiving, self._crowd, self._answer, self._closing)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep_timer = loop.call_later(self._sweep_s, self._sweep, loop)
        now_s = loop.time()
        for connection in self.connections:
            if connection.deadline_s <= now_s:
                connection.look(now_s)
            if POLLS:
                connection.look_for_leave()

    async def _answer(self, head: Head, peer: Http1Peer, address: str) -> None:
        record = RequestRecord(time=wall_text(), request_id=new_id("req_"))
        lines = {"id": f"x-request-id: {record.request_id}\r\n"}
        peer.own_lines = lines
        await self._handle(
            Exchange(
                method=head.method,
                path=head.path,
                query=head.query,
                headers=head.headers,
                peer=peer,
                record=record,
                arrived_us=self._clock.now_us(),
                reply_lines=lines,
                address=address,
            )
        )
