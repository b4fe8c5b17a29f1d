# SPDX-License-Identifier: Apache-2.0
"""Takes engines that can't be reached out of service for a while, and tries them again.

An engine that refuses connections fails in no time and would always be the
least loaded one: it would draw all requests to it. So it gets no slot for a
while, longer each time; then a single one, to try it; then all of them again.
"""

from collections.abc import Callable
from typing import Literal

from taketurns.ports.clock import Clock, Timer
from taketurns.units import US_PER_S

PAUSE_US = US_PER_S // 4
PAUSE_US_MAX = 8 * US_PER_S

AUTO_SLOTS = 8

ATTEMPTS = 3
"""Engines that a request is sent to, as long as none of them could be reached."""


class _Engine:
    """One engine: its slots as configured, and how it fares."""

    def __init__(self) -> None:
        self.slots = 0
        self.failures = 0
        self.timer: Timer | None = None
        self.pause: Timer | None = None


class Availability:
    """Decides how many slots each engine of a pool has at present.

    Args:
        set_engine: Gives an engine of the pool so many slots.
        clock: Calls back when an engine is to be tried again.
    """

    def __init__(self, set_engine: Callable[[str, int], None], clock: Clock) -> None:
        self._set_engine = set_engine
        self._clock = clock
        self._engines: dict[str, _Engine] = {}

    def set_slots(self, name: str, slots: int | Literal["auto"]) -> None:
        """Say how many slots an engine has while all is well."""
        engine = self._engines.setdefault(name, _Engine())
        if slots == "auto":
            slots = AUTO_SLOTS
        engine.slots = slots
        if engine.failures == 0 and engine.pause is None:
            self._set_engine(name, slots)

    @property
    def any(self) -> bool:
        """True unless every engine is out of service."""
        return any(engine.timer is None for engine in self._engines.values())

    def unreachable(self, name: str) -> None:
        """Take an engine out of service for a while; it could not be connected to."""
        engine = self._engines[name]
        if engine.timer is not None:
            return
        pause_us = min(PAUSE_US << engine.failures, PAUSE_US_MAX)
        engine.failures += 1
        self._set_engine(name, 0)
        engine.timer = self._clock.call_at(
            self._clock.now_us() + pause_us, lambda: self._try_again(name)
        )

    def full(self, name: str) -> None:
        """Start nothing more on an engine for a moment: it refused a request for want of room."""
        engine = self._engines[name]
        if engine.timer is not None or engine.pause is not None:
            return
        self._set_engine(name, 0)
        engine.pause = self._clock.call_at(
            self._clock.now_us() + PAUSE_US, lambda: self._go_on(name)
        )

    def reached(self, name: str) -> None:
        """Give an engine all its slots: it has answered."""
        engine = self._engines[name]
        if engine.failures and engine.timer is None and engine.pause is None:
            engine.failures = 0
            self._set_engine(name, engine.slots)

    def close(self) -> None:
        """Try nothing any more."""
        for engine in self._engines.values():
            for timer in (engine.timer, engine.pause):
                if timer is not None:
                    timer.cancel()

    def _go_on(self, name: str) -> None:
        engine = self._engines[name]
        engine.pause = None
        if engine.timer is None and engine.failures == 0:
            self._set_engine(name, engine.slots)

    def _try_again(self, name: str) -> None:
        engine = self._engines[name]
        engine.timer = None
        self._set_engine(name, min(1, engine.slots))
