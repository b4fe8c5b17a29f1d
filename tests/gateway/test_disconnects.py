# SPDX-License-Identifier: Apache-2.0
"""Clients that leave at random, in every phase: all counters come back to where they were.

A few hundred of them in the usual run, 10,000 with TAKETURNS_PROOF=1. That the
check can fail is tested too: leaks are planted, and it must find each.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import Counter

import pytest

from taketurns.aio import Turn
from taketurns.core.decision import Ended, Outcome
from taketurns.engines.client import HttpClient
from taketurns.gateway.border import Border
from taketurns.gateway.held_bytes import HeldBytes
from taketurns.gateway.watch import Watch
from taketurns.testing.fault_proxy import Harm

LOG = logging.getLogger(__name__)

DISCONNECTS = 10_000 if os.environ.get("TAKETURNS_PROOF") == "1" else 300
AT_ONCE = 48
STAYS = 12
"""One client in so many stays to the end, to see that those who do are served."""

CHAT = "/v1/chat/completions"
BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi " * 50}]}
LAST_CHUNK = b"0\r\n\r\n"

LIMITS = [
    {"tenant": "*", "endpoint": "chat", "unit": "parallel", "max": "1M"},
    {"tenant": "*", "endpoint": "chat", "unit": "tokens", "per": "day", "max": "900M"},
]


def counters(site):
    """What is under way, and what is held for it."""
    pool = site.pool("chat")
    scheduler = pool.turns.scheduler
    clients = [engine._client for engine in pool.engines.values()]
    tokens = parallel = 0
    for tenant in ("acme", "globex", "pico"):
        admission = site.gateway.admission
        tier = site.gateway.config.tenants[tenant].tier
        rules = admission.rules(tenant=tenant, tier=tier, endpoint="chat", model="chat")
        for status in admission.statuses(rules, tenant):
            if status.rule.unit.value == "tokens":
                tokens += status.used
            else:
                parallel += status.used
    ran = [record for record in site.records if record.cost]
    return {
        "requests": len(site.gateway.active),
        "tickets": scheduler.queued + scheduler.running,
        "standing charges": len(scheduler._standing),
        "slots": sum(engine.in_flight for engine in scheduler.snapshot().engines),
        "waiters": len(pool.turns._waiters),
        "watched answers": len(pool._watch),
        "held bytes": site.gateway._held.total,
        "parallel": parallel,
        "tokens not settled": tokens - sum(r.input_tokens + r.output_tokens for r in ran),
        "busy connections": sum(c.connections - c.connections_idle for c in clients),
        "connections unknown to the gateway": sum(p.connections for p in site.proxies)
        - sum(client.connections for client in clients),
        "tasks": len(asyncio.all_tasks()),
    }


async def come_back(site, before, within_s):
    """Wait until all counters are as before; return those that aren't in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await site.until(lambda: counters(site) == before)
    now = counters(site)
    return {name: (before[name], now[name]) for name in before if now[name] != before[name]}


async def pause(seconds):
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, passed.set)
    await passed.wait()


async def leave(site, dice):
    """Send a request and leave in one of its phases, or stay; return where that was."""
    phase = dice.choice(("body", "sent", "soon", "later", "head", "stream"))
    body = BODY | {"stream": phase == "stream" or dice.random() < 0.5}
    tenant = dice.choice(("acme", "globex", "pico"))
    request = site.raw_post(CHAT, body, tenant=tenant, headers=["Connection: close"])
    reader, writer = await asyncio.open_connection("127.0.0.1", site.running.port)
    try:
        if phase == "body":
            writer.write(request[: dice.randrange(1, len(request))])
            await pause(dice.uniform(0, 0.003))
        else:
            writer.write(request)
        if phase == "soon":
            await pause(dice.uniform(0, 0.01))
        elif phase == "later":
            await pause(dice.uniform(0, 0.1))
        elif phase in {"head", "stream"}:
            await reader.readuntil(b"\r\n\r\n")
        if phase == "stream":
            await reader.read(dice.randrange(1, 1500))
    finally:
        writer.transport.abort()
    return phase


async def stay(site):
    request = site.raw_post(CHAT, BODY | {"stream": True}, headers=["Connection: close"])
    wire = await site.wire()
    await wire.send(request)
    status, _ = await wire.head()
    assert status == 200
    assert (await wire.rest()).endswith(LAST_CHUNK)


async def storm(site, count, *, stays=True):
    """Let so many clients leave, several at once; return how many left in which phase."""
    numbers = iter(range(count))
    left = Counter()

    async def one_after_another(seed):
        dice = random.Random(seed)
        for number in numbers:
            if stays and number % STAYS == 0:
                await stay(site)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                left[await leave(site, dice)] += 1

    await asyncio.gather(*[one_after_another(seed) for seed in range(AT_ONCE)])
    return left


def slow_proxies(site):
    """Let answers come in drips, so that there is an amid."""
    dice = random.Random(7)
    for proxy in site.proxies:
        proxy.harm = lambda _: Harm(delay_s=dice.uniform(0.001, 0.004), piece_bytes=60)


def models(chat_model):
    engines = [{"url": f"http://backend-{n}", "name": f"gpu-{n}", "slots": 8} for n in (0, 1)]
    return {"chat": chat_model(engines=engines, cost="ema", quantum=8)}


@pytest.mark.slow
def test_clients_that_leave_in_every_phase_leave_nothing_behind(play, chat_model):
    async def scenario(site):
        slow_proxies(site)
        await stay(site)
        await site.settle()
        # A connection rests for a moment after a stream.
        await site.until(lambda: counters(site)["busy connections"] == 0)
        before = counters(site)
        left = await storm(site, DISCONNECTS)
        assert await come_back(site, before, 30) == {}
        assert sum(left.values()) >= DISCONNECTS * 0.9
        gone = [record for record in site.records if record.outcome == "cancelled"]
        phases = Counter(
            "queued" if not record.engine else "answer" if record.first_byte_s is None else "stream"
            for record in gone
        )
        assert set(phases) == {"queued", "answer", "stream"}
        ids = [request_id for backend in site.backends for request_id in backend.executed]
        assert len(ids) == len(set(ids))
        LOG.info("left: %s; by the gateway's records: %s", dict(left), dict(phases))

    play(
        scenario,
        backends=2,
        proxied=True,
        safety_s=900,
        models=models(chat_model),
        limits=LIMITS,
    )


def plant_slots(monkeypatch):
    end = Turn.leave
    monkeypatch.setattr(
        Turn,
        "leave",
        lambda self, outcome, *, executed=True: (
            Ended(self.ticket, outcome, 0, "")
            if outcome is Outcome.CANCELLED
            else end(self, outcome, executed=executed)
        ),
    )
    return "slots"


def plant_connections(monkeypatch):
    monkeypatch.setattr(HttpClient, "forget", lambda self, connection: None)
    return "busy connections"


def plant_reservations(monkeypatch):
    monkeypatch.setattr(Border, "_settle", lambda self, exchange: None)
    return "parallel"


def plant_watched(monkeypatch):
    monkeypatch.setattr(Watch, "remove", lambda self, answer: None)
    return "watched answers"


def plant_bytes(monkeypatch):
    @contextlib.contextmanager
    def hold(self, size, **more):
        self._total += size
        yield

    monkeypatch.setattr(HeldBytes, "hold", hold)
    return "held bytes"


def plant_tasks(monkeypatch):
    record = Border._record

    def leaks(self, exchange):
        asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="planted")
        record(self, exchange)

    monkeypatch.setattr(Border, "_record", leaks)
    return "tasks"


@pytest.mark.parametrize(
    "plant",
    [
        plant_slots,
        plant_connections,
        plant_reservations,
        plant_watched,
        plant_bytes,
        plant_tasks,
    ],
    ids=lambda plant: plant.__name__.removeprefix("plant_"),
)
def test_the_check_finds_a_leak_that_is_planted(play, chat_model, monkeypatch, plant):
    async def scenario(site):
        slow_proxies(site)
        before = counters(site)
        leaking = plant(monkeypatch)
        # So few that slots remain where slots leak.
        await storm(site, 12, stays=False)
        await site.until(lambda: not site.gateway.active)
        found = await come_back(site, before, 0.5)
        assert leaking in found
        monkeypatch.undo()
        for task in asyncio.all_tasks():
            if task.get_name() == "planted":
                task.cancel()

    play(
        scenario,
        backends=2,
        proxied=True,
        settles=False,
        models=models(chat_model),
        limits=LIMITS,
    )
