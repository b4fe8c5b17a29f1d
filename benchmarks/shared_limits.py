# SPDX-License-Identifier: Apache-2.0
"""Four gateway processes and one limit: is exactly that granted, clocks apart, store killed?

Each process keeps 500 requests under way for one tenant, all against one limit
of a real Redis. Their wall clocks are up to 10 s apart (faketime). In the second
run the server is killed in mid-run, and started again empty. One limit spans
the whole run, so that whatever is granted counts.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

from harness import deliver, measured, options_for

from taketurns.core.limits import Amounts, Denied, LimitRule, Span, Unit
from taketurns.figures import Figure
from taketurns.fleet.address import parse_address
from taketurns.fleet.link import Link
from taketurns.fleet.shared_limits import SharedLimits
from taketurns.system import SystemClock, new_id
from taketurns.testing.redis_server import RedisServer

GATEWAYS = 4
CONCURRENT = 500
CLOCKS = ("-5s", "-1s", "+1s", "+5s")
LIMIT = 20_000
RULE = LimitRule("hourly", Unit.REQUESTS, Span.SLIDING, LIMIT, 3_600_000_000)
ONE = Amounts()


async def gateway(url: str, attempts: int) -> None:
    """Be one gateway: ask for all, tell what was granted and when."""
    loop = asyncio.get_running_loop()
    clock = SystemClock(loop)
    granted: list[tuple[int, int]] = []
    refused = 0
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(url), clock, call_s_max=10.0)
        link.serve(tasks)
        limits = SharedLimits(link, clock)
        await limits.start(tasks)
        print(json.dumps({"clock": time.time()}), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        for _ in range(100):
            if limits.state()["members"] == GATEWAYS:
                break
            await asyncio.sleep(0.1)
        print(json.dumps(limits.state()), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)

        async def client() -> None:
            nonlocal refused
            for _ in range(attempts):
                asked_us = clock.now_us()
                taken = await limits.admit((RULE,), "acme", ONE, new_id("req_"))
                if isinstance(taken, Denied):
                    refused += 1
                else:
                    granted.append((asked_us, clock.now_us()))

        async with asyncio.TaskGroup() as clients:
            for _ in range(CONCURRENT):
                clients.create_task(client())
        print(json.dumps({"granted": granted, "refused": refused}), flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        await limits.aclose()
        await link.aclose()


def play(*, kill: bool, attempts: int) -> tuple[int, int, float, list[float]]:
    """Run all gateways; return what was granted, what was in flight at the kill, and more."""
    with RedisServer() as server:
        command = [sys.executable, __file__, "--child", server.url, str(attempts)]
        fake = shutil.which("faketime")
        children = [
            subprocess.Popen(
                [*([fake, "-f", offset] if fake else []), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "FAKETIME_DONT_FAKE_MONOTONIC": "1"},
            )
            for offset in CLOCKS
        ]
        clocks = [json.loads(_line(child))["clock"] for child in children]
        for child in children:
            _tell(child)
        # They know each other, and begin together.
        assert all(json.loads(_line(child))["members"] == GATEWAYS for child in children)
        for child in children:
            _tell(child)
        before_us = after_us = 0
        if kill:
            # Some thousands are granted by then.
            time.sleep(1.5)
            before_us = time.monotonic_ns() // 1000
            server.kill()
            after_us = time.monotonic_ns() // 1000
            time.sleep(0.5)
            server.start()
        told = [json.loads(_line(child)) for child in children]
        for child in children:
            _tell(child)
            child.wait(60)
    times = [pair for item in told for pair in item["granted"]]
    in_flight = sum(asked <= after_us and answered >= before_us for asked, answered in times)
    spread_s = max(clocks) - min(clocks)
    return len(times), in_flight, spread_s, [(told - asked) / 1000 for asked, told in times]


def _line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def _tell(child: "subprocess.Popen[str]") -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def measure(rounds: int) -> Sequence[Figure]:
    """Play both runs so many times."""
    attempts = 3 * LIMIT // (GATEWAYS * CONCURRENT)
    exact = [play(kill=False, attempts=attempts) for _ in range(rounds)]
    killed = [play(kill=True, attempts=attempts) for _ in range(rounds)]
    over = [max(0, granted - LIMIT) for granted, _, _, _ in killed]
    excess = [max(0, granted - LIMIT - in_flight) for granted, in_flight, _, _ in killed]
    asked = f"{GATEWAYS} gateways x {CONCURRENT} at once, {attempts} times, limit {LIMIT:,}"
    apart = min(spread for _, _, spread, _ in exact)
    return [
        measured(
            "granted_less_limit",
            [granted - LIMIT for granted, _, _, _ in exact],
            "",
            "= 0",
            reached=all(granted == LIMIT for granted, _, _, _ in exact),
            note=f"{asked}, clocks {apart:.0f} s apart",
        ),
        measured(
            "granted_beyond_limit_after_kill", over, "", note=f"{asked}, server killed and emptied"
        ),
        measured(
            "of_these_not_in_flight_at_kill",
            excess,
            "",
            "= 0",
            reached=not any(excess),
            note="in flight: asked before the kill and answered after it",
        ),
        measured(
            "granted_after_kill_of_limit",
            [granted / LIMIT for granted, _, _, _ in killed],
            "",
            "",
            note="each gateway's part of what was left when the server died",
        ),
    ]


def main() -> None:
    """Measure, print, and record where asked."""
    if sys.argv[1:2] == ["--child"]:
        asyncio.run(gateway(sys.argv[2], int(sys.argv[3])))
        return
    parser: argparse.ArgumentParser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each run is made")
    options = parser.parse_args()
    deliver(measure(options.rounds), options)


if __name__ == "__main__":
    main()
