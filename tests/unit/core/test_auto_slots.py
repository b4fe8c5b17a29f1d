# SPDX-License-Identifier: Apache-2.0
"""Slots are found: the knee is reached, held, followed, and never guessed from silence."""

import os
import random
from statistics import median

import pytest

from taketurns.core.auto_slots import Known, SlotFinder
from taketurns.core.own_finder import WINDOW_US, OwnFinder
from taketurns.core.signs import GAUGE_FRESH_US, Signs
from taketurns.ports.clock import VirtualClock
from taketurns.testing.batching_engine import ClosedLoop, StepTimes
from taketurns.units import US_PER_S

PROOF = os.environ.get("TAKETURNS_PROOF") == "1"

FOUND_WITHIN_S = 30
HELD_S = 90 if PROOF else 40
SEEDS = range(1, 9) if PROOF else (1, 2)

GRID = (*range(1, 13), 14, 16, 20, 24, 28, 32, 40, 48, 52, 56, 60, 64, 72, 80, 96, 128, 160)

ENGINES = {
    "batch of 8": (8, StepTimes()),
    "batch of 64": (64, StepTimes()),
    "batch of 48, slower with each": (48, StepTimes(request_us=1_000)),
    "slower past 40": (1_000, StepTimes(request_us=100, thrash_us=20, thrash_from=40)),
}


def sweep(batch_max, times):
    """Return tokens per second with fixed slots, by slots, and the knee."""
    by_slots = {}
    for slots in GRID:
        loop = ClosedLoop(VirtualClock(), batch_max=batch_max, times=times, limit=slots)
        past = loop.run(14)[4:]
        by_slots[slots] = sum(second.tokens for second in past) / len(past)
    best = max(by_slots.values())
    return best, min(slots for slots, rate in by_slots.items() if rate >= 0.95 * best)


def found(batch_max, times, *, gauge, seed, seconds=FOUND_WITHIN_S + HELD_S, changes=None):
    finder = OwnFinder(1, 256, start=8)
    loop = ClosedLoop(
        VirtualClock(), batch_max=batch_max, times=times, limit=finder, gauge=gauge, seed=seed
    )
    return loop.run(seconds, changes)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("gauge", [True, False])
def test_the_knee_is_reached_in_time_and_held(name, gauge):
    best, knee = sweep(*ENGINES[name])
    for seed in SEEDS:
        past = found(*ENGINES[name], gauge=gauge, seed=seed)
        reached = next(i for i, second in enumerate(past) if second.slots >= 0.9 * knee)
        assert reached < FOUND_WITHIN_S, (seed, past)
        held = past[FOUND_WITHIN_S:]
        rate = sum(second.tokens for second in held) / len(held)
        assert rate >= 0.95 * best, (seed, rate / best)
        middle = median(second.slots for second in held)
        assert 0.85 * knee <= middle <= 1.3 * knee, (seed, middle, knee)
        waiting = sum(second.waiting for second in held) / len(held)
        assert waiting <= 1 + middle / 8, (seed, waiting)


def test_an_engine_that_only_gets_slower_with_more_gets_few_slots():
    # As llama.cpp on a processor: four at once do less in all than one.
    times = StepTimes(100, 14_000, 200, thrash_us=500, thrash_from=1)
    past = found(4, times, gauge=True, seed=1, seconds=60)
    assert median(second.slots for second in past[30:]) <= 2


@pytest.mark.parametrize("gauge", [True, False])
@pytest.mark.parametrize(("before", "after"), [(64, 16), (16, 64)])
def test_a_knee_that_moves_is_found_again_in_time(before, after, gauge):
    def change(engine):
        engine.batch_max = after

    seconds = 2 * FOUND_WITHIN_S + 20
    past = found(
        before, StepTimes(), gauge=gauge, seed=1, seconds=seconds, changes={FOUND_WITHIN_S: change}
    )
    middle = median(second.slots for second in past[2 * FOUND_WITHIN_S :])
    assert 0.85 * after <= middle <= 1.3 * after


def test_a_finder_without_signs_stays_where_it_is():
    # The control: with neither gauge, first bytes nor work, nothing can be found.
    finder = OwnFinder(1, 256, start=8)
    now_us = 0
    for _ in range(8):
        finder.started(now_us, stream=False)
    for _ in range(30):
        now_us += US_PER_S
        finder.advance(now_us)
        assert finder.slots == 8
    assert finder.queue is None


class Steady:
    """A finder whose engine does so much work per slot and window, always full."""

    def __init__(self, finder, rate):
        self.finder = finder
        self.rate = rate
        self.now_us = 0

    def window(self, *, full=True):
        finder = self.finder
        wanted = finder.slots if full else finder.slots // 2
        while finder.load.in_flight < wanted:
            finder.started(self.now_us, stream=False)
        while finder.load.in_flight > wanted:
            finder.load.ended(self.now_us, pending=False)
        self.now_us = max(self.now_us, finder.next_wake_us())
        work = self.rate(finder.load.in_flight)
        for _ in range(16):
            finder.load.produced(work)
        finder.advance(self.now_us)
        return finder.slots


def linear(slots):
    return 100 * slots


def flat(slots):
    del slots
    return 1_000


def test_it_grows_while_that_pays_and_stops_at_its_bound():
    steady = Steady(OwnFinder(1, 100, start=8), linear)
    assert max(steady.window() for _ in range(30)) == 100
    assert steady.window() in {88, 100}


def test_it_shrinks_while_that_costs_nothing_and_stops_at_its_bound():
    steady = Steady(OwnFinder(3, 100, start=8), flat)
    seen = [steady.window() for _ in range(80)]
    assert min(seen) == 3
    assert median(seen[40:]) <= 4


def test_it_is_not_raised_while_nobody_needs_it():
    steady = Steady(OwnFinder(1, 100, start=8), linear)
    assert {steady.window(full=False) for _ in range(10)} == {8}


def test_a_step_that_nobody_used_is_taken_back():
    steady = Steady(OwnFinder(1, 100, start=8), linear)
    while steady.window() == 8:
        pass
    assert steady.finder.slots == 16
    seen = [steady.window(full=False) for _ in range(4)]
    assert seen[-1] == 8


def test_slots_that_others_keep_free_do_not_stop_it_from_growing():
    finder = OwnFinder(1, 64, start=8)
    finder.bound(1, 64, usable_percent=50)
    steady = Steady(finder, linear)
    assert max(steady.window(full=False) for _ in range(20)) == 64


def test_a_queue_lowers_it_to_what_the_engine_works_on_but_by_half_at_most():
    finder = OwnFinder(1, 256, start=64)
    steady = Steady(finder, linear)
    steady.window()
    finder.load.gauge(20, steady.now_us + WINDOW_US)
    assert steady.window() == 44
    # What ran goes on, and counts for what it is.
    while finder.load.in_flight < 64:
        finder.started(steady.now_us, stream=False)
    for _ in range(2):
        for _ in range(16):
            finder.load.produced(1)
        steady.now_us += WINDOW_US
        finder.load.gauge(20, steady.now_us)
        finder.advance(steady.now_us)
        assert finder.slots == 44
    finder.load.gauge(0, steady.now_us + WINDOW_US)
    for _ in range(16):
        finder.load.produced(1)
    steady.now_us += WINDOW_US
    finder.advance(steady.now_us)
    assert finder.slots == 44
    steady.window()
    finder.load.gauge(40, steady.now_us + WINDOW_US)
    assert steady.window() == 22


def test_bounds_and_the_way_slots_are_set_can_change():
    finder = OwnFinder(1, 16, start=16)
    finder.bound(1, 8, grows=False)
    assert finder.slots == 8
    finder.bound(1, 8, grows=False)
    finder.bound(1, 12, grows=False)
    assert finder.slots == 12
    finder.bound(0, 0, grows=False)
    assert finder.slots == 0
    finder.bound(2, 6)
    assert (finder.slots, finder.grows) == (2, True)


def queues(*windows):
    finder = SlotFinder(1, 256, start=64)
    found = []
    for window in windows:
        finder.take(window)
        found.append(finder.queue)
    return found


def streams(number, wait_us, **more):
    """A second in which streams begin, each after so long."""
    pending_us = number * wait_us
    return Signs(
        US_PER_S, 1, US_PER_S, 16, pending_us, number, (wait_us,) * number, in_flight=1, **more
    )


def test_without_a_gauge_the_queue_follows_from_who_waits_longer_than_at_best():
    # Each waits for half a second more: by Little's law 20 x 0.5 s / 1 s wait inside.
    # The best is forgotten by a little in each window.
    assert queues(streams(4, 50_000), streams(20, 550_000)) == [0, 9]


def test_streams_that_never_begin_are_a_queue_too():
    never = Signs(US_PER_S, 1, US_PER_S, 16, pending_us=6 * US_PER_S, in_flight=6)
    gone = Signs(US_PER_S, 1, US_PER_S, 16, in_flight=1)
    assert queues(streams(4, 1_000), never, gone) == [0, 6, 0]


def test_a_few_first_bytes_say_nothing():
    assert queues(streams(3, 50_000)) == [None]


def test_a_fresh_gauge_counts_and_a_stale_one_is_unknown():
    fresh = Signs(US_PER_S, 1, US_PER_S, 16, gauge=1, gauge_age_us=GAUGE_FRESH_US, in_flight=1)
    stale = fresh._replace(gauge_age_us=GAUGE_FRESH_US + 1)
    assert queues(fresh, stale) == [1, None]


def test_what_a_finder_knows_can_be_handed_on_at_any_time():
    draw = random.Random(3)
    one, other = SlotFinder(1, 256, start=8), SlotFinder(1, 256, start=8)
    seen = set()
    for number in range(2_000):
        slots = one.slots
        full = draw.random() < 0.9
        in_flight = slots if full else slots // 2
        work = 50 * min(in_flight, 40 + number // 100)
        waits = tuple(draw.choices([20_000, 30_000, 300_000], k=draw.randint(0, 6)))
        gauge = draw.choice([None, 0, max(0, in_flight - 40)])
        signs = Signs(
            US_PER_S, work, in_flight * US_PER_S, draw.choice([3, 30]), sum(waits), len(waits),
            waits, gauge, 0, in_flight,
        )  # fmt: skip
        one.take(signs)
        # Whoever goes on has never seen a window but this one.
        heir = SlotFinder(1, 256, start=1)
        heir.restore(other.known())
        other = heir
        other.take(signs)
        assert other.known() == one.known()
        seen.add(one.slots)
        if draw.random() < 0.01:
            one.refused(in_flight - 1)
            other.refused(in_flight - 1)
    assert len(seen) > 10


def test_what_was_known_elsewhere_is_kept_within_ones_own_bounds():
    finder = SlotFinder(4, 16, start=8)
    finder.restore(Known(64))
    assert finder.slots == 16
    finder.restore(Known(1))
    assert finder.slots == 4


def test_set_slots_do_not_begin_again():
    finder = SlotFinder(1, 16, start=16)
    finder.bound(1, 16, grows=False)
    finder.restart()
    assert finder.slots == 16
