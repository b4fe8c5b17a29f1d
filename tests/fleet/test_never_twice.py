# SPDX-License-Identifier: Apache-2.0
"""Gateways, Redis and engines are killed every two seconds: nothing runs twice, nobody is lied to.

All are processes of their own on real sockets. What ran is what the engines have
written down, each before it answered. 600 requests at least;
10,000 with TAKETURNS_PROOF=1, which records its figures in benchmarks/results/never_twice.json.
"""

import asyncio
import json
import os
import random
from collections import Counter
from itertools import count, cycle
from pathlib import Path

import aiohttp
import msgspec
import pytest
import redis as redis_client
from fleet.conftest import run, until

from taketurns.figures import Figure, report, rounded
from taketurns.gateway.auth import mint
from taketurns.testing.fleet_site import FleetSite
from taketurns.testing.redis_server import RedisServer

PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
REQUESTS = 10_000 if PROOF else 600
EVERY_S = 2.0
CLIENTS = 24
RECORD = Path(__file__).parents[2] / "benchmarks/results/never_twice.json"
BROKEN = "broken"
"""The connection broke: its gateway was killed, or its engine in the midst of a stream."""


class Clients:
    """Ask all gateways without end, and keep what each request was answered."""

    def __init__(self, site, key, http):
        self.site, self.key, self.http = site, key, http
        self.answers = {}
        self.stop = asyncio.Event()
        self._numbers = count()

    async def one(self, seed):
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        while not self.stop.is_set():
            line = f"request-{next(self._numbers)}"
            port = self.site.ports[rng.choice(self.site.gateways)]
            try:
                self.answers[line] = await self._ask(port, line, stream=rng.random() < 0.5)
            except aiohttp.ClientConnectorError:
                # It's being started: nothing was sent.
                soon = asyncio.Event()
                loop.call_later(0.05, soon.set)
                await soon.wait()
            except (aiohttp.ClientError, ConnectionError):
                self.answers[line] = BROKEN, ""

    async def _ask(self, port, line, *, stream):
        """Return the status, and what is said of its execution."""
        body = {"model": "chat", "stream": stream, "messages": [{"role": "user", "content": line}]}
        headers = {"Authorization": f"Bearer {self.key}"}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        async with self.http.post(url, json=body, headers=headers) as answer:
            status, text = answer.status, await answer.text()
            said = answer.headers.get("x-request-executed", "")
        if status != 200:
            assert json.loads(text)["error"]["code"]
        elif stream:
            # All of it came, or it says itself that it breaks off.
            assert text.endswith("data: [DONE]\n\n") or '"error"' in text
        else:
            assert json.loads(text)["choices"]
        return status, said


def judge(site, answers, blows):
    """Compare what the engines began with what the clients were told; return figures of it."""
    ran = Counter(site.ran())
    wrong = []
    for line, (status, said) in answers.items():
        if status == 200:
            honest = ran[line] == 1
        elif status == BROKEN:
            honest = True
        else:
            honest = said == "unknown" or (said == "no" and ran[line] == 0)
        if not honest:
            wrong.append((line, status, said, ran[line]))
    most = max(ran.values())
    told = Counter(answers.values())
    good = 100 * told[200, ""] / len(answers)
    note = ", ".join(f"{status} {said}".strip() + f": {n}" for (status, said), n in told.items())
    assert (most, wrong) == (1, [])
    assert good > 90, told
    return [
        one("requests", len(answers), note=f"one kill each {EVERY_S:g} s; {note}"),
        *(one(f"{kind}_kills", blows[kind]) for kind in sorted(blows)),
        one("most_executions_of_one_request", most, must_be=1),
        one("answers_untrue_of_execution", len(wrong), must_be=0),
        one("requests_answered_whole", rounded(good), "%"),
    ]


def one(name, value, unit="", *, must_be=None, note=""):
    """Return a figure of one run."""
    target, reached = ("", None) if must_be is None else (f"= {must_be}", value == must_be)
    return Figure(name, value, unit, target, reached, spread=(value, value), note=note)


def version_of(server):
    """Return the version of a Redis."""
    with redis_client.Redis(port=server.port) as client:
        return client.info("server")["redis_version"]


def pools(server):
    """Return members, waiting and running of each pool in Redis."""
    client = redis_client.Redis(port=server.port)
    try:
        rows = [client.get(key) for key in client.keys("tt:*:state")]
    finally:
        client.close()
    states = [msgspec.msgpack.decode(row) for row in rows if row is not None]
    return [(len(s["members"]), s["waiting"], s["running"]) for s in states]


@pytest.mark.slow
def test_nothing_runs_twice_and_every_answer_is_honest_whatever_is_killed(tmp_path):
    rng = random.Random(5)
    blows = Counter()

    def kill(site, server, kind):
        blows[kind] += 1
        if kind == "redis":
            server.kill()
            server.start()
        else:
            name = rng.choice(site.gateways if kind == "gateway" else site.engines)
            site.kill(name)
            site.start(name)

    async def scenario(site, server, key):
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            asyncio.TaskGroup() as tasks,
        ):
            clients = Clients(site, key, http)
            for seed in range(CLIENTS):
                tasks.create_task(clients.one(seed))
            # All serve before the first blow.
            await until(lambda: any(pool[0] == len(site.gateways) for pool in pools(server)))
            for kind in cycle(("gateway", "redis", "engine")):
                pause = asyncio.Event()
                loop.call_later(EVERY_S, pause.set)
                await pause.wait()
                if len(clients.answers) >= REQUESTS and len(blows) == 3:
                    break
                kill(site, server, kind)
            clients.stop.set()
        # All are members again, and nothing is left of those that died.
        await until(lambda: pools(server) == [(len(site.gateways), 0, 0)])
        for name in site.gateways:
            assert site.stop(name) == 0
        figures = judge(site, clients.answers, blows)
        if PROOF:
            peers = {"redis": version_of(server)}
            RECORD.write_text(json.dumps(report(figures, 5, peers), indent=2) + "\n")

    minted = mint()
    tenants = {"acme": {"tier": "production", "keys": [minted.line]}}
    with RedisServer() as server, FleetSite(tmp_path, server.url, tenants) as site:
        run(scenario(site, server, minted.key))
