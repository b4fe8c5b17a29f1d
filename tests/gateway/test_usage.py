# SPDX-License-Identifier: Apache-2.0
"""What tenants use is added up: exact after a clean stop, and in one batch after an outage."""

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from taketurns.errors import StoreUnavailableError
from taketurns.gateway import usage
from taketurns.gateway.usage import FLUSH_US, UsageLedger
from taketurns.ports.clock import VirtualClock
from taketurns.ports.stores import Usage, UsageKey
from taketurns.stores import choose
from taketurns.stores.memory import MemoryUsageStore
from taketurns.telemetry.records import RequestRecord

ROUNDS = 100 if os.environ.get("TAKETURNS_PROOF") else 5
DAY = "2026-11-30"
KEY = UsageKey(DAY, "acme", "chat", "chat")
RAN = {"wait_s": 0.1, "outcome": "completed", "input_tokens": 3, "output_tokens": 4, "cost": 1000}
USED = Usage(1, 0, 3, 4, 1000)


def record(**fields):
    given = {"tenant": "acme", "model": "chat", "endpoint": "chat"} | fields
    return RequestRecord(time="", request_id="req_1", **given)


class Faulty(MemoryUsageStore):
    """Writes, or breaks off after it has written, as it's told to."""

    def __init__(self):
        super().__init__()
        self.down = False
        self.lost = False
        self.calls = 0

    def add(self, writer, number, used):
        self.calls += 1
        if self.down:
            raise StoreUnavailableError("it is down")
        super().add(writer, number, used)
        if self.lost:
            raise StoreUnavailableError("the answer was lost")


class Site:
    def __init__(self, store=None, days=3):
        self.store = store or Faulty()
        self.clock = VirtualClock()
        self.day = DAY
        self.ledger = UsageLedger(self.store, lambda: self.day, self.clock, days=days)

    async def flush(self):
        self.clock.run_until(self.clock.now_us() + FLUSH_US)
        while self.ledger._writing is not None:
            await asyncio.wait({self.ledger._writing})
            soon = asyncio.Event()
            asyncio.get_running_loop().call_soon(soon.set)
            await soon.wait()

    @property
    def kept(self):
        return self.store.read("", "9")


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, 60))


def test_requests_are_counted_by_what_became_of_them():
    async def scenario():
        site = Site()
        for fields in (
            RAN,
            RAN | {"outcome": "failed"},
            {"outcome": "refused"},
            {"outcome": "expired"},
            {"outcome": "cancelled"},
            {"outcome": "invalid"},
            RAN | {"tenant": ""},
            RAN | {"model": ""},
        ):
            site.ledger.count(record(**fields))
        site.ledger.count(record(**RAN | {"tenant": "globex", "endpoint": "completions"}))
        assert site.kept == {}
        await site.flush()
        other = UsageKey(DAY, "globex", "chat", "completions")
        assert site.kept == {KEY: USED.plus(USED)._replace(refusals=3), other: USED}
        site.day = "2026-12-01"
        site.ledger.count(record(**RAN))
        await site.ledger.aclose()
        assert site.kept[KEY._replace(day="2026-12-01")] == USED

    run(scenario())


def test_an_outage_loses_nothing_and_counts_nothing_twice(caplog):
    async def scenario():
        site = Site()
        site.store.down = True
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                site.ledger.count(record(**RAN))
                await site.flush()
            assert site.ledger.failing
            site.store.down = False
            site.store.lost = True
            await site.flush()
            assert site.kept == {KEY: USED}
            site.store.lost = False
            await site.flush()
            await site.flush()
        assert site.kept == {KEY: Usage(*(3 * number for number in USED))}
        assert not site.ledger.failing
        assert [line.levelname for line in caplog.records] == ["ERROR", "WARNING"]
        calls = site.store.calls
        await site.flush()
        await site.flush()
        assert site.store.calls == calls, "it writes though nothing was used"
        await site.ledger.aclose()

    run(scenario())


def test_what_is_older_than_it_should_be_goes():
    async def scenario():
        site = Site()
        site.store.add("x", 1, {KEY._replace(day="2026-11-27"): USED})
        site.store.add("x", 2, {KEY._replace(day="2026-11-28"): USED})
        site.ledger.count(record(**RAN))
        await site.flush()
        assert {key.day for key in site.kept} == {"2026-11-28", DAY}
        await site.ledger.aclose()

    run(scenario())


def test_rows_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(usage, "ROWS_MAX", 2)

    async def scenario():
        site = Site()
        for tenant in ("a", "b", "c", "a"):
            site.ledger.count(record(**RAN | {"tenant": tenant}))
        await site.ledger.aclose()
        assert {key.tenant: used.requests for key, used in site.kept.items()} == {"a": 2, "b": 1}

    run(scenario())


def test_a_gateway_keeps_what_its_tenants_use(play, tmp_path):
    store = f"sqlite://{tmp_path}/taketurns.db"

    async def scenario(site):
        for _ in range(3):
            assert (await site.chat()).status == 200
        assert (await site.embed(["a", "b"], tenant="globex")).status == 200
        assert (await site.chat(model="nothing")).status == 404

    play(scenario, store=store)
    with closing(choose.usage_store(store)) as kept:
        found = {(k.tenant, k.model): u for k, u in kept.read("", "9").items()}
    assert found[("acme", "chat")].requests == 3
    assert found[("acme", "chat")].output_tokens > 0
    assert found[("acme", "chat")].cost == 3000
    assert found[("globex", "embed")].requests == 1
    assert set(found) == {("acme", "chat"), ("globex", "embed")}


CHILD = """
import asyncio, sys
from taketurns.gateway.usage import UsageLedger
from taketurns.stores import choose
from taketurns.system import SystemClock
from taketurns.telemetry.records import RequestRecord
import taketurns.gateway.usage as usage

usage.FLUSH_US = 2_000


async def main():
    clock = SystemClock(asyncio.get_running_loop())
    ledger = UsageLedger(choose.usage_store(sys.argv[1]), lambda: "2026-11-30", clock, days=9)
    while True:
        ledger.count(RequestRecord("", "", tenant="acme", model="m", endpoint="chat",
                                   outcome="completed", wait_s=0.0))
        print("counted", flush=True)
        await asyncio.sleep(0)


asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kill_9_in_the_write_loop_never_counts_too_much(request, tmp_path, kind):
    store = f"sqlite://{tmp_path}/taketurns.db"
    if kind == "postgresql":
        store = request.getfixturevalue("postgres")
    rng = random.Random(11)
    counted = 0
    for _ in range(ROUNDS):
        process = subprocess.Popen([sys.executable, "-c", CHILD, store], stdout=subprocess.PIPE)
        try:
            for _ in range(5000 + rng.randrange(20_000)):
                process.stdout.readline()
                counted += 1
            process.send_signal(signal.SIGKILL)
            counted += process.stdout.read().count(b"counted\n")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    with closing(choose.usage_store(store)) as kept:
        used = sum(row.requests for row in kept.read("", "9").values())
    # One that was counted may not have been printed.
    assert 0 < used <= counted + ROUNDS
