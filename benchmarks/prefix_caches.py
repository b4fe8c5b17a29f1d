# SPDX-License-Identifier: Apache-2.0
"""Whether a tenant can tell by the time to the first token what another one has asked.

An engine that has read a prompt before answers sooner. One tenant asks with a
long prompt that is new, and again; then another asks with the same prompt, as
it is, and with what it takes for the first one's salt. Both must wait as for a
prompt that nobody has asked. The engine is llama.cpp's own server on a tiny
model; ``--engine`` takes another one that runs already, such as vLLM
(tests/real/vllm_cpu.py).

    python benchmarks/prefix_caches.py [--json] [--rounds N] [--record PATH]
    python benchmarks/prefix_caches.py --engine http://127.0.0.1:8110 --kind vllm
"""

import contextlib
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import openai
from harness import deliver, measured, options_for

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from real.engines import gateway, llamacpp, tiny_model

from taketurns.figures import Figure

WORDS = 850
"""Of a prompt: some 1,700 tokens."""

LIKE_NEW = 0.8
"""Least ratio to the time for a new prompt at which one can't be told from it."""

SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "so", "ti")


@dataclass(frozen=True)
class Asked:
    """Times to the first token of one round, in milliseconds."""

    new: float
    own: float
    other: float
    stolen: float


def prompt(dice: random.Random) -> str:
    """Return a prompt like no other from its first word on."""
    return " ".join("".join(dice.choices(SYLLABLES, k=2)) for _ in range(WORDS))


def first_token_ms(client: openai.OpenAI, model: str, text: str, **fields: str) -> float:
    """Ask for one token; return how long it took to come."""
    begun = time.perf_counter()
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        max_tokens=1,
        stream=True,
        extra_body=fields,
    ) as stream:
        next(iter(stream))
    return 1000 * (time.perf_counter() - begun)


def ask(
    url: str, keys: dict[str, str], model: str, dice: random.Random, rounds: int
) -> list[Asked]:
    """Return the times of so many rounds, each with a prompt of its own."""
    found = []
    with contextlib.ExitStack() as stack:
        acme, globex, initech = (
            stack.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
            for key in keys.values()
        )
        for client in (acme, globex, initech):
            first_token_ms(client, model, prompt(dice))
        for _ in range(rounds):
            text = prompt(dice)
            found.append(
                Asked(
                    new=first_token_ms(acme, model, text),
                    own=first_token_ms(acme, model, text),
                    other=first_token_ms(globex, model, text),
                    stolen=first_token_ms(initech, model, text, cache_salt="acme"),
                )
            )
    return found


def figures_of(found: list[Asked], apart: str) -> list[Figure]:
    """Return the time for a new prompt, and the others over it.

    The least times are compared: noise only adds to a time, and who wants to tell asks often.
    """
    new = min(asked.new for asked in found)

    def over_new(name: str, values: list[float], *, like_new: bool) -> Figure:
        ratio = min(values) / new
        return measured(
            f"{name} over a new one's, {apart}",
            [ratio],
            "",
            f">= {LIKE_NEW:g}" if like_new else "",
            reached=ratio >= LIKE_NEW if like_new else None,
            note=f"least of {len(values)} times each",
        )

    promised = apart == "kept apart"
    return [
        measured(f"new prompt's first token, {apart}", [asked.new for asked in found], "ms"),
        over_new("own prompt again", [asked.own for asked in found], like_new=False),
        over_new("another's prompt", [asked.other for asked in found], like_new=promised),
        over_new("another's, its salt guessed", [a.stolen for a in found], like_new=promised),
    ]


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engine", help="URL of an engine that runs already")
    parser.add_argument("--model", default="tiny", help="its name of the model")
    parser.add_argument("--kind", default="llamacpp", help="what it is, as in the configuration")
    options = parser.parse_args()
    figures: list[Figure] = []
    dice = random.Random()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        url = options.engine
        if url is None:
            url = stack.enter_context(llamacpp(tiny_model(folder), options.model, slots=4))
        for apart, kept in (("kept apart", True), ("shared", False)):
            part = {"url": url, "kind": options.kind, "slots": 4, "cache_per_tenant": kept}
            models = {options.model: {"endpoints": ["chat"], "engines": [part]}}
            tenants: dict = {"acme": {}, "globex": {}, "initech": {}}
            with gateway(folder, models, tenants) as (process, keys):
                figures += figures_of(
                    ask(process.url, keys, options.model, dice, options.rounds), apart
                )
    deliver(figures, options)


if __name__ == "__main__":
    main()
