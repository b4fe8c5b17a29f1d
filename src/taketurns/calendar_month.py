# SPDX-License-Identifier: Apache-2.0
"""Calendar months in a time zone: which one it is, and when it ends.

A month begins at midnight of its first day. Where clocks are put forward over
that midnight, it's the moment that would have been midnight; where they are
put back over it, the first of the two. So months follow each other without gap
or overlap, whatever a zone does to its clocks.
"""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

MONTHS_A_YEAR = 12


def month_of(instant: datetime, zone: tzinfo) -> str:
    """Return the month in which an instant lies, such as ``"2026-11"``.

    Args:
        instant: Any, with a time zone of its own.
        zone: Whose calendar counts.
    """
    year, month = _month_at(instant, zone)
    return f"{year:04}-{month:02}"


def month_end(instant: datetime, zone: tzinfo) -> datetime:
    """Return when the month in which an instant lies ends and the next begins, in UTC."""
    return _begin(*_next(*_month_at(instant, zone)), zone)


class MonthClock:
    """Says which month it is; called for each request, it looks at the calendar once a month.

    It never goes back to a month that is over, even where the wall clock does.

    Args:
        zone: Whose calendar counts.
        wall: Returns the time of day, with a time zone of its own.
    """

    def __init__(self, zone: tzinfo, wall: Callable[[], datetime]) -> None:
        self._zone = zone
        self._wall = wall
        self._month = ""
        self._end = datetime.min.replace(tzinfo=UTC)

    def __call__(self) -> str:
        """Return the month that it is, such as ``"2026-11"``."""
        instant = self._wall()
        if instant >= self._end:
            self._month = month_of(instant, self._zone)
            self._end = month_end(instant, self._zone)
        return self._month

    @property
    def end(self) -> datetime:
        """When the month that was told last ends, in UTC."""
        return self._end


def _month_at(instant: datetime, zone: tzinfo) -> tuple[int, int]:
    local = instant.astimezone(zone)
    year, month = local.year, local.month
    # The calendar on the wall may show the old month a second time, or the new one early.
    if instant >= _begin(*_next(year, month), zone):
        return _next(year, month)
    if instant < _begin(year, month, zone):
        return _previous(year, month)
    return year, month


def _begin(year: int, month: int, zone: tzinfo) -> datetime:
    return datetime(year, month, 1, tzinfo=zone).astimezone(UTC)


def _next(year: int, month: int) -> tuple[int, int]:
    return (year, month + 1) if month < MONTHS_A_YEAR else (year + 1, 1)


def _previous(year: int, month: int) -> tuple[int, int]:
    return (year, month - 1) if month > 1 else (year - 1, MONTHS_A_YEAR)
