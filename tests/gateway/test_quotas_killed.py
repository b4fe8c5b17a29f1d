# SPDX-License-Identifier: Apache-2.0
"""A process killed in its write loop has never granted more than the next one counts."""

import os
import random
import signal
import subprocess
import sys

import pytest

ROUNDS = 100 if os.environ.get("TAKETURNS_PROOF") else 10
BLOCK = 5
SAFETY_S = 60

CHILD = """
import asyncio, sys
from datetime import UTC, datetime
from taketurns.core.limits import Amounts, Ledger, LimitRule, Span, Unit
from taketurns.gateway.quotas import Covered, Quotas
from taketurns.stores.choose import quota_store
from taketurns.system import SystemClock

RULES = (LimitRule("trial", Unit.REQUESTS, Span.MONTH, 10**9),)
store, clients, block = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


async def client(quotas, ledger):
    while True:
        admitted = ledger.admit(RULES, "acme", Amounts(), now_us=0, month=quotas.month())
        if not quotas.covers("acme", admitted):
            assert await quotas.cover("acme", admitted) is Covered.YES
        print("granted", flush=True)
        await asyncio.sleep(0)


async def main():
    ledger = Ledger()
    clock = SystemClock(asyncio.get_running_loop())
    quotas = Quotas(
        quota_store(store), ledger, RULES, lambda: "2026-11", clock, block=lambda _: block
    )
    await quotas.start()
    print(ledger.months().get(("trial", "acme"), ("", 0))[1], flush=True)
    if clients:
        await asyncio.gather(*(client(quotas, ledger) for _ in range(clients)))
    await quotas.aclose()


asyncio.run(main())
"""


def run_until_killed(store, clients, lines):
    """Start a process, kill it after so many lines; return where it began and what it granted."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, store, str(clients), str(BLOCK)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        began = int(process.stdout.readline())
        granted = 0
        for _ in range(lines):
            assert process.stdout.readline() == "granted\n"
            granted += 1
        process.send_signal(signal.SIGKILL)
        # What it wrote before it died is still in the pipe.
        granted += process.stdout.read().count("granted\n")
        assert process.wait(SAFETY_S) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return began, granted


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    """A store to count in, as the configuration names it."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/taketurns.db"
    return request.getfixturevalue("postgres")


@pytest.mark.slow
def test_kill_9_in_the_write_loop_never_counts_too_little_and_at_most_a_block_too_much(store):
    rng = random.Random(20261101)
    least = most = 0
    for number in range(ROUNDS):
        clients = rng.choice([1, 1, 8])
        began, granted = run_until_killed(store, clients, rng.randrange(200))
        assert least <= began <= most, f"round {number}"
        # Each client may have been charged for one that it wasn't told of.
        least, most = began + granted, began + granted + clients + BLOCK
    done = subprocess.run(
        [sys.executable, "-c", CHILD, store, "0", "1"],
        stdout=subprocess.PIPE,
        check=True,
        timeout=SAFETY_S,
    )
    assert least <= int(done.stdout) <= most
