# SPDX-License-Identifier: Apache-2.0
"""Time as something that calls back: the port, and the virtual clock of tests and simulator."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol


class Timer(Protocol):
    """A call that was asked for and can be taken back."""

    def cancel(self) -> None:
        """Take the call back; without effect once it was made."""
        ...


class Clock(Protocol):
    """Source of time for one process.

    Contract: ``now_us`` never goes back; callbacks run in the order of their
    times, those of equal times in the order in which they were asked for; a
    callback is never run inside the ``call_at`` that asks for it.
    """

    def now_us(self) -> int:
        """Return monotonic microseconds since an arbitrary start."""
        ...

    def call_at(self, when_us: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` once, at ``when_us`` or as soon after as can be."""
        ...


class _VirtualTimer(list[Any]):
    """Implements :class:`Timer`: when, number and callback, or None; in that order in the heap."""

    __slots__ = ()

    def cancel(self) -> None:
        self[2] = None


class VirtualClock:
    """Implements :class:`Clock`; time passes only when it is told to.

    Args:
        start_us: Time at the start.
    """

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = start_us
        self._timers: list[_VirtualTimer] = []
        self._numbers = count()

    def now_us(self) -> int:
        return self._now_us

    def call_at(self, when_us: int, callback: Callable[[], None]) -> Timer:
        timer = _VirtualTimer((when_us, next(self._numbers), callback))
        heappush(self._timers, timer)
        return timer

    def run_until(self, end_us: int) -> None:
        """Run what is due up to and including ``end_us``, then stand at ``end_us``."""
        self._run(end_us)
        self._now_us = max(self._now_us, end_us)

    def run(self) -> None:
        """Run until no timer is left."""
        self._run(float("inf"))

    def _run(self, end_us: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= end_us:
            when_us, _, callback = heappop(timers)
            if callback is not None:
                self._now_us = max(self._now_us, when_us)
                callback()
