# SPDX-License-Identifier: Apache-2.0
"""How soon an engine is rid of a request whose client has left, in every phase of it.

Clients leave several at once, through a whole gateway in a process of its own,
beside streams that go on. A mock engine notes when its connection is closed.
Of a request that waits, and of a connection that is being made, no engine can
tell: there the gateway's queue is looked at, and the kernel's table of sockets.
Needs Linux.

    python benchmarks/cancel.py [--json] [--rounds N] [--record PATH]
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from harness import deliver, measured, options_for
from loopback import ANSWER, STREAM_HEAD, Engine, Streams, Wheel, event, request

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real.engines import ADMIN_TOKEN, gateway

from taketurns.figures import Figure

AT_ONCE = 20
"""Clients that leave together."""

STREAMS = 30
EVENT_MS = 20
LIMIT_MS = 500.0
GIVE_UP_S = 60
LOOK_S = 0.0005
SOCKETS = Path("/proc/net/tcp")
SYN_SENT = "02"
LONG = dict.fromkeys(("connect", "first_byte", "between_chunks", "total"), "5m")
NUMBER = re.compile(rb'"seed":(\d+)')
ASK = {"model": "held", "messages": [{"role": "user", "content": "hi"}]}

PHASES = {
    "queued": ("queued", True),
    "connecting": ("far", True),
    "before the first byte": ("silent", True),
    "mid-stream": ("stream", True),
    "whole answer, before its head": ("silent", False),
    "whole answer, amid its body": ("half", False),
}
"""By name: which model is asked, and whether for a stream."""


class Holding(Engine):
    """A connection of the mock engine: it says as much as its model's name tells, and then nothing.

    Class attributes:
        begun: Numbers of the requests that came.
        closed: When the connection of each request was closed.
    """

    begun: set[int] = set()  # noqa: RUF012 - one table for all connections
    closed: dict[int, float] = {}  # noqa: RUF012 - the same
    number = -1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Note when."""
        if self.number >= 0:
            self.closed[self.number] = time.perf_counter()

    def _answer(self, head: bytes, body: bytes) -> None:  # noqa: ARG002 - the other engine's
        self.number = int(NUMBER.search(body)[1])
        self.begun.add(self.number)
        if b'"model":"stream"' in body:
            self._transport.write(STREAM_HEAD + event(time.monotonic_ns()))
        elif b'"model":"half"' in body:
            self._transport.write(ANSWER[: len(ANSWER) // 2])


@dataclass
class Site:
    """A gateway under load.

    Attributes:
        port: Where it listens.
        key: Of the tenant whose clients leave.
        admin: Where its pools are told.
        http: For that.
        far: Port of an engine to which no connection is ever made.
        asked: Number of the last request.
        waited: Numbers of the requests that left the queue.
    """

    port: int
    key: str
    admin: str
    http: aiohttp.ClientSession
    far: int
    asked: int = 0
    waited: set[int] = field(default_factory=set)

    async def queued(self) -> int:
        """Return how many requests wait."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        async with self.http.get(f"{self.admin}/pools", headers=headers) as answer:
            return (await answer.json())["queued"]["queued"]

    async def connecting(self) -> int:
        """Return how many connections the gateway has under way."""
        lines = SOCKETS.read_text().splitlines()[1:]  # noqa: ASYNC240 - it's in memory
        fields = (line.split() for line in lines)
        port = f":{self.far:04X}"
        return sum(at[2].endswith(port) and at[3] == SYN_SENT for at in fields)

    async def send(self, model: str, *, stream: bool) -> tuple[int, asyncio.StreamWriter]:
        """Send a request; return its number and its connection."""
        self.asked += 1
        asked = {**ASK, "model": model, "stream": stream, "seed": self.asked}
        body = json.dumps(asked, separators=(",", ":"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\nAuthorization: Bearer {self.key}\r\n\r\n{body}".encode())
        if model == "stream":
            await reader.readuntil(b"\n\n")
        return self.asked, writer


@contextlib.contextmanager
def unreachable() -> Iterator[int]:
    """Yield a port that leaves every connection unanswered: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)  # noqa: FBT003 - the socket module's
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until something holds."""
    while not await condition():  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(LOOK_S)


async def fall(
    count: Callable[[], Awaitable[int]], base: int, cuts: Sequence[float]
) -> list[float]:
    """Return how long after its cut each of some requests was gone, by a count that falls."""
    found: list[float] = []
    while len(found) < len(cuts):
        gone = base + len(cuts) - await count()
        now = time.perf_counter()
        found += [now - cut for cut in cuts[len(found) : gone]]
        await asyncio.sleep(LOOK_S)
    return found


async def leave(site: Site, phase: str) -> list[float]:
    """Let some clients get into a phase and leave; return how long each took to be gone."""
    model, stream = PHASES[phase]
    count = {"queued": site.queued, "far": site.connecting}.get(model)
    base = await count() if count else 0
    sent = [await site.send(model, stream=stream) for _ in range(AT_ONCE)]
    numbers = {number for number, _ in sent}

    async def there() -> bool:
        return await count() == base + AT_ONCE if count else numbers <= Holding.begun

    await until(there)
    cuts = []
    for _, writer in sent:
        cuts.append(time.perf_counter())
        writer.transport.abort()
    if count:
        if model == "queued":
            site.waited |= numbers
        return await fall(count, base, cuts)

    async def closed() -> bool:
        return numbers <= Holding.closed.keys()

    await until(closed)
    return [Holding.closed[number] - cut for (number, _), cut in zip(sent, cuts, strict=True)]


@contextlib.asynccontextmanager
async def serve(engine: type[asyncio.Protocol]) -> AsyncIterator[int]:
    """Serve as an engine; yields its port."""
    server = await asyncio.get_running_loop().create_server(engine, "127.0.0.1", 0, backlog=4096)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return for each phase how long it took, in milliseconds.

    Raises:
        RuntimeError: A request whose client had left the queue reached the engine.
        TimeoutError: Some stay for ever.
    """
    Engine.wheel = Wheel()
    Engine.wheel.turn()
    async with serve(Holding) as held, serve(Engine) as streaming:
        with unreachable() as far:
            ports = dict.fromkeys(("silent", "stream", "half", "queued"), held)
            ports |= {"chat": streaming, "far": far}
            models = {
                name: {
                    "endpoints": ["chat"],
                    "engines": [
                        {"url": f"http://127.0.0.1:{port}", "slots": 1 if name == "queued" else 100}
                    ],
                    "engine_limits": LONG,
                }
                for name, port in ports.items()
            }
            with gateway(folder, models, {"leaves": {}, "stays": {}}) as (process, keys):
                port = int(process.url.rpartition(":")[2])
                async with aiohttp.ClientSession() as http:
                    site = Site(port, keys["leaves"], process.admin_url, http, far)
                    return await all_phases(site, keys["stays"], rounds)


async def all_phases(site: Site, stays: str, rounds: int) -> dict[str, list[float]]:
    """Let clients leave in each phase in turn, beside streams that go on."""
    streams = Streams()
    await streams.open(site.port, [request(site.port, stays, period_ms=EVENT_MS)], STREAMS)
    _, holder = await site.send("queued", stream=True)
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(rounds):
        for phase, past in found.items():
            async with asyncio.timeout(GIVE_UP_S):
                past += [1000 * took for took in await leave(site, phase)]
    holder.transport.abort()
    _, last = await site.send("queued", stream=True)
    number = site.asked

    async def reached() -> bool:
        return number in Holding.begun

    await until(reached)
    last.transport.abort()
    streams.close()
    if site.waited & Holding.begun:
        raise RuntimeError("requests that had left the queue reached the engine")
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of them doesn't exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def figures_of(found: dict[str, list[float]]) -> list[Figure]:
    """Return median and 99th percentile of each phase."""
    figures = []
    for phase, took in found.items():
        note = f"{len(took)} clients, {AT_ONCE} at once, beside {STREAMS} streams"
        late = percentile(took, 0.99)
        figures += [
            measured(f"{phase}, p50", took, "ms", note=note),
            measured(
                f"{phase}, p99",
                [late],
                "ms",
                f"<= {LIMIT_MS:g}",
                reached=late <= LIMIT_MS,
                note=note,
            ),
        ]
    return figures


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(measure(Path(name), options.rounds))
    deliver(figures_of(found), options)


if __name__ == "__main__":
    main()
