# SPDX-License-Identifier: Apache-2.0
"""A whole gateway on real sockets in the test's own event loop; only its engines are fakes."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field

import aiohttp
import openai
import pytest
import uvloop
import yaml

from taketurns.config.load import parse
from taketurns.gateway.auth import mint
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.run import run
from taketurns.testing.engine import FakeEmbeddingEngine, FakeGenerationEngine
from taketurns.testing.fault_proxy import FaultProxy
from taketurns.testing.http_engine import FakeHttpEngine

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
"""The gateway runs on uvloop where that is installed."""

SAFETY_S = 60
"""No test waits so long unless it hangs."""

TIERS = {"production": {"rank": 0}, "trial": {"rank": 1}}
TENANTS = {
    "acme": {"tier": "production"},
    "globex": {"tier": "production"},
    "pico": {"tier": "trial"},
}
AT_ONCE = {"no_engine_wait": "0s", "slow_start": "0s"}
"""Engines that are gone are told of at once, and those that are back get all their slots."""

CHAT = {
    "health": AT_ONCE,
    "endpoints": ["chat", "completions"],
    "engines": [{"url": "http://fake:1", "name": "gpu-0", "slots": 2}],
}
EMBED = {
    "health": AT_ONCE,
    "endpoints": ["embeddings"],
    "engines": [{"url": "http://fake:2", "name": "cpu-0", "slots": 1}],
    "dimensions": True,
}


def configure(*, server=None, tiers=None, models=None, tenants=None, backends=(), **more):
    """Return a configuration and the tenants' keys; ``http://backend-0`` is the first backend."""
    tenants = {name: dict(tenant) for name, tenant in (tenants or TENANTS).items()}
    keys = {}
    for name, tenant in tenants.items():
        minted = mint()
        keys[name] = minted.key
        tenant["keys"] = [minted.line]
    data = {
        "server": {"port": 0, "admin_port": 0, "log": "off", **(server or {})},
        "tiers": tiers or TIERS,
        "models": models or {"chat": CHAT, "embed": EMBED},
        "tenants": tenants,
        **more,
    }
    text = yaml.safe_dump(data, sort_keys=False)
    for number, backend in enumerate(backends):
        text = text.replace(f"http://backend-{number}", backend.url)
    return parse(text, "test.yaml", env={}), keys


async def until(condition):
    """Wait until a condition holds that no event tells of."""
    loop = asyncio.get_running_loop()
    while not condition():
        soon = asyncio.Event()
        loop.call_later(0.002, soon.set)
        await soon.wait()


@dataclass
class Reply:
    """An answer as it came."""

    status: int
    headers: object
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error in OpenAI's form, checked for that form."""
        assert self.status >= 400
        assert self.headers["Content-Type"].startswith("application/json")
        assert self.headers["x-request-id"].startswith("req_")
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["code"]
        return error


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def head(self):
        """Return status and headers of the next answer, names in lower case."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            if line:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
        return int(lines[0].split()[1]), headers

    async def reply(self):
        """Return the next answer, which has a Content-Length."""
        status, headers = await self.head()
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return status, headers, body

    async def rest(self):
        """Return all that comes until the other side closes or resets."""
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self.reader.read(65_536):
                received += piece
        return received

    async def close(self):
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def cut(self):
        self.writer.transport.abort()


class ListLog:
    """Implements the log of requests: keeps the records."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def close(self):
        pass


@dataclass
class Site:
    """A gateway that serves, and ways to talk to it."""

    running: object
    keys: dict
    http: aiohttp.ClientSession
    backends: list
    stack: contextlib.AsyncExitStack
    tasks: asyncio.TaskGroup
    gateway_task: asyncio.Task = None
    log: ListLog = field(default_factory=ListLog)
    engines: dict = field(default_factory=dict)
    own_log: object = None
    proxies: list = field(default_factory=list)

    @property
    def gateway(self):
        return self.running.gateway

    @property
    def url(self):
        return f"http://127.0.0.1:{self.running.port}"

    @property
    def admin_url(self):
        return f"http://127.0.0.1:{self.running.admin_port}"

    @property
    def records(self):
        return self.log.records

    until = staticmethod(until)

    def pool(self, model):
        return self.gateway.pools.of(model)

    def scheduler(self, model):
        return self.pool(model).turns.scheduler

    def start(self, coroutine):
        """Run something beside the test."""
        return self.tasks.create_task(coroutine)

    async def queued(self, model, count):
        """Wait until so many tickets wait for a model."""
        await until(lambda: self.scheduler(model).queued == count)

    async def fill(self, model="chat", tenant="globex"):
        """Hold a model's generation engine and take all its slots; return the tasks."""
        engine = self.engines["gpu-0"]
        engine.hold()
        slots = self.pool(model).model.section.engines[0].slots
        held = [self.start(self.chat(tenant=tenant, model=model)) for _ in range(slots)]
        await until(lambda: self.scheduler(model).running == slots)
        await until(lambda: len(engine.calls) >= slots)
        return held

    async def send(self, method, path, *, tenant="acme", headers=None, base=None, **more):
        head = dict(headers or {})
        if tenant is not None:
            head.setdefault("Authorization", f"Bearer {self.keys[tenant]}")
        async with self.http.request(
            method, (base or self.url) + path, headers=head, **more
        ) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def post(self, path, body, **more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        return await self.send("POST", path, data=data, headers=headers, **more)

    async def chat(self, content="hi", *, model="chat", fields=None, **more):
        body = {"model": model, "messages": [{"role": "user", "content": content}]}
        return await self.post("/v1/chat/completions", body | (fields or {}), **more)

    async def embed(self, texts, *, model="embed", fields=None, **more):
        body = {"model": model, "input": texts, "encoding_format": "base64"}
        return await self.post("/v1/embeddings", body | (fields or {}), **more)

    async def admin(self, path, token=None, method="GET"):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.send(method, path, tenant=None, headers=headers, base=self.admin_url)

    async def openai(self, tenant="acme", **more):
        """Return the official client, without retries."""
        client = openai.AsyncOpenAI(
            base_url=self.url + "/v1", api_key=self.keys[tenant], **{"max_retries": 0, **more}
        )
        return await self.stack.enter_async_context(client)

    def inbound(self):
        """Return the connections of clients."""
        return self.running.server.connections

    async def wire(self, source="127.0.0.1"):
        """Return a connection of its own."""
        wire = Wire(
            *await asyncio.open_connection("127.0.0.1", self.running.port, local_addr=(source, 0))
        )
        self.stack.push_async_callback(wire.close)
        return wire

    def raw_post(self, path, body, *, tenant="acme", headers=()):
        """Return a request's bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: gateway",
            f"Authorization: Bearer {self.keys[tenant]}",
            f"Content-Length: {len(data)}",
            *headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    def leaks(self):
        """Return what is left behind though nothing is under way."""
        found = []
        if self.gateway.active:
            found.append(f"active: {len(self.gateway.active)}")
        for name, pool in self.gateway.pools.all().items():
            scheduler = pool.turns.scheduler
            if scheduler.queued or scheduler.running:
                found.append(f"{name}: queued {scheduler.queued}, running {scheduler.running}")
            if pool.turns._waiters:
                found.append(f"{name}: waiters {len(pool.turns._waiters)}")
            if isinstance(pool, EmbeddingPool) and pool.items:
                found.append(f"{name}: items {pool.items}")
            in_use = [engine.in_flight for engine in scheduler.snapshot().engines]
            if any(in_use):
                found.append(f"{name}: slots in use {in_use}")
        return found

    async def settle(self):
        """Wait until nothing is under way, and see that nothing is left behind."""
        try:
            async with asyncio.timeout(10):
                await until(lambda: not self.leaks())
        except TimeoutError:
            pytest.fail(f"left behind: {self.leaks()}")


def _with_fakes(site):
    """Put an in-process fake where the configuration names one."""
    for pool in site.gateway.pools.all().values():
        for name, part in zip(list(pool.engines), pool.model.section.engines, strict=True):
            if getattr(part, "url", "").startswith("http://fake"):
                embeds = isinstance(pool, EmbeddingPool)
                fake = FakeEmbeddingEngine(name) if embeds else FakeGenerationEngine(name)
                pool.engines[name] = site.engines[name] = fake


async def _play(scenario, *, backends, settles, proxied, safety_s, sections):
    async with (
        asyncio.timeout(safety_s),
        contextlib.AsyncExitStack() as engines,
        contextlib.AsyncExitStack() as stack,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        asyncio.TaskGroup() as tasks,
    ):
        served = [await engines.enter_async_context(FakeHttpEngine()) for _ in range(backends)]
        before = served if proxied else ()
        proxies = [await engines.enter_async_context(FaultProxy(part.port)) for part in before]
        config, keys = configure(backends=proxies or served, **sections)
        ready = asyncio.get_running_loop().create_future()
        task = tasks.create_task(run(config, ready.set_result, handle_signals=False))
        site = Site(await ready, keys, http, served, stack, tasks, task)
        site.proxies = proxies
        _with_fakes(site)
        site.own_log, site.gateway._border.log = site.gateway._border.log, site.log
        await scenario(site)
        if settles:
            await site.settle()
        if not task.done():
            site.running.stop.set()
            await task


@pytest.fixture(params=LOOPS)
def play(request):
    """Return a function that serves a configuration and runs a scenario against it."""

    def play(scenario, *, backends=0, settles=True, proxied=False, safety_s=SAFETY_S, **sections):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(
                _play(
                    scenario,
                    backends=backends,
                    settles=settles,
                    proxied=proxied,
                    safety_s=safety_s,
                    sections=sections,
                )
            )

    return play


@pytest.fixture
def chat_model():
    """Return a function that describes a generation model."""
    return lambda **more: {**CHAT, **more}


@pytest.fixture
def embed_model():
    """Return a function that describes an embeddings model."""
    return lambda **more: {**EMBED, **more}
