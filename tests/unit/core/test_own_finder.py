# SPDX-License-Identifier: Apache-2.0
"""A process cuts windows out of what it sees, and lowers its slots by refusals at once."""

from taketurns.core.auto_slots import WINDOW_US_MAX
from taketurns.core.own_finder import WINDOW_US, OwnFinder


def test_a_window_with_few_signs_goes_on():
    finder = OwnFinder(1, 256, start=8)
    finder.started(0, stream=True)
    finder.advance(WINDOW_US - 1)
    finder.advance(WINDOW_US)
    assert finder.next_wake_us() == 2 * WINDOW_US
    finder.advance(WINDOW_US_MAX)
    assert finder.next_wake_us() == WINDOW_US_MAX + WINDOW_US
    finder.load.ended(WINDOW_US_MAX, pending=True)
    assert finder.next_wake_us() is None


def test_set_slots_are_lowered_by_refusals_alone_and_come_back():
    finder = OwnFinder(1, 16, start=16)
    finder.bound(1, 16, grows=False)
    assert finder.next_wake_us() is None
    for _ in range(9):
        finder.started(0, stream=False)
    assert finder.next_wake_us() is None
    finder.load.ended(10, pending=False)
    finder.refused(10)
    seen = [finder.slots]
    while (wake_us := finder.next_wake_us()) is not None:
        finder.advance(wake_us)
        seen.append(finder.slots)
    assert seen == [8, 9, 10, 11, 12, 13, 14, 15, 16]
    finder.restart(20)
    assert finder.slots == 16


def test_an_engine_that_was_away_begins_with_the_least():
    finder = OwnFinder(2, 256, start=64)
    finder.load.gauge(9, 5)
    finder.restart(10)
    assert (finder.slots, finder.queue, finder.load.cut(11).gauge) == (2, None, None)


def test_a_refusal_lowers_it_to_what_the_engine_holds():
    finder = OwnFinder(2, 256, start=64)
    for _ in range(40):
        finder.started(0, stream=False)
    finder.load.ended(10, pending=False)
    finder.refused(10)
    assert finder.slots == 39
    for _ in range(39):
        finder.load.ended(20, pending=False)
    finder.refused(20)
    assert finder.slots == 2
