# SPDX-License-Identifier: Apache-2.0
"""Measures what slots are found on a real engine, beside a sweep of fixed slots. Run by hand.

One gateway serves one engine under many names: with so many slots each, and
with slots that are found. Clients that never stop asking take one name after
the other, round after round, so that a slow minute of the machine falls on all
alike; figures are medians over the rounds. Before that the finder gets 30 s.

The engine is llama.cpp's own server on one thread, on a tiny model that the
tests write, or on SmolLM2; ``--engine`` takes another one that runs already,
such as vLLM (tests/real/vllm_cpu.py). Some three minutes.

    python benchmarks/auto_slots_engine.py [--json] [--rounds N] [--record PATH] [--smollm2]
    python benchmarks/auto_slots_engine.py --engine http://127.0.0.1:8110 --model tiny --kind vllm
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from harness import deliver, measured, options_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real.engines import ADMIN_TOKEN, gateway, llamacpp, tiny_model

from taketurns.engines import weights
from taketurns.figures import Figure, median

PARALLEL = 8
"""Requests that the engine itself runs at once; more wait inside it."""

AUTO = "auto"
FIXED = (1, 2, 3, 4, 6, 8, 12)
CLIENTS = 24
TOKENS = 96
FOUND_S = 30
WARM_UP_S = 1.5
KNEE = 0.95
PROMPT = [{"role": "user", "content": "Tell me a story."}]
HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@dataclass
class Seen:
    """Tokens so far, slots of each second, and the codes of requests that failed."""

    tokens: int = 0
    slots: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Site:
    """A gateway in front of one engine, and who asks it.

    Attributes:
        url: Where it serves.
        admin: Its admin side.
        key: Of the tenant.
        http: Clients' connections.
    """

    url: str
    admin: str
    key: str
    http: aiohttp.ClientSession

    async def ask_on(self, model: str, seen: Seen) -> None:
        """Send one request after the other until cancelled, and count tokens as they come."""
        body = {
            "model": model,
            "messages": PROMPT,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {self.key}"}
        address = f"{self.url}/v1/chat/completions"
        while True:
            async with self.http.post(address, json=body, headers=headers) as answer:
                if answer.status >= 500:
                    seen.failed.append((await answer.json())["error"]["code"])
                    continue
                answer.raise_for_status()
                async for data in answer.content.iter_any():
                    # Cut anywhere, so a few in a thousand are missed, of all names alike.
                    seen.tokens += data.count(b'"content":"')

    async def watch(self, seen: Seen) -> None:
        """Note how many slots are found, once a second."""
        while True:
            await asyncio.sleep(1)
            async with self.http.get(f"{self.admin}/pools", headers=HEADERS) as answer:
                (engine,) = (await answer.json())[AUTO]["engines"]
                seen.slots.append(engine["limit"])

    async def load(self, model: str, *, warm_s: float, seconds: float) -> tuple[float, list[int]]:
        """Return tokens per second after a warm-up, and the slots found in each second of all."""
        seen = Seen()
        begun = 0.0
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(warm_s + seconds), asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(self.ask_on(model, seen))
                group.create_task(self.watch(seen))
                await asyncio.sleep(warm_s)
                seen.tokens, begun = 0, loop.time()
        if seen.failed:
            print(f"{len(seen.failed)} requests failed: {Counter(seen.failed)}", file=sys.stderr)
        return seen.tokens / (loop.time() - begun), seen.slots


@dataclass
class Measured:
    """What was seen.

    Attributes:
        rates: Tokens per second of each round, by name.
        finding: Slots in each of the first seconds.
        slots: Slots in each second of the rounds.
    """

    rates: dict[str, list[float]]
    finding: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)


async def measure(at: tuple[str, str, str], rounds: int, seconds: float) -> Measured:
    """Let the finder find, then take all names in turn."""
    names = [*map(str, FIXED), AUTO]
    found = Measured({name: [] for name in names})
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        site = Site(*at, http)
        _, found.finding = await site.load(AUTO, warm_s=0, seconds=FOUND_S)
        for _ in range(rounds):
            # Each begins a round once, so that none always follows the same one.
            names = names[1:] + names[:1]
            for name in names:
                rate, slots = await site.load(name, warm_s=WARM_UP_S, seconds=seconds)
                found.rates[name].append(rate)
                if name == AUTO:
                    found.slots += slots
    return found


def figures_of(found: Measured) -> list[Figure]:
    """Return the sweep, its knee, and how what was found compares."""
    rates = {slots: median(found.rates[str(slots)]) for slots in FIXED}
    best = max(FIXED, key=rates.__getitem__)
    knee = min(slots for slots, rate in rates.items() if rate >= KNEE * rates[best])
    pairs = zip(found.rates[AUTO], found.rates[str(best)], strict=True)
    ratios = [auto / fixed for auto, fixed in pairs]
    return [
        *(
            measured(f"tokens/s with {name} slots", past, "1/s")
            for name, past in found.rates.items()
        ),
        measured("best fixed slots", [best]),
        measured("knee", [knee], note=f"fewest slots with {KNEE:.0%} of the best"),
        measured(
            "found throughput over best, in the same round",
            ratios,
            "",
            f">= {KNEE}",
            reached=median(ratios) >= KNEE,
            note=f"from second {FOUND_S} on",
        ),
        measured("found slots", found.slots, note=f"in the first seconds: {found.finding}"),
        measured("found slots over knee", [median(found.slots) / knee]),
    ]


def run(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Serve an engine under all names, and measure."""
    with contextlib.ExitStack() as stack:
        url, kind = options.engine, options.kind
        if url is None:
            path = weights.find(weights.SMOLLM2_MODEL) if options.smollm2 else tiny_model(folder)
            url = stack.enter_context(llamacpp(path, options.model, slots=PARALLEL))
            kind = "llamacpp"
        part = {"url": url, "kind": kind, "model": options.model, "name": "engine"}
        models = {
            str(slots): {"endpoints": ["chat"], "engines": [{**part, "slots": slots}]}
            for slots in (*FIXED, AUTO)
        }
        process, keys = stack.enter_context(gateway(folder, models, {"acme": {}}))
        at = (process.url, process.admin_url, keys["acme"])
        return figures_of(asyncio.run(measure(at, options.rounds, options.seconds)))


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=4, help="through all names")
    parser.add_argument("--smollm2", action="store_true", help="SmolLM2 instead of a tiny model")
    parser.add_argument("--engine", help="URL of an engine that runs already")
    parser.add_argument("--model", default="tiny", help="its name of the model")
    parser.add_argument("--kind", default="openai", help="what it is, as in the configuration")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = run(Path(name), options)
    deliver(figures, options)


if __name__ == "__main__":
    main()
