# SPDX-License-Identifier: Apache-2.0
"""What ``embed.py`` measures: work of many tenants, engines, a gateway around them, the packer."""

import asyncio
import base64
import random
import struct
import time
from array import array
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from taketurns.config.load import parse
from taketurns.engines.batching import BatchingEngine
from taketurns.engines.minilm import MiniLmTokenizer
from taketurns.gateway.auth import mint
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.gateway import Gateway
from taketurns.ports.engine import EmbedAnswer, EmbedCall, GenerationCall
from taketurns.system import SystemClock, new_id
from taketurns.telemetry.records import NoLog, RequestRecord

WORDS = ("harbour", "lantern", "green", "seven", "paper", "early", "north", "bridge", "salt")


@dataclass
class Work:
    """Requests of many tenants.

    Attributes:
        requests: Tenant and texts of each.
        sizes: Tokens of each text, in the order of the requests.
        tokens_max: A batch's token budget.
        items_max: A batch's limit of texts.
    """

    requests: list[tuple[str, list[str]]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    tokens_max: int = 4096
    items_max: int = 64

    @property
    def texts(self) -> list[str]:
        """All texts."""
        return [text for _, texts in self.requests for text in texts]


def work_of(rng: random.Random, *, texts: int, tenants: int, largest: int = 300) -> Work:
    """Make requests whose texts have 16 to 400 words; a word is a token to the fake GPU."""
    work = Work()
    while len(work.sizes) < texts:
        count = min(texts - len(work.sizes), int(rng.paretovariate(0.8)), largest)
        sizes = [rng.choice([16, 32, 64, 128, 400]) for _ in range(count)]
        work.requests.append((f"t{rng.randrange(tenants)}", ["word " * size for size in sizes]))
        work.sizes += sizes
    return work


def texts_of(rng: random.Random, tokenizer: MiniLmTokenizer, *, texts: int, tenants: int) -> Work:
    """Make requests of real texts of 4 to 120 words, counted by the model's tokenizer."""
    work = Work(tokens_max=2048, items_max=32)
    made = 0
    while made < texts:
        count = min(texts - made, int(rng.paretovariate(0.8)), 60)
        some = [
            " ".join(rng.choice(WORDS) for _ in range(rng.choice([4, 8, 16, 30, 60, 120])))
            for _ in range(count)
        ]
        work.requests.append((f"t{rng.randrange(tenants)}", some))
        made += count
    work.sizes = [len(ids) for ids in tokenizer.encode(work.texts)]
    return work


def packed(work: Work) -> list[list[str]]:
    """Pack all texts into batches, first fit by falling size: what could be done at best.

    The limits are those of the gateway's batches. In each batch texts are of
    like length, which saves an engine that pads some work.
    """
    order = sorted(range(len(work.sizes)), key=lambda index: -work.sizes[index])
    texts = work.texts
    batches: list[list[str]] = []
    room: list[list[int]] = []
    open_from = 0
    for index in order:
        size = work.sizes[index]
        for number in range(open_from, len(batches)):
            if room[number][0] >= size and room[number][1] > 0:
                break
        else:
            number = len(batches)
            batches.append([])
            room.append([work.tokens_max, work.items_max])
        batches[number].append(texts[index])
        room[number][0] -= size
        room[number][1] -= 1
        while open_from < len(batches) and (room[open_from][0] < 16 or not room[open_from][1]):
            open_from += 1
    return batches


class FakeGpu:
    """An engine that computes one batch at a time, in a fixed time and a time per token.

    Attributes:
        calls: Batches.
        tokens: Tokens in all.
    """

    name = "gpu"

    def __init__(self, fixed_s: float = 0.005, token_s: float = 10e-6) -> None:
        self.calls = 0
        self.tokens = 0
        self._fixed_s = fixed_s
        self._token_s = token_s
        self._free_at_s = 0.0

    async def start(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Answer when the batch, behind those before it, would have been computed."""
        counts = [len(text.split()) for text in call.inputs]  # type: ignore[union-attr]
        self.calls += 1
        self.tokens += sum(counts)
        took_s = self._fixed_s + self._token_s * sum(counts)
        now_s = time.perf_counter()
        self._free_at_s = max(self._free_at_s, now_s) + took_s
        if took_s:
            await asyncio.sleep(self._free_at_s - now_s)
        vectors = [struct.pack("<8f", *[count / 1024] * 8) for count in counts]
        return EmbedAnswer(vectors, sum(counts))


async def direct(engine: Any, batches: Sequence[Sequence[str]]) -> None:
    """Send batches to an engine, two at a time so that it's never idle."""
    waiting = iter(batches)

    async def worker() -> None:
        for batch in waiting:
            await engine.embed(EmbedCall(batch, None, "direct"))

    await asyncio.gather(worker(), worker())


async def one_by_one(engine: Any, work: Work) -> None:
    """Send each request as calls of its own, as large as a batch may be."""
    most = work.items_max
    await direct(
        engine,
        [
            texts[start : start + most]
            for _, texts in work.requests
            for start in range(0, len(texts), most)
        ],
    )


class Client:
    """Implements the client's side of an exchange: sends one body and keeps the answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answer: Answer | None = None

    async def read_body(self, bytes_max: int) -> bytes:
        """Return the body."""
        assert len(self.body) <= bytes_max
        return self.body

    async def send(self, answer: Answer) -> None:
        """Keep an answer."""
        self.answer = answer

    def abort(self) -> None:
        """Do nothing: there's no connection."""


class GatewaySite:
    """A gateway without sockets around one engine, and work to send to it.

    Args:
        work: The requests.
        engine: The engine.
        tokenizer: Where given, the gateway counts with it.
        as_ids: It then sends ids, not texts.
        encoding: What clients ask for.
    """

    def __init__(
        self,
        work: Work,
        engine: Any,
        *,
        tokenizer: MiniLmTokenizer | None = None,
        as_ids: bool = True,
        encoding: str = "base64",
    ) -> None:
        self.work = work
        self._engine = engine
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._encoding = encoding
        self._tenants = sorted({tenant for tenant, _ in work.requests})

    async def __aenter__(self) -> Self:
        keys = {tenant: mint() for tenant in self._tenants}
        config = {
            "server": {"log": "off"},
            "tiers": {"only": {"rank": 0, "queue_timeout": "1h"}},
            "models": {
                "embed": {
                    "endpoints": ["embeddings"],
                    "engines": [{"url": "http://fake:1", "name": "gpu", "slots": 2}],
                    "batch": {
                        "tokens_max": self.work.tokens_max,
                        "items_max": self.work.items_max,
                    },
                    "tenant_queue_max": 100_000,
                }
            },
            "tenants": {
                tenant: {"tier": "only", "keys": [key.line]} for tenant, key in keys.items()
            },
        }
        self._headers = {t: {"authorization": f"Bearer {key.key}"} for t, key in keys.items()}
        self._clock = SystemClock(asyncio.get_running_loop())
        self.gateway = Gateway(
            parse(msgspec.yaml.encode(config).decode(), "benchmark", env={}), self._clock
        )
        pool = self.gateway.pools.embeddings["embed"]
        pool.engines["gpu"] = self._engine
        if self._tokenizer is not None:
            pool.counter.tokenizer = self._tokenizer
            pool.counter.as_ids = self._as_ids
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        await self.gateway.start(self._tasks, NoLog())
        return self

    async def __aexit__(self, *_: object) -> None:
        # The engine is the benchmark's own, and goes on.
        self.gateway.pools.embeddings["embed"].engines.clear()
        await self.gateway.aclose()
        await self._tasks.__aexit__(None, None, None)

    async def send(self, tenant: str, texts: Sequence[str]) -> bytes:
        """Send one request and return its answer."""
        body = {"model": "embed", "input": texts, "encoding_format": self._encoding}
        client = Client(msgspec.json.encode(body))
        record = RequestRecord(time="", request_id=new_id("req_"))
        exchange = Exchange(
            method="POST",
            path="/v1/embeddings",
            headers=self._headers[tenant],
            peer=client,
            record=record,
            arrived_us=self._clock.now_us(),
        )
        await self.gateway.handle(exchange)
        assert client.answer is not None
        assert client.answer.status == 200, client.answer.body[:300]
        return client.answer.body

    async def run(self) -> None:
        """Send all requests at once and wait for their answers."""
        async with asyncio.TaskGroup() as tasks:
            for tenant, texts in self.work.requests:
                tasks.create_task(self.send(tenant, texts))


class CannedServer:
    """A server that answers every batch with the same vectors, made beforehand.

    Args:
        body: Its answer.
    """

    name = "gpu"

    def __init__(self, body: bytes) -> None:
        self._body = body

    def prepare(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""

    async def open(self, call: GenerationCall) -> "CannedAnswer":  # noqa: ARG002
        """Answer after a turn of the loop."""
        await asyncio.sleep(0)
        return CannedAnswer(self._body)


class CannedAnswer:
    """An answer that is there."""

    status = 200
    headers: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, bytes_max: int) -> bytes:  # noqa: ARG002
        """Return the body."""
        return self._body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body."""
        yield self._body


async def large_answer_hold_ms(upstream: str, encoding: str) -> float:
    """Return how long the loop is held by a request of 96 texts with vectors of 1,536 numbers.

    Args:
        upstream: How the engine writes vectors: ``base64`` or ``float``.
        encoding: How the client wants them.

    Returns:
        The longest time between two turns of the loop, in milliseconds.
    """
    rng = random.Random(1)
    vectors = [array("f", [rng.gauss(0, 0.03) for _ in range(1536)]) for _ in range(96)]
    data = [
        {
            "index": index,
            "embedding": base64.b64encode(vector.tobytes()).decode()
            if upstream == "base64"
            else vector.tolist(),
        }
        for index, vector in enumerate(vectors)
    ]
    body = msgspec.json.encode({"data": data, "usage": {"prompt_tokens": 9_600}})
    work = Work(requests=[("t0", ["word " * 100] * 96)], tokens_max=100_000, items_max=96)
    engine = BatchingEngine(CannedServer(body), "m")  # type: ignore[arg-type]
    async with GatewaySite(work, engine, encoding=encoding) as site:
        # The first time everything is made that is kept.
        await site.run()
        return await longest_hold_ms(site.run)


async def large_request_hold_ms() -> float:
    """Return how long the loop is held by a request of 2,000 texts, as above."""
    work = Work(requests=[("t0", ["word " * 320] * 2_000)], tokens_max=100_000)
    async with GatewaySite(work, FakeGpu(fixed_s=0, token_s=0)) as site:
        await site.run()
        return await longest_hold_ms(site.run)


async def longest_hold_ms(work: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Return the longest time between two turns of the loop while work is done.

    It's the CPU time of the loop's thread, so that other programs don't count.
    """
    loop = asyncio.get_running_loop()
    holds = []
    last = time.thread_time()
    going = True

    def tick() -> None:
        nonlocal last
        now = time.thread_time()
        holds.append(now - last)
        last = now
        if going:
            loop.call_soon(tick)

    loop.call_soon(tick)
    await work()
    going = False
    return max(holds) * 1e3
