# SPDX-License-Identifier: Apache-2.0
"""Gateways and Redis are killed, stopped and wiped: nothing runs twice, all comes back."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import redis as redis_client
from fleet.conftest import run, until
from fleet.worker import SLOTS

from taketurns.testing.redis_server import RedisServer

PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
BLOWS = 40 if PROOF else 10
"""Faults in a run."""

BETWEEN = 250
"""Requests that run between two of them: so it's known that serving goes on."""

WORKERS = 3
HERE = Path(__file__).parent


class Site:
    """Workers, a Redis, and the file in which all write what ran."""

    def __init__(self, folder, server):
        self.server = server
        self.file = folder / "ran"
        self.file.touch()
        self.workers = []
        self.started = 0

    def start(self):
        self.started += 1
        name = f"w{self.started}"
        self.workers.append(
            subprocess.Popen(
                [sys.executable, HERE / "worker.py", self.server.url, name, self.file],
                stderr=subprocess.DEVNULL,
            )
        )

    def lines(self):
        return self.file.read_text().split()

    async def more(self, count):
        """Wait until so many more have run."""
        # No line is longer than this, in a run of a hundred thousand requests a worker.
        size = self.file.stat().st_size + len("w99-99999\n") * count
        await until(lambda: self.file.stat().st_size >= size)

    def state(self):
        """The pool as Redis has it, or None."""
        client = redis_client.Redis(port=self.server.port)
        try:
            row = client.get("tt:{pool}:state")
        finally:
            client.close()
        return None if row is None else msgspec.msgpack.decode(row)

    def close(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()


def kill_a_gateway(site, rng):
    victim = site.workers.pop(rng.randrange(len(site.workers)))
    victim.kill()
    victim.wait()
    site.start()


def kill_redis(site, rng):
    site.server.kill()
    site.server.start()


def wipe(site, rng):
    site.server.ask("FLUSHALL")


def flush_scripts(site, rng):
    site.server.ask("SCRIPT", "FLUSH")


def delete_a_key(site, rng):
    parts = ["state", "queue", "tickets", "ring", "flows", "free", "engines", "own", "deadlines"]
    site.server.ask("DEL", "tt:{pool}:" + rng.choice(parts))


def damage_a_row(site, rng):
    site.server.ask("HSET", "tt:{pool}:flows", "0|a", "nonsense")


def fill_up(site, rng):
    site.server.ask("CONFIG", "SET", "maxmemory", "1")


def read_only(site, rng):
    site.server.ask("REPLICAOF", "127.0.0.1", "1")


def stop_redis(site, rng):
    site.server.pause()


def stop_a_gateway(site, rng):
    rng.choice(site.workers).send_signal(signal.SIGSTOP)


MENDED = {
    fill_up: lambda site: site.server.ask("CONFIG", "SET", "maxmemory", "0"),
    read_only: lambda site: site.server.ask("REPLICAOF", "NO", "ONE"),
    stop_redis: lambda site: site.server.resume(),
    stop_a_gateway: lambda site: [w.send_signal(signal.SIGCONT) for w in site.workers],
}
FAULTS = [
    kill_a_gateway,
    kill_redis,
    wipe,
    flush_scripts,
    delete_a_key,
    damage_a_row,
    *MENDED,
]


@pytest.mark.slow
def test_whatever_fails_nothing_runs_twice_and_all_comes_back(tmp_path):
    rng = random.Random(3)

    async def scenario(site):
        for _ in range(WORKERS):
            site.start()
        await site.more(BETWEEN)
        faults = (
            (FAULTS * (BLOWS // len(FAULTS) + 1))[:BLOWS] if PROOF else rng.sample(FAULTS, BLOWS)
        )
        for fault in faults:
            fault(site, rng)
            # Serving goes on in the midst of it.
            await site.more(BETWEEN)
            if fault in MENDED:
                MENDED[fault](site)
                await site.more(BETWEEN)
        ran = site.lines()
        assert len(ran) >= BETWEEN * len(faults)
        assert max(Counter(ran).values()) == 1
        # All are members again, and those that died are not.
        await until(lambda: (s := site.state()) is not None and len(s["members"]) == WORKERS)
        for worker in site.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in site.workers:
            assert worker.wait(30) == 0
        state = site.state()
        assert (state["waiting"], state["running"]) == (0, 0)
        assert [tier["held"] for tier in state["tiers"]] == [0]
        assert max(Counter(site.lines()).values()) == 1

    with RedisServer() as server:
        site = Site(tmp_path, server)
        try:
            run(scenario(site))
        finally:
            site.close()


def test_slots_of_a_gateway_that_was_killed_come_back(tmp_path, own_redis):
    async def scenario(site):
        for _ in range(2):
            site.start()
        await site.more(BETWEEN)
        await until(lambda: len(site.state()["members"]) == 2)
        victim = site.workers.pop()
        victim.kill()
        victim.wait()
        await until(lambda: len(site.state()["members"]) == 1)
        # What is left runs in all slots.
        await until(lambda: site.state()["tiers"][0]["held"] == SLOTS)
        await site.more(BETWEEN)

    site = Site(tmp_path, own_redis)
    try:
        run(scenario(site))
    finally:
        site.close()
