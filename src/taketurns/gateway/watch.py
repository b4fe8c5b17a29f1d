# SPDX-License-Identifier: Apache-2.0
"""Looks once in a while at the answers under way: one timer for all of them, none for each.

What it finds are streams that are silent, clients that don't read, and
requests whose charge grows with time. None of that is urgent to the
millisecond, and looking costs the path of each chunk nothing.
"""

from dataclasses import dataclass
from typing import Protocol

from taketurns.ports.clock import Clock, Timer
from taketurns.units import US_PER_S

LOOK_US_MAX = US_PER_S
"""Longest from one look to the next."""

LOOKS = 4
"""Looks in the shortest time that is looked for: so much too late is near enough."""


@dataclass(frozen=True, slots=True)
class RelayRules:
    """How streams are kept.

    Attributes:
        ping_us: Silence after which a comment is sent; None: never.
        unread_us: How long the client of a stream may leave it unread: meanwhile it
            holds an engine's slot.
    """

    ping_us: int | None = 15 * US_PER_S
    unread_us: int = 60 * US_PER_S


class Watched(Protocol):
    """An answer under way."""

    def look(self, passed_us: int, rules: RelayRules) -> None:
        """Do what is due; never raises.

        Args:
            passed_us: Time since the last look, or since it was added: the period, about.
            rules: How streams are kept.
        """
        ...


class Watch:
    """Looks at each answer once a period, as long as there are any.

    Args:
        clock: The process's clock.
        rules: How streams are kept.
    """

    def __init__(self, clock: Clock, rules: RelayRules) -> None:
        self._clock = clock
        self._rules = rules
        shortest_us = min(us for us in (rules.ping_us, rules.unread_us) if us is not None)
        self._period_us = max(1, min(shortest_us // LOOKS, LOOK_US_MAX))
        self._answers: dict[Watched, None] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Watched) -> None:
        """Look at an answer from now on."""
        self._answers[answer] = None
        if self._timer is None:
            self._arm()

    def remove(self, answer: Watched) -> None:
        """Look at it no more."""
        # The timer runs out by itself: the next answer may come any moment.
        self._answers.pop(answer, None)

    def _arm(self) -> None:
        self._timer = self._clock.call_at(self._clock.now_us() + self._period_us, self._look)

    def _look(self) -> None:
        self._timer = None
        for answer in list(self._answers):
            answer.look(self._period_us, self._rules)
        if self._answers and self._timer is None:
            self._arm()
