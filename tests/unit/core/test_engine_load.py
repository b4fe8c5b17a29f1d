# SPDX-License-Identifier: Apache-2.0
"""Work, slot time and the engine's queue, as far as they can be seen from outside."""

from taketurns.core.engine_load import FIRST_BYTES_MAX, GAUGE_FRESH_US, EngineLoad
from taketurns.units import US_PER_S


def begun(*, at_us=0):
    load = EngineLoad()
    load.begin(at_us)
    return load


def test_slot_time_is_what_runs_times_how_long():
    load = begun(at_us=10)
    load.started(10, stream=False)
    load.started(30, stream=False)
    load.ended(60, pending=False)
    load.until(100)
    load.produced(7)
    load.produced(5)
    assert (load.slot_us, load.in_flight) == (20 + 2 * 30 + 40, 1)
    assert (load.work, load.signs) == (12, 2)
    load.begin(100)
    assert (load.slot_us, load.work, load.signs, load.in_flight) == (0, 0, 0, 1)


def streams(load, *, number, wait_us, from_us):
    for _ in range(number):
        load.started(from_us, stream=True)
    for _ in range(number):
        load.first_byte(wait_us, from_us + wait_us)
    for _ in range(number):
        load.ended(from_us + wait_us, pending=False)


def test_without_a_gauge_the_queue_follows_from_who_waits_longer_than_at_best():
    load = begun()
    streams(load, number=4, wait_us=50_000, from_us=0)
    assert load.queue(US_PER_S) == 0
    load.begin(US_PER_S)
    # Each waits for half a second more: by Little's law 20 x 0.5 s / 1 s wait inside.
    streams(load, number=20, wait_us=550_000, from_us=US_PER_S)
    load.until(2 * US_PER_S)
    # The best is forgotten by a little in each window.
    assert load.queue(2 * US_PER_S) == 9
    load.forget()
    load.begin(2 * US_PER_S)
    assert load.queue(3 * US_PER_S) is None


def test_streams_that_never_begin_are_a_queue_too():
    load = begun()
    streams(load, number=4, wait_us=1_000, from_us=0)
    load.queue(US_PER_S)
    load.begin(US_PER_S)
    for _ in range(6):
        load.started(US_PER_S, stream=True)
    load.until(2 * US_PER_S)
    assert load.queue(2 * US_PER_S) == 6
    for _ in range(6):
        load.ended(2 * US_PER_S, pending=True)
    load.begin(2 * US_PER_S)
    load.until(3 * US_PER_S)
    assert load.queue(3 * US_PER_S) == 0


def test_a_few_first_bytes_say_nothing():
    load = begun()
    streams(load, number=3, wait_us=50_000, from_us=0)
    assert load.queue(US_PER_S) is None


def test_only_so_many_first_bytes_are_kept():
    load = begun()
    streams(load, number=FIRST_BYTES_MAX, wait_us=10, from_us=0)
    streams(load, number=10 * FIRST_BYTES_MAX, wait_us=1, from_us=100)
    assert load.queue(US_PER_S) == 0
    load.begin(US_PER_S)
    streams(load, number=4, wait_us=10, from_us=US_PER_S)
    assert load.queue(2 * US_PER_S) == 0


def test_a_fresh_gauge_counts_and_a_stale_one_is_unknown():
    load = begun()
    load.gauge(5, 100)
    assert load.queue(100 + GAUGE_FRESH_US) == 5
    assert load.queue(101 + GAUGE_FRESH_US) is None
    load.gauge(0, 200 + GAUGE_FRESH_US)
    assert load.queue(300 + GAUGE_FRESH_US) == 0
