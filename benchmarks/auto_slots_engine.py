# SPDX-License-Identifier: Apache-2.0
"""Measures what slots are found on a real engine, beside a sweep of fixed slots. Run by hand.

The engine is llama.cpp's own server on one thread, on a tiny model that the
tests write, or on SmolLM2; ``--engine`` takes another one that runs already,
such as vLLM (tests/real/vllm_cpu.py). Clients never stop asking.

    python benchmarks/auto_slots_engine.py [--json] [--seconds S] [--record PATH] [--smollm2]
    python benchmarks/auto_slots_engine.py --engine http://127.0.0.1:8110 --model tiny --kind vllm
"""

import asyncio
import contextlib
import json
import sys
import tempfile
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
from harness import deliver, measured, options_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real.engines import ADMIN_TOKEN, gateway, llamacpp, tiny_model

from taketurns.engines import weights
from taketurns.figures import Figure

PARALLEL = 8
"""Requests that the engine itself runs at once; more wait inside it."""

FIXED = (1, 2, 3, 4, 6, 8, 12, 16)
CLIENTS = 24
TOKENS = 96
FOUND_S = 30
WARM_UP_S = 3
KNEE = 0.95
PROMPT = [{"role": "user", "content": "Tell me a story."}]


@dataclass(frozen=True)
class Engine:
    """Where an engine is, its name of the model, and its kind."""

    url: str
    model: str
    kind: str


@dataclass
class Seen:
    """Tokens so far, the slots of each second, and the codes of requests that failed."""

    tokens: int = 0
    slots: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


async def ask_on(
    session: aiohttp.ClientSession, url: str, model: str, key: str, seen: Seen
) -> None:
    """Send one request after the other until cancelled, and count tokens as they come."""
    body = {
        "model": model,
        "messages": PROMPT,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {key}"}
    while True:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            if answer.status >= 500:
                seen.failed.append((await answer.json())["error"]["code"])
                continue
            answer.raise_for_status()
            async for line in answer.content:
                seen.tokens += b'"content":"' in line


async def watch(url: str, model: str, seen: Seen) -> None:
    """Note an engine's slots, once a second."""
    request = urllib.request.Request(
        f"{url}/pools", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
    )
    while True:
        await asyncio.sleep(1)
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
        (engine,) = json.loads(text)[model]["engines"]
        seen.slots.append(engine["slots"])


async def load(
    url: str, admin: str, model: str, key: str, *, warm_s: float, seconds: float
) -> tuple[float, list[int]]:
    """Return tokens per second after a warm-up, and the slots of all seconds."""
    seen = Seen()
    begun = 0.0
    loop = asyncio.get_running_loop()
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(warm_s + seconds),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(ask_on(session, url, model, key, seen))
            group.create_task(watch(admin, model, seen))
            await asyncio.sleep(warm_s)
            seen.tokens, begun = 0, loop.time()
    if seen.failed:
        print(f"{len(seen.failed)} requests failed: {Counter(seen.failed)}", file=sys.stderr)
    return seen.tokens / (loop.time() - begun), seen.slots


def run(
    folder: Path, engine: Engine, slots: int | str, *, warm_s: float, seconds: float
) -> tuple[float, list[int]]:
    """Serve an engine with so many slots under load."""
    part = {"url": engine.url, "kind": engine.kind, "slots": slots, "name": "engine"}
    models = {engine.model: {"endpoints": ["chat"], "engines": [part]}}
    with gateway(folder, models, {"acme": {}}) as (process, keys):
        return asyncio.run(
            load(
                process.url,
                process.admin_url,
                engine.model,
                keys["acme"],
                warm_s=warm_s,
                seconds=seconds,
            )
        )


def measure(folder: Path, engine: Engine, seconds: float, rounds: int) -> list[Figure]:
    """Return the figures of the sweep, and of what is found."""
    swept: dict[int, list[float]] = {slots: [] for slots in FIXED}
    for _ in range(rounds):
        # In turn, so that a slow minute of the machine falls on all alike.
        for slots, past in swept.items():
            past.append(run(folder, engine, slots, warm_s=WARM_UP_S, seconds=seconds)[0])
    rates = {slots: median(past) for slots, past in swept.items()}
    best = max(rates.values())
    knee = min(slots for slots, rate in rates.items() if rate >= KNEE * best)
    figures = [
        measured(f"tokens_per_s_with_{slots}_slots", past, "1/s") for slots, past in swept.items()
    ]
    figures.append(measured("knee", [knee], "", note=f"fewest slots with {KNEE:.0%} of the best"))
    rate, slots = run(folder, engine, "auto", warm_s=FOUND_S, seconds=2 * seconds)
    held = slots[FOUND_S:]
    figures += [
        measured(
            "found_throughput_over_best",
            [rate / best],
            "",
            f">= {KNEE}",
            reached=rate >= KNEE * best,
            note=f"from second {FOUND_S} on, for {2 * seconds:g} s",
        ),
        measured("found_slots", held, "", note=f"slots each second: {slots}"),
        measured("found_slots_over_knee", [median(held) / knee]),
    ]
    return figures


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of the sweep")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2 instead of a tiny model")
    parser.add_argument("--engine", help="URL of an engine that runs already")
    parser.add_argument("--model", default="tiny", help="its name of the model")
    parser.add_argument("--kind", default="openai", help="what it is, as in the configuration")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        url, kind = options.engine, options.kind
        if url is None:
            path = weights.find(weights.SMOLLM2_MODEL) if options.smollm2 else tiny_model(folder)
            url = stack.enter_context(llamacpp(path, options.model, slots=PARALLEL))
            kind = "llamacpp"
        figures = measure(folder, Engine(url, options.model, kind), options.seconds, options.rounds)
    deliver(figures, options)


if __name__ == "__main__":
    main()
