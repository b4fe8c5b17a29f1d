# SPDX-License-Identifier: Apache-2.0
"""Work, slot time and first bytes, as far as they can be seen from outside, window by window."""

from taketurns.core.engine_load import EngineLoad
from taketurns.core.signs import FIRST_BYTES_MAX, Signs


def begun(*, at_us=0):
    load = EngineLoad()
    load.begin(at_us)
    return load


def test_slot_time_is_what_runs_times_how_long():
    load = begun(at_us=10)
    load.started(10, stream=False)
    load.started(30, stream=False)
    load.ended(60, pending=False)
    load.produced(7)
    load.produced(5)
    assert load.cut(100) == Signs(90, 12, 20 + 2 * 30 + 40, seen=2, in_flight=1)
    assert load.cut(130) == Signs(30, slot_us=30, in_flight=1)


def test_streams_wait_until_they_begin():
    load = begun()
    for _ in range(3):
        load.started(0, stream=True)
    load.first_byte(50, 50)
    load.ended(70, pending=True)
    signs = load.cut(100)
    assert (signs.pending_us, signs.begun, signs.first_bytes) == (50 + 70 + 100, 1, (50,))
    load.ended(120, pending=True)
    assert load.cut(200).pending_us == 20
    assert load.cut(300).pending_us == 0


def test_only_so_many_first_bytes_are_kept():
    load = begun()
    for _ in range(FIRST_BYTES_MAX + 9):
        load.started(0, stream=True)
        load.first_byte(5, 5)
    signs = load.cut(10)
    assert (signs.begun, signs.first_bytes) == (FIRST_BYTES_MAX + 9, (5,) * FIRST_BYTES_MAX)


def test_a_gauge_gets_older_until_it_is_read_again_or_forgotten():
    load = begun()
    assert load.cut(10).gauge is None
    load.gauge(5, 30)
    assert load.cut(40)[-3:] == (5, 10, 0)
    assert load.cut(90)[-3:] == (5, 60, 0)
    load.gauge(0, 90)
    assert load.cut(95)[-3:] == (0, 5, 0)
    load.forget()
    assert load.cut(99).gauge is None
