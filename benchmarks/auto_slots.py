# SPDX-License-Identifier: Apache-2.0
"""Measures how soon and how well slots are found, beside a sweep of fixed slots, in virtual time.

    python benchmarks/auto_slots.py [--json] [--record FILE] [--seeds 5]

The knee is the fewest slots that give 95 % of the best throughput of the sweep.
Nothing here depends on the machine's speed.
"""

from collections.abc import Callable
from functools import cache
from statistics import mean, median

from harness import deliver, measured, options_for

from taketurns.core.own_finder import OwnFinder
from taketurns.figures import Figure
from taketurns.ports.clock import VirtualClock
from taketurns.testing.batching_engine import BatchingEngine, ClosedLoop, Second, StepTimes

GRID = (
    *range(1, 17),
    *range(18, 33, 2),
    *range(36, 65, 4),
    *range(72, 129, 8),
    *range(144, 257, 16),
)
FOUND_S_MAX = 30
HELD_S = 90
THROUGHPUT_MIN = 0.95
NEAR = (0.85, 1.3)
"""Slots this near to the knee count as found."""

ENGINES = {
    "batch_8": (8, StepTimes()),
    "batch_16": (16, StepTimes()),
    "batch_64": (64, StepTimes()),
    "batch_128": (128, StepTimes(request_us=100)),
    "batch_48_slower_with_each": (48, StepTimes(request_us=1_000)),
    "slower_past_40": (10_000, StepTimes(request_us=100, thrash_us=20, thrash_from=40)),
    "without_a_knee": (10_000, StepTimes(request_us=500)),
}
MOVES = {"knee_64_to_16": (64, 16), "knee_16_to_64": (16, 64), "knee_128_to_8": (128, 8)}


@cache
def sweep(batch_max: int, times: StepTimes) -> tuple[float, int]:
    """Return the best tokens per second of fixed slots, and the knee."""
    rates = {}
    for slots in GRID:
        loop = ClosedLoop(VirtualClock(), batch_max=batch_max, times=times, limit=slots, seed=99)
        rates[slots] = mean(second.tokens for second in loop.run(40)[10:])
    best = max(rates.values())
    return best, min(slots for slots, rate in rates.items() if rate >= THROUGHPUT_MIN * best)


def find(
    batch_max: int,
    times: StepTimes,
    *,
    gauge: bool,
    seed: int,
    seconds: int,
    changes: dict[int, Callable[[BatchingEngine], None]] | None = None,
) -> list[Second]:
    """Let slots be found, and return what each second was like."""
    finder = OwnFinder(1, 256, start=8)
    loop = ClosedLoop(
        VirtualClock(), batch_max=batch_max, times=times, limit=finder, gauge=gauge, seed=seed
    )
    return loop.run(seconds, changes)


def found_after(past: list[Second], knee: int) -> int:
    """Return the first second from which slots are near the knee over five seconds."""
    low, high = NEAR[0] * knee, NEAR[1] * knee
    for begin in range(len(past) - 4):
        if low <= median(second.slots for second in past[begin : begin + 5]) <= high:
            return begin
    return len(past)


def measure(seeds: int) -> list[Figure]:
    """Return the figures of all engines."""
    figures: list[Figure] = []
    for gauge in (True, False):
        by = "gauge" if gauge else "first_bytes"
        for name, (batch_max, times) in ENGINES.items():
            best, knee = sweep(batch_max, times)
            pasts = [
                find(batch_max, times, gauge=gauge, seed=seed, seconds=FOUND_S_MAX + HELD_S)
                for seed in range(1, seeds + 1)
            ]
            held = [past[FOUND_S_MAX:] for past in pasts]
            figures += judged(f"{name}_by_{by}", pasts, held, best, knee)
        for name, (before, after) in MOVES.items():
            best, knee = sweep(after, StepTimes())

            def change(engine: BatchingEngine, after: int = after) -> None:
                engine.batch_max = after

            pasts = [
                find(
                    before,
                    StepTimes(),
                    gauge=gauge,
                    seed=seed,
                    seconds=2 * FOUND_S_MAX + HELD_S,
                    changes={FOUND_S_MAX: change},
                )[FOUND_S_MAX:]
                for seed in range(1, seeds + 1)
            ]
            held = [past[FOUND_S_MAX:] for past in pasts]
            figures += judged(f"{name}_by_{by}", pasts, held, best, knee)
    return figures


def judged(
    name: str, pasts: list[list[Second]], held: list[list[Second]], best: float, knee: int
) -> list[Figure]:
    """Return an engine's figures over all seeds."""
    has_knee = not name.startswith("without")
    after_s = [float(found_after(past, knee)) for past in pasts]
    rates = [mean(second.tokens for second in past) / best for past in held]
    slots = [median(second.slots for second in past) / knee for past in held]
    queues = [mean(second.waiting / second.slots for second in past) for past in held]
    note = f"knee at {knee} slots"
    return [
        measured(
            f"{name}_found_after",
            after_s,
            "s",
            f"<= {FOUND_S_MAX}" if has_knee else "",
            reached=max(after_s) <= FOUND_S_MAX if has_knee else None,
            note=note,
        ),
        measured(
            f"{name}_throughput_over_best",
            rates,
            "",
            f">= {THROUGHPUT_MIN}" if has_knee else "",
            reached=min(rates) >= THROUGHPUT_MIN if has_knee else None,
            note=f"from second {FOUND_S_MAX} on, for {HELD_S} s; {note}",
        ),
        measured(f"{name}_slots_over_knee", slots, note=note),
        measured(f"{name}_queue_inside_over_slots", queues, note=note),
    ]


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds for each engine")
    options = parser.parse_args()
    deliver(measure(options.seeds), options)


if __name__ == "__main__":
    main()
