# SPDX-License-Identifier: Apache-2.0
"""What was taken counts for at least a period, at most a part longer, and can be corrected."""

import pytest

from taketurns.core.windows import PARTS, MonthCount, ParallelCount, SlidingWindow

PERIOD_US = 600
WIDTH_US = PERIOD_US // PARTS


@pytest.fixture
def window():
    return SlidingWindow(PERIOD_US)


def charge(window, now_us, amount=1):
    window.advance(now_us)
    return window.charge(now_us, amount)


def used_at(window, now_us):
    window.advance(now_us)
    return window.used


@pytest.mark.parametrize("begin_us", [0, 1, 9, 10, 599, 600, 12_345])
def test_what_stands_alone_counts_for_exactly_one_period(window, begin_us):
    charge(window, begin_us, 5)
    assert used_at(window, begin_us + PERIOD_US - 1) == 5
    assert used_at(window, begin_us + PERIOD_US) == 0


def test_all_that_was_taken_in_one_part_counts_until_the_last_of_it_is_old(window):
    charge(window, 0, 2)
    charge(window, WIDTH_US - 1, 3)
    assert used_at(window, PERIOD_US + WIDTH_US - 2) == 5
    assert used_at(window, PERIOD_US + WIDTH_US - 1) == 0


def test_the_next_part_is_counted_by_itself(window):
    charge(window, WIDTH_US - 1, 2)
    charge(window, WIDTH_US, 3)
    assert used_at(window, PERIOD_US + WIDTH_US - 1) == 3
    assert used_at(window, PERIOD_US + WIDTH_US) == 0


def test_nothing_counts_longer_than_a_period_and_a_part(window):
    for now_us in range(3 * PERIOD_US):
        charge(window, now_us)
        assert window.used <= PERIOD_US + WIDTH_US
        assert window.used >= min(now_us + 1, PERIOD_US)


def test_several_parts_that_are_old_are_forgotten_at_once(window):
    for number in range(10):
        charge(window, number * WIDTH_US, 10**number)
    assert used_at(window, PERIOD_US + 6 * WIDTH_US) == 1_110_000_000
    assert used_at(window, 100 * PERIOD_US) == 0
    charge(window, 100 * PERIOD_US, 4)
    assert window.used == 4


def test_a_clock_that_goes_back_is_taken_as_standing(window):
    charge(window, 5_000, 2)
    charge(window, 4_000, 3)
    assert used_at(window, 1) == 5
    assert used_at(window, 5_000 + PERIOD_US - 1) == 5
    assert used_at(window, 5_000 + PERIOD_US) == 0


@pytest.mark.parametrize("period_us", [60, 61, 119, 121, 299, 1_000_003])
def test_a_period_need_not_be_a_multiple_of_its_parts(period_us):
    window = SlidingWindow(period_us)
    step_us = max(1, period_us // 997)
    lasts = []
    for now_us in range(0, 3 * period_us, step_us):
        charge(window, now_us)
        lasts.append(now_us)
        assert window.used >= sum(last > now_us - period_us for last in lasts)
    assert used_at(window, lasts[-1] + period_us - 1) >= 1
    assert used_at(window, lasts[-1] + period_us) == 0


@pytest.mark.parametrize("period_us", [60, 61, 119, 600, 1_000_003])
def test_a_window_keeps_at_most_61_parts(period_us):
    window = SlidingWindow(period_us)
    for now_us in range(0, 3 * period_us, max(1, period_us // 997)):
        charge(window, now_us)
        assert len(window._parts) <= PARTS + 1


@pytest.mark.parametrize("difference", [-3, 4])
def test_a_correction_counts_in_the_part_that_was_charged(window, difference):
    part = charge(window, 0, 5)
    charge(window, 300, 1)
    window.correct(part, difference)
    assert window.used == 6 + difference
    assert used_at(window, PERIOD_US - 1) == 6 + difference
    assert used_at(window, PERIOD_US) == 1


def test_a_correction_doesnt_make_what_was_taken_count_any_longer(window):
    part = charge(window, 0, 5)
    window.advance(PERIOD_US - 1)
    window.correct(part, 1)
    assert window.used == 6
    assert used_at(window, PERIOD_US) == 0


def test_a_correction_of_what_is_out_of_the_window_is_without_effect(window):
    part = charge(window, 0, 5)
    charge(window, 300, 1)
    window.advance(PERIOD_US)
    window.correct(part, -5)
    window.correct(part, 7)
    assert window.used == 1
    assert used_at(window, 300 + PERIOD_US) == 0


def test_there_is_no_wait_for_nothing(window):
    assert window.wait_us(0, 1) == 0
    charge(window, 10, 5)
    assert window.wait_us(10, 0) == 0
    assert window.wait_us(10, -1) == 0


def test_the_wait_ends_when_as_many_parts_have_gone_as_hold_the_excess(window):
    charge(window, 0, 2)
    charge(window, 15, 3)
    charge(window, 18, 1)
    charge(window, 40, 5)
    for excess, gone_us in [(1, 600), (2, 600), (3, 618), (6, 618), (7, 640), (11, 640)]:
        assert window.wait_us(50, excess) == gone_us - 50


def test_the_wait_passes_over_parts_of_which_all_was_given_back(window):
    part = charge(window, 0, 2)
    charge(window, 100, 2)
    window.correct(part, -2)
    assert window.wait_us(100, 1) == PERIOD_US


@pytest.mark.parametrize(("before", "after"), [("2026-09", "2026-10"), ("2026-12", "2027-01")])
def test_a_month_begins_anew(before, after):
    count = MonthCount()
    count.enter(before)
    count.charge(0, 5)
    count.enter(after)
    assert (count.month, count.used) == (after, 0)


def test_a_month_goes_on_while_it_lasts_and_where_the_calendar_goes_back():
    count = MonthCount()
    for month in ("2026-10", "2026-10", "2026-09"):
        count.enter(month)
        count.charge(0, 2)
    assert (count.month, count.used) == ("2026-10", 6)


def test_a_month_is_corrected_while_it_lasts():
    count = MonthCount()
    count.enter("2026-10")
    part = count.charge(0, 5)
    count.correct(part, -2)
    assert count.used == 3
    count.correct(part, 4)
    assert count.used == 7


def test_a_correction_of_a_month_that_is_over_is_without_effect():
    count = MonthCount()
    count.enter("2026-10")
    part = count.charge(0, 5)
    count.enter("2026-11")
    count.charge(0, 1)
    count.correct(part, -5)
    assert count.used == 1


def test_a_count_that_was_kept_goes_on():
    count = MonthCount()
    count.restore("2026-10", 7)
    count.enter("2026-10")
    part = count.charge(0, 1)
    assert count.used == 8
    count.restore("2026-10", 20)
    count.correct(part, -1)
    assert (count.month, count.used) == ("2026-10", 19)
    count.restore("2026-09", 3)
    count.correct(part, -1)
    assert (count.month, count.used) == ("2026-09", 3)


def test_what_is_under_way_counts_until_it_is_given_back():
    count = ParallelCount()
    first, second = count.charge(0, 1), count.charge(0, 2)
    count.correct(first, -1)
    assert count.used == 2
    count.correct(second, -2)
    assert count.used == 0


def test_its_parts_can_be_read(window):
    assert window.parts() == ()
    charge(window, 3, 2)
    charge(window, 5, 1)
    charge(window, WIDTH_US, 4)
    assert window.parts() == ((5, 3), (WIDTH_US, 4))
