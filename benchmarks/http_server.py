# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server alone costs a request, beside aiohttp's server in the same run.

Both read a chat request of the usual size with its body and answer 1 KB at once, on
uvloop. Load comes from another process, one request at a time on each of its
connections. Time is the server's process's own CPU time, the kernel's part included.

    python benchmarks/http_server.py [--json] [--rounds N] [--record PATH]
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import uvloop
from aiohttp import web
from harness import deliver, measured, options_for
from loopback import request

from taketurns.figures import median
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.inbound import Receiving
from taketurns.gateway.server import HttpServer
from taketurns.system import SystemClock

CONNECTIONS = 32
REQUESTS = 20_000
RATIO_MAX = 0.8
BODY = b"x" * 1024
JSON = {"Content-Type": "application/json"}

Close = Callable[[], Awaitable[None]]


async def answer(exchange: Exchange) -> None:
    """Answer a request as the gateway would."""
    body = await exchange.peer.read_body(1 << 20)
    assert body
    await exchange.peer.send(Answer(200, BODY))


async def start_own() -> tuple[int, Close]:
    """Serve with our server; return its port, and what ends it."""
    clock = SystemClock(asyncio.get_running_loop())
    server = HttpServer(answer, clock, Receiving(connections_max=1_000), closing=lambda: False)
    return await server.listen("127.0.0.1", 0, setting="port"), server.aclose


async def start_aiohttp() -> tuple[int, Close]:
    """Serve with aiohttp's; return its port, and what ends it."""

    async def answer(asked: web.BaseRequest) -> web.Response:
        assert await asked.read()
        return web.Response(body=BODY, headers=JSON)

    server = web.Server(answer, access_log=None)
    listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)

    async def close() -> None:
        listener.close()
        await server.shutdown()

    return listener.sockets[0].getsockname()[1], close


async def cpu_us(start: Callable[[], Awaitable[tuple[int, Close]]], requests: int) -> float:
    """Return the CPU time of one request, in microseconds."""
    port, close = await start()
    load = [sys.executable, __file__, "--port", str(port), "--requests"]
    for count in (1_000, requests):
        process = await asyncio.create_subprocess_exec(*load, str(count), stdin=subprocess.DEVNULL)
        began = time.process_time()
        if await process.wait():
            raise RuntimeError("the load failed")
        took = time.process_time() - began
    await close()
    return took / requests * 1e6


class Client(asyncio.Protocol):
    """One connection that sends the next request when it has an answer.

    Args:
        data: The request.
        left: Requests that all connections are to send yet; a list of one.
        done: Told when an answer is the last.
    """

    def __init__(self, data: bytes, left: list[int], done: "asyncio.Future[None]") -> None:
        self._request = data
        self._left = left
        self._done = done
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first."""
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        """Send the next once an answer is whole."""
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end >= 0 and len(self._data) >= end + 4 + len(BODY):
            assert self._data.startswith(b"HTTP/1.1 200")
            self._data = b""
            self._send()

    def _send(self) -> None:
        self._left[0] -= 1
        if self._left[0] >= 0:
            self._transport.write(self._request)
        elif self._left[0] == -CONNECTIONS:
            self._done.set_result(None)


async def load(port: int, requests: int) -> None:
    """Send so many requests over some connections."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    data, left = request(port, "tt_" + "k" * 50), [requests]
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Client(data, left, done), "127.0.0.1", port)
    await done


def main() -> None:
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--port", type=int, help="send the load there; used by itself")
    options = parser.parse_args()
    if options.port:
        uvloop.run(load(options.port, options.requests))
        return
    own, theirs = [], []
    for _ in range(options.rounds):
        own.append(uvloop.run(cpu_us(start_own, options.requests)))
        theirs.append(uvloop.run(cpu_us(start_aiohttp, options.requests)))
    ratios = [a / b for a, b in zip(own, theirs, strict=True)]
    figures = [
        measured("CPU of a request, own server", own, "us"),
        measured("CPU of a request, aiohttp's server", theirs, "us"),
        measured(
            "own server against aiohttp's",
            ratios,
            "",
            f"<= {RATIO_MAX:g}",
            reached=median(ratios) <= RATIO_MAX,
        ),
    ]
    deliver(figures, options, {"aiohttp": version("aiohttp")})


if __name__ == "__main__":
    main()
