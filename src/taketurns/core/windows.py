# SPDX-License-Identifier: Apache-2.0
"""Counters of what was taken: in a sliding window, in a month, and by what is under way.

A *sliding window* is cut into 60 parts. All that was taken in one part counts
until the last of it is as old as the period. So whatever was taken counts for
at least a period: no half-open window of that length, whatever its phase, holds
more than was counted. And it counts for at most a period and a part: a sender
who always has more gets at least 60/61 of the limit, and one who sends evenly
and at most once in a part gets all of it, as if each time were kept. (A part
has whole microseconds, rounded up.)

A *month* counts from one instant to another that the caller names: calendars
are none of the core's business. *Parallel* counts what is under way.

What was counted can be corrected later, in the part that was charged. All is
integers: other stores that keep the same numbers decide the same. Memory: two
integers for each of the at most 61 parts in which something was taken.
"""

PARTS = 60
"""Parts of a sliding window."""


class Part:
    """What a charge was counted in, to be named when it's corrected.

    Attributes:
        amount: What was taken in this part of a sliding window, as far as is known.
        last_us: When something was last taken in it.
    """

    __slots__ = ("amount", "last_us")

    def __init__(self, last_us: int = 0) -> None:
        self.amount = 0
        self.last_us = last_us


class SlidingWindow:
    """Counts what was taken in the last ``period_us``.

    Attributes:
        used: What counts against the limit since the last :meth:`advance`.
    """

    __slots__ = ("_end_us", "_now_us", "_parts", "_period_us", "_width_us", "used")

    def __init__(self, period_us: int) -> None:
        self._period_us = period_us
        # Rounded up, so that a period touches at most 61 parts.
        self._width_us = -(-period_us // PARTS)
        self._parts: list[Part] = []
        # Where the last part ends; it's counted still before that.
        self._end_us = 0
        self._now_us = 0
        self.used = 0

    def advance(self, now_us: int) -> None:
        """Forget what is older than the window. A clock that goes back is taken as standing."""
        if now_us <= self._now_us:
            return
        self._now_us = now_us
        parts = self._parts
        old_us = now_us - self._period_us
        if not parts or parts[0].last_us > old_us:
            return
        gone = 0
        for part in parts:
            if part.last_us > old_us:
                break
            self.used -= part.amount
            gone += 1
        del parts[:gone]

    def charge(self, amount: int) -> Part:
        """Count an amount at the instant of the last advance; return the part it's counted in."""
        now_us = self._now_us
        if now_us < self._end_us:
            part = self._parts[-1]
            part.last_us = now_us
        else:
            self._end_us = (now_us // self._width_us + 1) * self._width_us
            part = Part(now_us)
            self._parts.append(part)
        part.amount += amount
        self.used += amount
        return part

    def correct(self, part: Part, difference: int) -> None:
        """Count more, or less, in the part that was charged; without effect once that is over."""
        if part.last_us > self._now_us - self._period_us:
            part.amount += difference
            self.used += difference

    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return what is counted, the oldest first: when it was last taken, and how much."""
        return tuple((part.last_us, part.amount) for part in self._parts)

    def wait_us(self, now_us: int, excess: int) -> int:
        """Return how long it takes until at least ``excess`` of what is counted has gone.

        Args:
            now_us: The instant of the last advance.
            excess: At most what is counted; 0 or less: no wait.
        """
        until_us = now_us
        for part in self._parts:
            if excess <= 0:
                break
            excess -= part.amount
            until_us = part.last_us + self._period_us
        return until_us - now_us


class MonthCount:
    """Counts what was taken in a month that the caller names.

    Attributes:
        month: The month it's counted for, such as ``"2026-11"``; "" before the first.
        used: What counts against the limit.
    """

    __slots__ = ("_part", "month", "used")

    def __init__(self) -> None:
        self.month = ""
        self.used = 0
        self._part = Part()

    def advance(self, month: str) -> None:
        """Begin anew where a later month has begun; months are ordered as text."""
        if month > self.month:
            self.restore(month, 0)

    def restore(self, month: str, used: int) -> None:
        """Go on from a count that was kept."""
        if month != self.month:
            self.month = month
            self._part = Part()
        self.used = used

    def charge(self, amount: int) -> Part:
        """Count an amount in the month of the last advance; return what stands for that month."""
        self.used += amount
        return self._part

    def correct(self, part: Part, difference: int) -> None:
        """Count more, or less, in the month that was charged; without effect once that is over."""
        if part is self._part:
            self.used += difference


class ParallelCount:
    """Counts what is under way.

    Attributes:
        used: What counts against the limit.
    """

    __slots__ = ("_part", "used")

    def __init__(self) -> None:
        self.used = 0
        self._part = Part()

    def charge(self, amount: int) -> Part:
        """Count an amount until it's given back."""
        self.used += amount
        return self._part

    def correct(self, part: Part, difference: int) -> None:
        """Count more, or less; there is only one part."""
        assert part is self._part
        self.used += difference


Counter = SlidingWindow | MonthCount | ParallelCount
