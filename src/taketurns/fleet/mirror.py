# SPDX-License-Identifier: Apache-2.0
"""What one gateway has granted of the limits that it shares, and its part of them when alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from taketurns.core.limit_rules import LimitRule, Span
from taketurns.core.limits import Admitted, Status
from taketurns.core.windows import Part, SlidingWindow
from taketurns.fleet.limit_calls import Counted, Place

V = TypeVar("V")


class Mirror:
    """Sliding windows of what this gateway has granted, by its own clock.

    Bounded by rules x tenants: both are configured.
    """

    def __init__(self) -> None:
        self._windows: dict[Place, SlidingWindow] = {}

    def charge(self, place: Place, amount: int, now_us: int) -> tuple[SlidingWindow, Part]:
        """Count an amount; return where, for :meth:`correct`."""
        window = self._windows.get(place)
        if window is None:
            window = self._windows[place] = SlidingWindow(place.rule.period_us)
        window.advance(now_us)
        return window, window.charge(now_us, amount)

    def correct(self, place: Place, charged: tuple[SlidingWindow, Part], difference: int) -> bool:
        """Count more, or less; False where that window was taken away meanwhile."""
        window, part = charged
        window.correct(part, difference)
        return self._windows.get(place) is window

    def ages(self, place: Place, now_us: int) -> list[tuple[int, int]]:
        """Return age in microseconds and amount of what counts in a window."""
        window = self._windows.get(place)
        return [] if window is None else ages(window, now_us)

    def holds(self, place: Place, now_us: int) -> bool:
        """Tell whether anything counts in a window."""
        window = self._windows.get(place)
        if window is None:
            return False
        window.advance(now_us)
        return bool(window.parts())

    def places(self) -> tuple[Place, ...]:
        """Return where something was ever counted."""
        return tuple(self._windows)

    def take(self, place: Place) -> SlidingWindow | None:
        """Take a window away."""
        return self._windows.pop(place, None)

    def keep(self, rules: Mapping[str, LimitRule]) -> None:
        """Forget the windows of other rules."""
        self._windows = moved(self._windows, rules)


def ages(window: SlidingWindow, now_us: int) -> list[tuple[int, int]]:
    """Return age in microseconds and amount of what counts in a window."""
    window.advance(now_us)
    return [(now_us - last_us, amount) for last_us, amount in window.parts()]


def moved(by_place: Mapping[Place, V], rules: Mapping[str, LimitRule]) -> dict[Place, V]:
    """Return what is known of places whose rules go on, whatever their limits are now.

    Args:
        by_place: What is known.
        rules: The rules from here on, by name.
    """
    kept: dict[Place, V] = {}
    for place, value in by_place.items():
        rule = rules.get(place.rule.name)
        if rule is not None and rule.counts == place.rule.counts:
            kept[Place(place.tag, rule)] = value
    return kept


class Mode(Enum):
    """Who decides."""

    SHARED = "shared"
    ALONE = "alone"
    BOTH = "both"


class Fellows(NamedTuple):
    """The gateways that share the limits, as they were last known.

    Attributes:
        rank: This one's place among them.
        number: How many there are, this one included.
    """

    rank: int = 0
    number: int = 1

    def part(self, amount: int) -> int:
        """Return this gateway's part: all parts together are the amount."""
        return amount // self.number + (self.rank < amount % self.number)


class Outage:
    """What a gateway may grant while it's alone, by what it knew when that began.

    In the first period of a rule it's a part of what was left then; afterwards a part of the
    limit. So all together never grant more than the limit in any window, as far as each had seen
    what the others took.

    Attributes:
        seen: What each window held when it was last seen, and when that was.
        since_us: When the outage began.
    """

    def __init__(self) -> None:
        self.seen: dict[Place, tuple[int, int]] = {}
        self.since_us = 0
        self._seen_then: dict[Place, tuple[int, int]] = {}

    def begin(self, now_us: int) -> None:
        """Let an outage begin, with what has been seen until now.

        What is seen later, of a store that may have lost all, widens nobody's part.
        """
        self.since_us = now_us
        self._seen_then = dict(self.seen)

    def allowance(self, place: Place, fellows: Fellows, now_us: int) -> int:
        """Return how much this gateway may grant on its own in a window."""
        rule = place.rule
        left = rule.max
        if rule.span is Span.SLIDING and now_us < self.since_us + rule.period_us:
            used, seen_us = self._seen_then.get(place, (0, 0))
            if seen_us > self.since_us - rule.period_us:
                left = max(0, rule.max - used)
        return fellows.part(left)


@dataclass(slots=True)
class Taken:
    """What one request was charged.

    Attributes:
        statuses: How its rules stand with it.
        shadowed: Rules in shadow mode that would have refused it.
    """

    statuses: tuple[Status, ...]
    shadowed: tuple[Status, ...]
    request_id: str
    groups: tuple[tuple[Counted, ...], ...] = ()
    alone: Admitted | None = None
    own: list[tuple[Place, int, tuple[SlidingWindow, Part]]] = field(default_factory=list)
    unsent: list[tuple[Place, int, tuple[SlidingWindow, Part]]] = field(default_factory=list)
    parallel: list[Place] = field(default_factory=list)
