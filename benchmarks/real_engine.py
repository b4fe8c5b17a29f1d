# SPDX-License-Identifier: Apache-2.0
"""What the cost models share out on a real engine, and what a quiet tenant feels beside a flooder.

The engine is llama.cpp's own server with four slots, on a tiny model that the
tests write. Service is input tokens + 2 x output tokens, counted by the
clients as the tokens arrive. ``--engine`` takes another one that runs
already, such as vLLM (tests/real/vllm_cpu.py).

    python benchmarks/real_engine.py [--json] [--seconds S] [--record PATH]
    python benchmarks/real_engine.py --engine http://127.0.0.1:8110 --model tiny
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from harness import deliver, measured, options_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real.engines import gateway, llamacpp, tiny_model

from taketurns.core.cost import TOKENS_PER_ROUND, EmaCost
from taketurns.figures import Figure

SLOTS = 4
STREAMS = 12
"""Requests that a tenant who always has more keeps under way."""

LONG_TOKENS, SHORT_TOKENS = 384, 24
SHARE_MARGIN = 3.0
BOUND_PERCENT = 1.0
QUIET_PAUSE_S = 0.05
WARM_UP_S = 5.0
PROMPT_TOKENS = 33
"""Of the prompt below, chat template included, by the engine's count."""

PROMPT = [{"role": "user", "content": "Tell me a story."}]
COST = EmaCost()


@dataclass(frozen=True)
class Engine:
    """Where an engine is, and its name of the model."""

    url: str
    model: str = "tiny"


@dataclass
class Tenant:
    """A tenant's clients: what they send, and what they have got."""

    key: str
    tokens: int
    served: int = 0
    first_token_s: list[float] = field(default_factory=list)
    requests: int = 0


async def ask(session: aiohttp.ClientSession, at: Engine, tenant: Tenant) -> None:
    """Send one request and count its tokens as they come."""
    body = {
        "model": at.model,
        "messages": PROMPT,
        "max_tokens": tenant.tokens,
        "ignore_eos": True,
        "stream": True,
        # A prompt that is read anew each time costs the same each time.
        "cache_prompt": False,
    }
    headers = {"Authorization": f"Bearer {tenant.key}"}
    begun = time.perf_counter()
    first = True
    address = f"{at.url}/v1/chat/completions"
    async with session.post(address, json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if b'"content":"' not in line:
                continue
            if first:
                first = False
                tenant.first_token_s.append(time.perf_counter() - begun)
                tenant.served += PROMPT_TOKENS
            tenant.served += 2
    tenant.requests += 1


async def flood(session: aiohttp.ClientSession, at: Engine, tenant: Tenant) -> None:
    """Keep a tenant backlogged until cancelled."""

    async def client() -> None:
        while True:
            await ask(session, at, tenant)

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(client())


async def trickle(session: aiohttp.ClientSession, at: Engine, tenant: Tenant) -> None:
    """Send one request after the other, with a pause between them, until cancelled."""
    while True:
        await ask(session, at, tenant)
        await asyncio.sleep(QUIET_PAUSE_S)


async def run_for(at: Engine, seconds: float, floods: list[Tenant], quiet: list[Tenant]) -> None:
    """Let tenants send for so long after a warm-up; their counts are of the time after it."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(WARM_UP_S + seconds),
            aiohttp.ClientSession(connector=connector) as session,
            asyncio.TaskGroup() as group,
        ):
            for tenant in floods:
                group.create_task(flood(session, at, tenant))
            for tenant in quiet:
                group.create_task(trickle(session, at, tenant))
            await asyncio.sleep(WARM_UP_S)
            for tenant in [*floods, *quiet]:
                tenant.served = tenant.requests = 0
                tenant.first_token_s.clear()


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that so large a share of them doesn't exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def model(engine: Engine, **settings: object) -> dict[str, object]:
    """Return the configuration of the model."""
    engines = [{"url": engine.url, "slots": SLOTS}]
    return {engine.model: {"endpoints": ["chat"], "engines": engines, **settings}}


def shares(folder: Path, engine: Engine, cost: str, seconds: float) -> list[Figure]:
    """Measure the service that tenants with long and short answers get side by side."""
    with gateway(folder, model(engine, cost=cost), {"long": {}, "short": {}}) as (process, keys):
        long = Tenant(keys["long"], LONG_TOKENS)
        short = Tenant(keys["short"], SHORT_TOKENS)
        asyncio.run(run_for(Engine(process.url, engine.model), seconds, [long, short], []))
    percent = 100 * long.served / (long.served + short.served)
    figures = [
        measured(
            f"share of service, long answers, {cost}",
            [percent],
            "%",
            f"50 +- {SHARE_MARGIN:g}" if cost == "ema" else "",
            reached=abs(percent - 50) <= SHARE_MARGIN if cost == "ema" else None,
            note=f"{long.requests} long and {short.requests} short answers",
        )
    ]
    if cost == "ema":
        largest = [COST.used(PROMPT_TOKENS, tokens) or 0 for tokens in (LONG_TOKENS, SHORT_TOKENS)]
        bound = 100 * (2 * TOKENS_PER_ROUND + sum(largest)) / min(long.served, short.served)
        figures.append(
            measured(
                "pairwise bound, of one tenant's service",
                [bound],
                "%",
                f"< {BOUND_PERCENT:g}",
                reached=bound < BOUND_PERCENT,
            )
        )
    return figures


def isolation(folder: Path, engine: Engine, headroom: int | None, seconds: float) -> list[Figure]:
    """Measure a quiet tenant's time to first token beside a flooder; None: alone."""
    settings = {"cost": "ema", **({"headroom": f"{headroom}%"} if headroom else {})}
    with gateway(folder, model(engine, **settings), {"quiet": {}, "flood": {}}) as (process, keys):
        quiet = Tenant(keys["quiet"], SHORT_TOKENS)
        flooder = Tenant(keys["flood"], LONG_TOKENS)
        floods = [] if headroom is None else [flooder]
        asyncio.run(run_for(Engine(process.url, engine.model), seconds, floods, [quiet]))
    return figures_of(
        quiet, flooder, seconds, "alone" if headroom is None else f"{headroom}% headroom"
    )


def unscheduled(engine: Engine, seconds: float) -> list[Figure]:
    """Measure the same with both sent to the engine itself, first come, first served."""
    quiet, flooder = Tenant("", SHORT_TOKENS), Tenant("", LONG_TOKENS)
    asyncio.run(run_for(engine, seconds, [flooder], [quiet]))
    return figures_of(quiet, flooder, seconds, "no gateway")


def figures_of(quiet: Tenant, flooder: Tenant, seconds: float, how: str) -> list[Figure]:
    waits = [1000 * value for value in quiet.first_token_s]
    return [
        measured(f"quiet tenant's first token, p50, {how}", [percentile(waits, 0.5)], "ms"),
        measured(
            f"quiet tenant's first token, p99, {how}",
            [percentile(waits, 0.99)],
            "ms",
            note=f"{len(waits)} requests",
        ),
        measured(f"service of both, {how}", [(flooder.served + quiet.served) / seconds], "/s"),
    ]


def main() -> None:
    parser = options_for(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=180.0, help="of the longest measurement")
    parser.add_argument("--engine", help="URL of an engine that runs already, with four seats")
    parser.add_argument("--model", default="tiny", help="that engine's name of its model")
    options = parser.parse_args()
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        url = options.engine
        if url is None:
            url = stack.enter_context(llamacpp(tiny_model(folder), "tiny", slots=SLOTS))
        engine = Engine(url, options.model)
        figures += shares(folder, engine, "ema", options.seconds)
        figures += shares(folder, engine, "requests", options.seconds / 3)
        figures += unscheduled(engine, options.seconds / 6)
        for headroom in (None, 0, 25, 50):
            figures += isolation(folder, engine, headroom, options.seconds / 6)
    deliver(figures, options)


if __name__ == "__main__":
    main()
