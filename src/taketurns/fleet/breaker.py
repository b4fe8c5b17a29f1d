# SPDX-License-Identifier: Apache-2.0
"""Says when a store is not worth asking: after a few failures, until a probe succeeds."""

from taketurns.units import US_PER_S

FAILURES_MAX = 3
"""Failures, less successes since, that open it."""

PROBE_US = US_PER_S
"""Time between probes."""


class Breaker:
    """Counts how a store's calls end. A call that takes too long is a failure.

    Each success takes one failure back, so that a store which fails in more than
    half of its calls opens it, and one which fails now and then doesn't.
    Source: M. Nygard, "Release It!", 2018, chapter 5 (circuit breaker).

    Attributes:
        open: True while the store isn't to be asked.
    """

    __slots__ = ("_failures", "_probed_us", "open")

    def __init__(self) -> None:
        self.open = False
        self._failures = 0
        self._probed_us = 0

    def succeeded(self) -> bool:
        """Count a call that was answered in time; return True if that closes it."""
        if self.open:
            self.open = False
            self._failures = 0
            return True
        self._failures = max(0, self._failures - 1)
        return False

    def failed(self, now_us: int) -> bool:
        """Count a call that failed; return True if that opens it."""
        if self.open:
            return False
        self._failures += 1
        self.open = self._failures >= FAILURES_MAX
        self._probed_us = now_us
        return self.open

    def wait_us(self, now_us: int) -> int:
        """Return how long it is until the next probe is due; 0: now."""
        return max(0, self._probed_us + PROBE_US - now_us)

    def probing(self, now_us: int) -> None:
        """Note that a probe begins."""
        self._probed_us = now_us
