# SPDX-License-Identifier: Apache-2.0
"""A process alone finds an engine's slots: by windows of what it sees itself."""

from taketurns.core.auto_slots import SlotFinder
from taketurns.core.engine_load import EngineLoad
from taketurns.units import US_PER_S

WINDOW_US = US_PER_S
"""Shortest window."""


class OwnFinder:
    """Implements :class:`taketurns.ports.coordinator.Finder`: feeds a finder with a load.

    Args:
        least: Fewest slots, at least 1.
        most: Most slots, at least ``least``.
        start: Slots to begin with.

    Attributes:
        finder: The finder.
        load: What the engine does.
    """

    __slots__ = ("_due_us", "finder", "load")

    def __init__(self, least: int, most: int, *, start: int) -> None:
        self.finder = SlotFinder(least, most, start=start)
        self.load = EngineLoad()
        self._due_us = 0

    @property
    def slots(self) -> int:
        """The limit at present."""
        return self.finder.slots

    @property
    def grows(self) -> bool:
        """False where the engine's slots are set."""
        return self.finder.grows

    @property
    def queue(self) -> int | None:
        """Requests thought to wait inside the engine, from the last window; None: unknown."""
        return self.finder.queue

    def started(self, now_us: int, *, stream: bool) -> None:
        """Count a request that is sent; ``stream``: a first byte will come long before its end."""
        load = self.load
        if load.in_flight == 0 and self._idle:
            self._begin(now_us)
        load.started(now_us, stream=stream)

    def refused(self, now_us: int) -> None:
        """Lower the limit to what the engine holds: it refused one more, which has ended."""
        self.finder.refused(self.load.in_flight)
        self._begin(now_us)

    def restart(self, now_us: int) -> None:
        """Begin again from the least: the engine was away and may have changed."""
        if self.grows:
            self.load.forget()
            self.finder.restart()
            self._begin(now_us)

    def bound(
        self, least: int, most: int, *, grows: bool = True, usable_percent: int = 100
    ) -> None:
        """Change what it was made with; see :meth:`SlotFinder.bound`."""
        self.finder.bound(least, most, grows=grows, usable_percent=usable_percent)

    def next_wake_us(self) -> int | None:
        """Return when :meth:`advance` has something to do; None where nothing runs."""
        at_rest = not self.grows and self.finder.at_rest
        return None if self._idle or at_rest else self._due_us

    def advance(self, now_us: int) -> None:
        """End the window if it's due, and move the limit by what it showed."""
        if now_us >= self._due_us:
            self.finder.take(self.load.cut(now_us))
            self._due_us = now_us + WINDOW_US

    @property
    def _idle(self) -> bool:
        load = self.load
        return load.in_flight == 0 and load.slot_us == 0 and self.finder.at_rest

    def _begin(self, now_us: int) -> None:
        self.load.begin(now_us)
        self._due_us = now_us + WINDOW_US
