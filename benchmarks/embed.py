# SPDX-License-Identifier: Apache-2.0
"""How well batches are filled and shared, and what the gateway costs per text.

Figures are ratios to something measured in the same run: the engine called
directly with the batches of an offline packer that knows all texts beforehand
(:func:`packed`), the engine called once per request, or a tenant alone.

* In virtual time, on a GPU whose batch takes a fixed time and a time per token:
  shares and waits, for several sizes of the quantum.
* On such a GPU in real time, and on the embedded model: texts a second.
* CPU time per text in the gateway, and how long it holds the event loop.

* With ``--infinity``: in front of a server with dynamic batching of its own
  (``infinity_emb v2 --url-prefix /v1 --served-model-name MODEL ...``).

    python benchmarks/embed.py [--json] [--rounds N] [--record PATH] [--infinity URL MODEL]
"""

import asyncio
import gc
import random
import time

from embed_infinity import beside_infinity
from embed_sites import (
    FakeGpu,
    GatewaySite,
    direct,
    large_answer_hold_ms,
    large_request_hold_ms,
    one_by_one,
    packed,
    texts_of,
    work_of,
)
from embed_virtual import beside_a_flood, crowd
from harness import deliver, measured, options_for

from taketurns.engines.minilm import MiniLmEngine, MiniLmTokenizer
from taketurns.figures import Figure, median, rounded

SHARE_MIN = 0.95
HOLD_MS_MAX = 5.0
CROWD = "32 tenants with 500 texts at a time, 16 with single ones; texts of 50 to 800 tokens"
NOTES = {
    "flood_token_gap_in_batches_max": "A sends 2,000 texts of 400 tokens at a time, B single "
    "texts of 20; both backlogged",
    "flood_p99_of_single_texts_added_batches": "p99 of B's single texts beside A, less that of "
    "B alone, in full batches",
}
DIVISORS = (1, 2, 4, 8, 16, 32, 64)


def one(name: str, value: float, target: str = "", *, reached: bool | None = None) -> Figure:
    """Return a figure of one value that is the same on any machine."""
    known = rounded(value)
    return Figure(name, known, "", target, reached, 1, (known, known), NOTES.get(name, CROWD))


def in_virtual_time() -> list[Figure]:
    """Measure shares and waits where time is computed, so that they are the same on any machine."""
    seen = beside_a_flood()
    figures = [
        one(
            "flood_token_gap_in_batches_max",
            seen.gap_batches,
            "<= 0.25",
            reached=seen.gap_batches <= 0.25,
        ),
        one(
            "flood_p99_of_single_texts_added_batches",
            seen.added_batches,
            "<= 2",
            reached=seen.added_batches <= 2,
        ),
    ]
    for divisor in DIVISORS:
        p99, fill = crowd(divisor)
        figures += [
            one(f"quantum_batch_over_{divisor}_p99_batches", p99),
            one(f"quantum_batch_over_{divisor}_fill", fill),
        ]
    return figures


async def on_fake_gpu(rounds: int) -> list[Figure]:
    """Measure texts a second on a GPU that sleeps as long as a batch takes."""
    ratios, calls, fills, best = [], [], [], []
    for number in range(rounds):
        work = work_of(random.Random(number), texts=6_000, tenants=16)
        gpu = FakeGpu()
        batches = packed(work)
        begin = time.perf_counter()
        await direct(gpu, batches)
        plain_s = time.perf_counter() - begin
        best.append(sum(work.sizes) / len(batches) / work.tokens_max)
        gpu = FakeGpu()
        async with GatewaySite(work, gpu) as site:
            begin = time.perf_counter()
            await site.run()
            ratios.append(plain_s / (time.perf_counter() - begin))
        fills.append(gpu.tokens / gpu.calls / work.tokens_max)
        gpu = FakeGpu()
        begin = time.perf_counter()
        await one_by_one(gpu, work)
        calls.append(plain_s / (time.perf_counter() - begin))
    note = "6,000 texts of 16 tenants in requests of 1 to 300; batch = 5 ms + 10 us a token"
    return [
        measured(
            "gpu_texts_per_s_of_packed",
            ratios,
            "",
            f">= {SHARE_MIN}",
            reached=median(ratios) >= SHARE_MIN,
            note=note,
        ),
        measured("gpu_batch_fill", fills, note="tokens over the batch's budget"),
        measured("gpu_batch_fill_packed", best, note="the same for the offline packer"),
        measured("gpu_one_call_per_request_of_packed", calls, note="without the gateway"),
    ]


async def on_minilm(rounds: int) -> list[Figure]:
    """Measure texts a second on the embedded model."""
    tokenizer = MiniLmTokenizer()
    ratios, calls, rates, cpu = [], [], [], []
    engine = MiniLmEngine("gpu", slots=1, threads=1, tokens_max=512)
    await engine.start()
    for number in range(rounds):
        work = texts_of(random.Random(number), tokenizer, texts=400, tenants=8)
        batches = packed(work)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        await direct(engine, batches)
        plain_s, plain_cpu_s = time.perf_counter() - begin, time.process_time() - cpu_begin
        async with GatewaySite(work, engine, tokenizer=tokenizer) as site:
            begin, cpu_begin = time.perf_counter(), time.process_time()
            await site.run()
            took_s = time.perf_counter() - begin
            cpu.append(plain_cpu_s / (time.process_time() - cpu_begin))
        ratios.append(plain_s / took_s)
        rates.append(len(work.sizes) / took_s)
        begin = time.perf_counter()
        await one_by_one(engine, work)
        calls.append(plain_s / (time.perf_counter() - begin))
    await engine.aclose()
    note = "400 texts of 8 tenants in requests of 1 to 60; one thread"
    return [
        measured(
            "minilm_texts_per_s_of_packed",
            ratios,
            "",
            f">= {SHARE_MIN}",
            reached=median(ratios) >= SHARE_MIN,
            note=note,
        ),
        measured("minilm_texts_per_cpu_s_of_packed", cpu, note="the same by CPU time"),
        measured("minilm_texts_per_s", rates, "1/s", note=note),
        measured("minilm_one_call_per_request_of_packed", calls, note="without the gateway"),
    ]


async def cost(rounds: int) -> list[Figure]:
    """Measure CPU time per text, and the longest time for which the event loop is held."""
    per_text, singles, holds, floats, requests = [], [], [], [], []
    for number in range(rounds):
        gc.collect()
        work = work_of(random.Random(number), texts=4_000, tenants=16)
        async with GatewaySite(work, FakeGpu(fixed_s=0, token_s=0)) as site:
            begin = time.process_time()
            await site.run()
            per_text.append((time.process_time() - begin) / len(work.sizes) * 1e6)
        work = work_of(random.Random(number), texts=1_000, tenants=16, largest=1)
        async with GatewaySite(work, FakeGpu(fixed_s=0, token_s=0)) as site:
            begin = time.process_time()
            await site.run()
            singles.append((time.process_time() - begin) / len(work.sizes) * 1e6)
        holds.append(await large_answer_hold_ms("base64", "base64"))
        requests.append(await large_request_hold_ms())
        floats.append(await large_answer_hold_ms("float", "float"))
    note = "without the HTTP server; vectors of 8 numbers"
    return [
        measured("cpu_us_per_text", per_text, "us", note=f"requests of 1 to 300 texts; {note}"),
        measured("cpu_us_per_single_text_request", singles, "us", note=note),
        measured(
            "loop_held_by_96x1536_base64_ms",
            holds,
            "ms",
            f"<= {HOLD_MS_MAX:g}",
            reached=median(holds) <= HOLD_MS_MAX,
            note="longest time between two turns of the loop, from request to answer",
        ),
        measured(
            "loop_held_by_96x1536_float_ms",
            floats,
            "ms",
            f"<= {HOLD_MS_MAX:g}",
            reached=median(floats) <= HOLD_MS_MAX,
            note="the engine gives decimal numbers and the client asks for them",
        ),
        measured(
            "loop_held_by_2000_texts_ms",
            requests,
            "ms",
            note="a request of 3 MB: 2,000 texts of 320 words",
        ),
    ]


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of")
    parser.add_argument(
        "--infinity", nargs=2, metavar=("URL", "MODEL"), help="measure beside infinity too"
    )
    options = parser.parse_args()
    figures = in_virtual_time()
    for part in (on_fake_gpu, on_minilm, cost):
        figures += asyncio.run(part(options.rounds))
    if options.infinity:
        figures += asyncio.run(beside_infinity(*options.infinity, options.rounds))
    deliver(figures, options)


if __name__ == "__main__":
    main()
