# SPDX-License-Identifier: Apache-2.0
"""Tells how much of an engine can be used: by its answers, its health checks, and by order.

Sans I/O: events come with the time, and nothing here waits. One engine's states:

* ``up``: all its slots.
* ``broken``: it couldn't be connected to, or too many requests in a row failed
  by its fault. It gets nothing for a while, longer each time.
* ``trying``: that while is over; a single request shows whether it's back.
* ``starting``: it's back, and gets its slots little by little, as its caches are cold.
* ``paused``: it refuses requests (429, 503) though nothing of ours runs there. It's
  asked again in a moment: that is no outage.
* ``unhealthy``: its health checks fail. Only they bring it back.
* ``drained``: by order; what runs there goes on.

An engine that refuses connections fails in no time and would always be the
least loaded one: it would draw all requests to it. Hence the first failure to
connect takes it out. An answer that blames the request (4xx) never counts.
"""

from dataclasses import dataclass

from taketurns.units import US_PER_S

PAUSE_US = US_PER_S // 4
PAUSE_US_MAX = 8 * US_PER_S

STEPS = 10
"""In so many steps an engine that is back gets its slots."""


OUT = frozenset({"drained", "unhealthy", "broken"})
"""States in which an engine is out of service."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When an engine is out, and when it's back.

    Attributes:
        broken_after: Failed requests in a row, at least 1.
        unhealthy_after: Failed checks in a row, at least 1.
        healthy_after: Good checks in a row, at least 1.
        slow_start_us: How long an engine that is back takes to get all its slots.
    """

    broken_after: int = 5
    unhealthy_after: int = 3
    healthy_after: int = 2
    slow_start_us: int = 0


class Breaker:
    """One engine.

    Attributes:
        rules: When it's out; may be changed.
        drained: Set by order.
        unhealthy: Its health checks say so.
    """

    __slots__ = (
        "_back_us",
        "_checks",
        "_failures",
        "_open_until_us",
        "_opened",
        "_paused_until_us",
        "_trying",
        "drained",
        "rules",
        "unhealthy",
    )

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.drained = False
        self.unhealthy = False
        self._checks = 0
        self._failures = 0
        self._opened = 0
        self._open_until_us: int | None = None
        self._paused_until_us: int | None = None
        self._trying = False
        self._back_us: int | None = None

    def state(self, now_us: int) -> str:
        """Return its state in a word."""
        self._pass(now_us)
        if self.drained:
            return "drained"
        if self.unhealthy:
            return "unhealthy"
        if self._open_until_us is not None:
            return "broken"
        if self._paused_until_us is not None:
            return "paused"
        if self._trying:
            return "trying"
        return "up" if self._back_us is None else "starting"

    @property
    def calm(self) -> bool:
        """True where a request that goes well changes nothing, nor does time."""
        return not (
            self._failures
            or self._opened
            or self._trying
            or self._open_until_us is not None
            or self._paused_until_us is not None
            or self._back_us is not None
        )

    def usable(self, now_us: int) -> bool:
        """Tell whether it's in service: it gets requests, or will in a moment."""
        return self.state(now_us) not in OUT

    def slots(self, most: int, now_us: int) -> int:
        """Return how many of its slots it gets at present."""
        state = self.state(now_us)
        if state in OUT or state == "paused":
            return 0
        if state == "trying":
            return min(1, most)
        if self._back_us is None:
            return most
        step_us = max(1, self.rules.slow_start_us // STEPS)
        return min(most, max(1, most * ((now_us - self._back_us) // step_us) // STEPS))

    def next_wake_us(self, now_us: int) -> int | None:
        """Return when its slots change though nothing happens."""
        if self._open_until_us is not None:
            return self._open_until_us
        if self._paused_until_us is not None:
            return self._paused_until_us
        if self._back_us is None:
            return None
        step_us = max(1, self.rules.slow_start_us // STEPS)
        return self._back_us + ((now_us - self._back_us) // step_us + 1) * step_us

    def unreachable(self, now_us: int) -> None:
        """Note that it could not be connected to."""
        self._pass(now_us)
        self._open(now_us)

    def failed(self, now_us: int) -> None:
        """Note a request that failed by its fault."""
        self._pass(now_us)
        self._failures += 1
        if self._trying or self._failures >= self.rules.broken_after:
            self._open(now_us)

    def answered(self, now_us: int) -> bool:
        """Note that it answers; True where that brings it back."""
        self._pass(now_us)
        if not self._trying:
            return False
        self._trying = False
        self._come_back(now_us)
        return True

    def succeeded(self) -> None:
        """Note a request that went well to its end."""
        if self._open_until_us is None and not self._trying:
            self._failures = self._opened = 0

    def pause(self, now_us: int) -> None:
        """Give it a moment: it refuses requests though nothing of ours runs there."""
        self._paused_until_us = now_us + PAUSE_US

    def checked(self, well: bool, now_us: int) -> bool:  # noqa: FBT001 - a plain fact
        """Note a health check's result; True where that brings it back."""
        if well != self.unhealthy:
            self._checks = 0
            return False
        self._checks += 1
        limit = self.rules.healthy_after if well else self.rules.unhealthy_after
        if self._checks < limit:
            return False
        self._checks = 0
        self.unhealthy = not well
        if well:
            self._open_until_us = None
            self._trying = False
            self._come_back(now_us)
        return well

    def _open(self, now_us: int) -> None:
        if self._open_until_us is None:
            self._open_until_us = now_us + min(PAUSE_US << min(self._opened, 16), PAUSE_US_MAX)
            self._opened += 1
            self._trying = False
            self._back_us = None

    def _come_back(self, now_us: int) -> None:
        self._failures = 0
        self._back_us = now_us if self.rules.slow_start_us else None

    def _pass(self, now_us: int) -> None:
        if self._open_until_us is not None and now_us >= self._open_until_us:
            self._open_until_us = None
            self._trying = True
        if self._paused_until_us is not None and now_us >= self._paused_until_us:
            self._paused_until_us = None
        if self._back_us is not None and now_us - self._back_us >= self.rules.slow_start_us:
            self._back_us = None
