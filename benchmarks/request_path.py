# SPDX-License-Identifier: Apache-2.0
"""What the gateway's own work costs, between the HTTP server and the socket of an engine.

A client in process hands requests to the gateway; a mock engine behind a real
socket, in a process of its own, answers them. Keys, limits, throttle, scheduling,
metering, metrics and the request log are on. Time is this process's own CPU time:
also told as a multiple of what the scheduler's core takes for a ticket in the same
round, so that how fast the machine is cancels out.

    python benchmarks/request_path.py [--json] [--rounds N] [--profile] [--record PATH]
"""

import asyncio
import cProfile
import pstats
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop
from harness import deliver, measured, options_for
from loopback import request

from taketurns.config.load import parse
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.gateway.auth import mint
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.gateway import Gateway
from taketurns.system import SystemClock, new_id, wall_text
from taketurns.telemetry.records import LogWriter, NoLog, RequestRecord, open_log

REQUESTS = 4_000
COUNTED = 500
STREAMS = 200
PERIOD_MS = 10
STREAM_S = 1.5
AT_ONCE = 16

CONFIG = """
tiers: {{production: {{rank: 0, {target}}}}}
models:
  chat:
    endpoints: [chat]
    cost: ema
    engines: [{{url: "http://127.0.0.1:{port}", name: mock, slots: 1000}}]
tenants: {{acme: {{tier: production, keys: ["{key}"]}}}}
{limits}
"""
LIMITS = """
limits:
  - {unit: requests, per: minute, max: 100M}
  - {unit: tokens, per: minute, max: 900M}
  - {unit: requests, per: month, max: 900M}
"""


def body_of(*, period_ms: int | None) -> bytes:
    """Return the body of a request: a stream's where there is a period."""
    whole = request(0, "")
    if period_ms == 0:
        whole = request(0, "", period_ms=1).replace(b'"seed":1', b'"seed":0')
    elif period_ms is not None:
        whole = request(0, "", period_ms=period_ms)
    return whole.partition(b"\r\n\r\n")[2]


class Client:
    """Implements the client's side of an exchange, for the least that it can cost."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 0
        self.events = 0
        self.unread = 0

    async def read_body(self, bytes_max: int) -> bytes:
        """Return the body."""
        assert len(self.body) <= bytes_max
        return self.body

    async def send(self, answer: Answer) -> None:
        """Keep the status."""
        self.status = answer.status

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Keep the status."""
        assert headers
        self.status = status

    async def write(self, data: bytes) -> None:
        """Count what is written."""
        self.write_now(data)

    def write_now(self, data: bytes) -> bool:
        """Count a piece of a stream."""
        self.events += data.count(b"\n\n")
        return True

    async def drain(self) -> None:
        """Do nothing: it's never behind."""

    async def finish(self) -> None:
        """Do nothing."""

    def ping(self, data: bytes) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing: there's no connection."""


class Site:
    """A gateway in front of the mock engine.

    Args:
        port: The mock engine's.
        full: Limits, throttle and the request log are on.
        folder: For the log.
    """

    def __init__(self, port: int, folder: Path, *, full: bool) -> None:
        key = mint()
        text = CONFIG.format(
            port=port,
            key=key.line,
            target="wait_target: 5s" if full else "queue_timeout: 60s",
            limits=LIMITS if full else "",
        )
        loop = asyncio.get_running_loop()
        self.clock = SystemClock(loop)
        self.gateway = Gateway(parse(text, "benchmark"), self.clock)
        self.log: LogWriter = NoLog()
        if full:
            self.log = open_log(str(folder / "requests.log"), loop.call_later, self._failed)
        self._headers = {"authorization": f"Bearer {key.key}"}

    def _failed(self, error: OSError) -> None:
        raise error

    def exchange(self, client: Client) -> Exchange:
        """Return a client's request, as the server makes it."""
        request_id = new_id("req_")
        return Exchange(
            method="POST",
            path="/v1/chat/completions",
            headers=self._headers,
            peer=client,
            record=RequestRecord(time=wall_text(), request_id=request_id),
            arrived_us=self.clock.now_us(),
            reply_lines={"id": f"x-request-id: {request_id}\r\n"},
        )

    async def send(self, body: bytes, requests: int) -> None:
        """Send requests one after the other."""
        for _ in range(requests):
            client = Client(body)
            await self.gateway.handle(self.exchange(client))
            assert client.status == 200, client.status

    async def cpu_us(self, body: bytes, requests: int = REQUESTS) -> float:
        """Send requests, some at once; return the CPU time of one in microseconds."""
        begin = time.process_time()
        await asyncio.gather(*[self.send(body, requests // AT_ONCE) for _ in range(AT_ONCE)])
        return (time.process_time() - begin) / requests * 1e6

    async def calls(self, body: bytes) -> float:
        """Return how many Python functions a request calls."""
        count = 0

        def see(_frame: object, event: str, _arg: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(see)
        await self.send(body, COUNTED)
        sys.setprofile(None)
        return count / COUNTED

    async def cpu_us_an_event(self) -> float:
        """Relay streams for a while; return the CPU time of an event in microseconds."""
        body = body_of(period_ms=PERIOD_MS)
        clients = [Client(body) for _ in range(STREAMS)]
        tasks = [
            asyncio.ensure_future(self.gateway.handle(self.exchange(client))) for client in clients
        ]
        await asyncio.sleep(0.5)
        before = sum(client.events for client in clients)
        begin = time.process_time()
        await asyncio.sleep(STREAM_S)
        used = time.process_time() - begin
        events = sum(client.events for client in clients) - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return used / events * 1e6


def core_us(tickets: int = 20_000) -> float:
    """Return the CPU time of a ticket in the core alone: queued, granted, finished."""
    scheduler = Scheduler(PoolRules(quantum=512), [Tier("production")])
    scheduler.set_engine("mock", 1)
    names = [f"ticket-{number}" for number in range(tickets)]
    begin = time.process_time()
    for now_us, name in enumerate(names):
        scheduler.submit(Ticket(id=name, tenant="acme", tier="production", cost=300))
        scheduler.advance(now_us)
        scheduler.finish(name)
    return (time.process_time() - begin) / tickets * 1e6


async def measure(port: int, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return all values by name, one a round."""
    values: dict[str, list[float]] = defaultdict(list)
    whole, short = body_of(period_ms=None), body_of(period_ms=0)
    async with asyncio.TaskGroup() as tasks:
        full, bare = Site(port, folder, full=True), Site(port, folder, full=False)
        for site in (full, bare):
            await site.gateway.start(tasks, site.log)
            await site.cpu_us(whole, 1_000)
            await site.cpu_us(short, 200)
        for _ in range(rounds):
            unit = core_us()
            for name, us in (
                ("request", await full.cpu_us(whole)),
                ("request_without_limits", await bare.cpu_us(whole)),
                ("short_stream", await full.cpu_us(short, REQUESTS // 2)),
                ("event", await full.cpu_us_an_event()),
            ):
                values[f"cpu_us_per_{name}"].append(us)
                values[f"core_tickets_per_{name}"].append(us / unit)
            values["cpu_us_per_core_ticket"].append(unit)
        values["python_calls_per_request"].append(await full.calls(whole))
        values["python_calls_per_request_without_limits"].append(await bare.calls(whole))
        values["python_calls_per_short_stream"].append(await full.calls(short))
        for site in (full, bare):
            await site.gateway.aclose()
            site.log.close()
    return values


async def profile(port: int, folder: Path) -> None:
    """Print where the time of a whole answer goes, without limits."""
    async with asyncio.TaskGroup() as tasks:
        site = Site(port, folder, full=False)
        await site.gateway.start(tasks, site.log)
        body = body_of(period_ms=None)
        await site.cpu_us(body, 1_000)
        seen = cProfile.Profile(time.process_time)
        seen.enable()
        await site.cpu_us(body)
        seen.disable()
        pstats.Stats(seen).sort_stats("tottime").print_stats(60)
        await site.gateway.aclose()


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="rounds to take the median of")
    parser.add_argument("--profile", action="store_true", help="only say where the time goes")
    options = parser.parse_args()
    script = Path(__file__).parent / "loopback.py"
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as engine,
    ):
        assert engine.stdout is not None
        try:
            port = int(engine.stdout.readline())
            run: Callable[..., object] = uvloop.run
            if options.profile:
                run(profile(port, Path(folder)))
                return
            values = uvloop.run(measure(port, Path(folder), options.rounds))
        finally:
            engine.terminate()
    note = "with the socket to the engine, without the HTTP server"
    figures = [
        measured(name, found, "us" if name.startswith("cpu_us") else "", note=note)
        for name, found in values.items()
    ]
    deliver(figures, options)


if __name__ == "__main__":
    main()
