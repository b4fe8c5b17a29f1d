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

All counters look alike to who charges them, so that a request's limits can be
charged in one loop that touches no more than each one's last part.
"""

from taketurns.units import EXACT_INT_MAX

PARTS = 60
"""Parts of a sliding window."""

NEVER_US = EXACT_INT_MAX
"""Later than any instant."""


class Part:
    """What a charge was counted in, to be named when it's corrected.

    Attributes:
        amount: What was taken in it, as far as is known.
        last_us: When something was last taken in it.
        counts: False once it's over.
    """

    __slots__ = ("amount", "counts", "last_us")

    def __init__(self, last_us: int = 0) -> None:
        self.amount = 0
        self.last_us = last_us
        self.counts = True


class Counter:
    """Counts what was taken, in one part that never ends.

    Attributes:
        used: What counts against the limit since the last :meth:`advance`.
        part: In which is counted at present.
        end_us: Where that ends: from then on :meth:`begin` makes the next one.
        until_us: Nothing is forgotten before: until then :meth:`advance` does nothing.
    """

    __slots__ = ("end_us", "part", "until_us", "used")

    def __init__(self) -> None:
        self.used = 0
        self.part = Part()
        self.end_us = NEVER_US
        self.until_us = NEVER_US

    def advance(self, now_us: int) -> None:
        """Forget what is too old to count."""

    def begin(self, now_us: int) -> Part:
        """Begin a part at ``now_us``; the last one is over, and nothing of it counts."""
        self.part.counts = False
        self.part = Part(now_us)
        self.used = 0
        return self.part

    def charge(self, now_us: int, amount: int) -> Part:
        """Count an amount at ``now_us``; return the part it's counted in."""
        part = self.part if now_us < self.end_us else self.begin(now_us)
        # A clock that goes back makes nothing count any shorter.
        part.last_us = max(part.last_us, now_us)
        part.amount += amount
        self.used += amount
        return part

    def correct(self, part: Part, difference: int) -> None:
        """Count more, or less, in the part that was charged; without effect once that is over."""
        if part.counts:
            part.amount += difference
            self.used += difference


class SlidingWindow(Counter):
    """Counts what was taken in the last ``period_us``."""

    __slots__ = ("_parts", "_period_us", "_width_us")

    def __init__(self, period_us: int) -> None:
        super().__init__()
        self._period_us = period_us
        # Rounded up, so that a period touches at most 61 parts.
        self._width_us = -(-period_us // PARTS)
        self._parts: list[Part] = []
        self.end_us = 0

    def advance(self, now_us: int) -> None:
        """Forget what is older than the window. O(1), amortised."""
        if now_us < self.until_us:
            return
        parts = self._parts
        old_us = now_us - self._period_us
        gone = 0
        for part in parts:
            if part.last_us > old_us:
                break
            self.used -= part.amount
            part.counts = False
            gone += 1
        del parts[:gone]
        self.until_us = parts[0].last_us + self._period_us if parts else NEVER_US

    def begin(self, now_us: int) -> Part:
        """Begin a part at ``now_us``; those before it go on counting."""
        self.end_us = (now_us // self._width_us + 1) * self._width_us
        self.part = part = Part(now_us)
        if not self._parts:
            self.until_us = now_us + self._period_us
        self._parts.append(part)
        return part

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


class MonthCount(Counter):
    """Counts what was taken in a month that the caller names.

    Attributes:
        month: The month it's counted for, such as ``"2026-11"``; "" before the first.
    """

    __slots__ = ("month",)

    def __init__(self) -> None:
        super().__init__()
        self.month = ""

    def enter(self, month: str) -> None:
        """Begin anew where a later month has begun; months are ordered as text."""
        if month > self.month:
            self.restore(month, 0)

    def restore(self, month: str, used: int) -> None:
        """Go on from a count that was kept."""
        if month != self.month:
            self.month = month
            self.begin(0)
        self.used = used


class ParallelCount(Counter):
    """Counts what is under way, until it's given back."""

    __slots__ = ()
