# SPDX-License-Identifier: Apache-2.0
"""Months follow each other without gap or overlap, in every zone and whatever its clocks do."""

import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.calendar_month import MonthClock, month_end, month_of

MOMENT = timedelta(microseconds=1)
ZONES = sorted(zoneinfo.available_timezones() - {"localtime"})


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


EPOCH = utc(1970, 1, 2)
MINUTES = 90 * 365 * 24 * 60


@pytest.mark.parametrize(
    ("zone", "instant", "month", "end"),
    [
        ("UTC", utc(2026, 11, 1), "2026-11", utc(2026, 12, 1)),
        ("UTC", utc(2026, 12, 31, 23, 59, 59), "2026-12", utc(2027, 1, 1)),
        # Leap days: 2024 and 2000 have one, 2100 and 2023 have none.
        ("UTC", utc(2024, 2, 29, 23, 59), "2024-02", utc(2024, 3, 1)),
        ("UTC", utc(2000, 2, 29), "2000-02", utc(2000, 3, 1)),
        ("UTC", utc(2100, 2, 28, 23), "2100-02", utc(2100, 3, 1)),
        ("UTC", utc(2023, 2, 28, 23), "2023-02", utc(2023, 3, 1)),
        # 14 hours before and 11 hours after UTC.
        ("Pacific/Kiritimati", utc(2026, 10, 31, 9, 59), "2026-10", utc(2026, 10, 31, 10)),
        ("Pacific/Kiritimati", utc(2026, 10, 31, 10), "2026-11", utc(2026, 11, 30, 10)),
        ("Pacific/Pago_Pago", utc(2026, 11, 1, 10, 59), "2026-10", utc(2026, 11, 1, 11)),
        # Kiritimati had no 31 December 1994.
        ("Pacific/Kiritimati", utc(1994, 12, 31, 9, 59), "1994-12", utc(1994, 12, 31, 10)),
        # Months in which the clocks change: an hour shorter, an hour longer.
        ("Europe/Berlin", utc(2026, 3, 1), "2026-03", utc(2026, 3, 31, 22)),
        ("Europe/Berlin", utc(2026, 10, 1), "2026-10", utc(2026, 10, 31, 23)),
        ("Asia/Kathmandu", utc(2026, 10, 31, 18, 14), "2026-10", utc(2026, 10, 31, 18, 15)),
        # Midnight of 1 October 2017 did not exist in Asuncion: 00:00 was 01:00.
        ("America/Asuncion", utc(2017, 10, 1, 3, 59), "2017-09", utc(2017, 10, 1, 4)),
        ("America/Asuncion", utc(2017, 10, 1, 4), "2017-10", utc(2017, 11, 1, 3)),
        # In St. John's the clocks went from 00:01 on 1 November 2009 back to 23:01.
        ("America/St_Johns", utc(2009, 11, 1, 2, 29), "2009-10", utc(2009, 11, 1, 2, 30)),
        ("America/St_Johns", utc(2009, 11, 1, 3, 0), "2009-11", utc(2009, 12, 1, 3, 30)),
    ],
)
def test_a_month_ends_where_the_zones_calendar_says(zone, instant, month, end):
    zone = ZoneInfo(zone)
    assert month_of(instant, zone) == month
    assert month_end(instant, zone) == end
    assert month_end(instant, zone).tzinfo is UTC


def following(month):
    year, number = map(int, month.split("-"))
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


@given(
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    instant=st.integers(0, MINUTES).map(lambda minutes: EPOCH + timedelta(minutes=minutes)),
)
def test_a_month_lasts_to_its_end_and_the_next_begins_there(zone, instant):
    month, end = month_of(instant, zone), month_end(instant, zone)
    assert instant < end <= instant + timedelta(days=33)
    assert month_of(end - MOMENT, zone) == month
    assert month_end(end - MOMENT, zone) == end
    assert month_of(end, zone) == following(month)
    assert month_of(instant.astimezone(timezone(timedelta(hours=-9))), zone) == month


def test_no_zone_has_a_gap_or_an_overlap_where_its_clocks_change_near_a_months_end():
    for name in ("America/St_Johns", "America/Asuncion", "Pacific/Kiritimati", "Asia/Amman"):
        zone = ZoneInfo(name)
        instant = utc(1985, 1, 15)
        while instant.year < 2030:
            end = month_end(instant, zone)
            near = [end + timedelta(minutes=minutes) for minutes in range(-90, 91)]
            months = [month_of(moment, zone) for moment in near]
            assert months == sorted(months)
            assert set(months) == {month_of(instant, zone), following(month_of(instant, zone))}
            instant = end + timedelta(days=1)


class ForwardOverMidnight(tzinfo):
    """UTC until 23:30 of the last of a month, when its clocks say 00:30; none such is known."""

    def __init__(self, jump):
        self.jump = jump

    def utcoffset(self, local):
        local = local.replace(tzinfo=None)
        early = local < self.jump.replace(tzinfo=None) + timedelta(hours=1)
        return timedelta(hours=0 if early else 1)

    def dst(self, local):
        return timedelta()

    def fromutc(self, local):
        skipped = local.replace(tzinfo=UTC) >= self.jump
        return local + timedelta(hours=1 if skipped else 0)


@pytest.mark.parametrize(
    ("jump", "months"),
    [
        (utc(2026, 11, 30, 23, 30), ("2026-11", "2026-12")),
        (utc(2026, 12, 31, 23, 30), ("2026-12", "2027-01")),
    ],
)
def test_clocks_put_forward_over_midnight_begin_no_month_early(jump, months):
    zone, midnight = ForwardOverMidnight(jump), jump + timedelta(minutes=30)
    assert jump.astimezone(zone).minute == 30
    assert month_of(jump.astimezone(zone), UTC) == months[0]
    for minutes in (-31, -30, -1):
        assert month_of(midnight + timedelta(minutes=minutes), zone) == months[0]
        assert month_end(midnight + timedelta(minutes=minutes), zone) == midnight
    assert month_of(midnight, zone) == months[1]


def test_the_clock_tells_the_month_and_when_it_ends():
    wall = [utc(2026, 11, 30, 23, 59, 59)]
    clock = MonthClock(UTC, lambda: wall[0])
    assert (clock(), clock.end) == ("2026-11", utc(2026, 12, 1))
    wall[0] = utc(2026, 12, 1) - MOMENT
    assert clock() == "2026-11"
    wall[0] = utc(2026, 12, 1)
    assert (clock(), clock.end) == ("2026-12", utc(2027, 1, 1))


def test_a_wall_clock_that_goes_back_does_not_bring_a_month_back():
    wall = [utc(2026, 12, 1)]
    clock = MonthClock(ZoneInfo("UTC"), lambda: wall[0])
    assert clock() == "2026-12"
    wall[0] = utc(2026, 11, 30, 23)
    assert clock() == "2026-12"
