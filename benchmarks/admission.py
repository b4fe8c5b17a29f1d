# SPDX-License-Identifier: Apache-2.0
"""What admission costs a request, and how soon after its deadline an expired one is answered.

The cost is CPU time: the same gateway, engine and requests, once with limits
and a wait target and once without, in turns. Requests go straight into the
gateway, so that the HTTP server's own time doesn't hide the difference.

    python benchmarks/admission.py [--json] [--rounds N] [--record PATH]
"""

import asyncio
import gc
import time

from harness import deliver, measured, options_for

from taketurns.config.load import parse
from taketurns.figures import Figure, median, rounded
from taketurns.gateway.auth import mint
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.gateway import Gateway
from taketurns.system import SystemClock, new_id
from taketurns.telemetry.records import NoLog, RequestRecord
from taketurns.testing.engine import FakeGenerationEngine

CPU_US_MAX = 10.0
EXPIRY_MS_MAX = 100.0
REQUESTS = 2_000
EXPIRING = 300

CONFIG = """
tiers: {{production: {{rank: 0, {target}}}}}
models:
  chat: {{endpoints: [chat], engines: [{{url: "http://127.0.0.1:9", name: fake, slots: 4}}]}}
tenants: {{acme: {{tier: production, keys: ["{key}"]}}}}
server: {{log: off}}
{limits}
"""
LIMITS = """
limits:
  - {unit: requests, per: minute, max: 100M}
  - {unit: tokens, per: minute, max: 900M}
  - {unit: requests, per: month, max: 900M}
"""
BODY = b'{"model": "chat", "messages": [{"role": "user", "content": "How are you?"}]}'


class Client:
    """Implements the client's side of an exchange: sends one body and keeps the answer."""

    def __init__(self) -> None:
        self.answer: Answer | None = None

    async def read_body(self, bytes_max: int) -> bytes:
        """Return the one body there is."""
        assert len(BODY) <= bytes_max
        return BODY

    async def send(self, answer: Answer) -> None:
        """Keep an answer."""
        self.answer = answer

    def abort(self) -> None:
        """Do nothing: there's no connection."""


class Site:
    """A gateway with a fake engine."""

    def __init__(self, *, admission: bool) -> None:
        key = mint()
        text = CONFIG.format(
            key=key.line,
            target="wait_target: 2s" if admission else "queue_timeout: 60s",
            limits=LIMITS if admission else "",
        )
        self.clock = SystemClock(asyncio.get_running_loop())
        self.gateway = Gateway(parse(text, "benchmark"), self.clock)
        self.engine = FakeGenerationEngine("fake")
        self.gateway.pools.generation["chat"].engines["fake"] = self.engine
        self.headers = {"authorization": f"Bearer {key.key}"}

    async def send(self, **headers: str) -> Client:
        """Send one request and return the client with its answer."""
        client = Client()
        record = RequestRecord(time="", request_id=new_id("req_"))
        await self.gateway.handle(
            Exchange(
                method="POST",
                path="/v1/chat/completions",
                headers={**self.headers, **headers},
                peer=client,
                record=record,
                arrived_us=self.clock.now_us(),
            )
        )
        return client

    async def cpu_us(self, requests: int) -> float:
        """Send requests one after the other; return the CPU time of one in microseconds."""
        self.engine.calls.clear()
        begin = time.process_time()
        for _ in range(requests):
            client = await self.send()
        used = time.process_time() - begin
        assert client.answer.status == 200, client.answer.body
        return used / requests * 1e6


async def measure_cpu(rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU time of a request without and with admission, a value a round."""
    without: list[float] = []
    with_it: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        bare, full = Site(admission=False), Site(admission=True)
        for site in (bare, full):
            await site.gateway.start(tasks, NoLog())
            await site.cpu_us(REQUESTS // 4)
        for _ in range(rounds):
            gc.collect()
            without.append(await bare.cpu_us(REQUESTS))
            with_it.append(await full.cpu_us(REQUESTS))
        for site in (bare, full):
            await site.gateway.aclose()
    return without, with_it


async def measure_expiry() -> list[float]:
    """Return how long after their deadlines requests that waited were answered, in milliseconds."""
    async with asyncio.TaskGroup() as tasks:
        site = Site(admission=False)
        await site.gateway.start(tasks, NoLog())
        site.engine.hold()
        held = [tasks.create_task(site.send()) for _ in range(4)]

        async def late_ms(wait_ms: int) -> float:
            begin = time.perf_counter()
            client = await site.send(**{"taketurns-deadline-ms": str(wait_ms)})
            assert client.answer.status == 429, client.answer.body
            return (time.perf_counter() - begin) * 1e3 - wait_ms

        waits = [50 + number % 250 for number in range(EXPIRING)]
        delays = [tasks.create_task(late_ms(wait_ms)) for wait_ms in waits]
        found = [await task for task in delays]
        site.engine.release()
        for task in held:
            await task
        await site.gateway.aclose()
    return found


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds to take the median of")
    options = parser.parse_args()
    without, with_it = asyncio.run(measure_cpu(options.rounds))
    delays = sorted(asyncio.run(measure_expiry()))
    added = [more - less for less, more in zip(without, with_it, strict=True)]
    p99 = delays[len(delays) * 99 // 100]
    note = "three limits, one of them a month's, and a wait target; without the HTTP server"
    figures = [
        measured("cpu_us_per_request_without_admission", without, "us"),
        measured("cpu_us_per_request_with_admission", with_it, "us", note=note),
        measured(
            "cpu_us_that_admission_adds",
            added,
            "us",
            f"<= {CPU_US_MAX:g}",
            reached=median(added) <= CPU_US_MAX,
            note=note,
        ),
        Figure(
            "expired_answered_after_deadline_p99_ms",
            rounded(p99),
            "ms",
            f"<= {EXPIRY_MS_MAX:g}",
            p99 <= EXPIRY_MS_MAX,
            1,
            (rounded(delays[0]), rounded(delays[-1])),
            f"{EXPIRING} requests that wait at once, deadlines of 50 to 300 ms",
        ),
    ]
    deliver(figures, options)


if __name__ == "__main__":
    main()
