# SPDX-License-Identifier: Apache-2.0
"""What an engine does in a window of time, by what we see of it: work, slots in use, its queue.

The count of what we have in flight is the truth here. The engine's own gauge
of what waits inside it counts while it's fresh; else its queue follows, by
Little's law, from the streams that wait for their first byte, less those that
would if each waited as long as they did at best.
"""

from statistics import median_low

from taketurns.units import US_PER_S

FIRST_BYTES_MAX = 64
"""Most times to a first byte that are kept of a window."""

FIRST_BYTES_MIN = 4
"""With fewer in a window, its middle says nothing."""

GAUGE_FRESH_US = 3 * US_PER_S
"""How long a gauge's reading counts; after that it's unknown: neither idle nor full."""

FORGETS = 256
"""The best time to a first byte moves by one part in so many towards a window's, if that is more:
engines and prompts change."""


class EngineLoad:
    """One engine's load.

    Attributes:
        in_flight: Requests that run there.
        since_us: When the window began.
        work: Tokens that were produced in the window.
        slot_us: Slot time that was used in it.
        signs: First bytes and pieces of work seen in it.
    """

    __slots__ = (
        "_base_us",
        "_begun",
        "_first_bytes",
        "_gauge",
        "_gauge_us",
        "_pending",
        "_pending_us",
        "_seen_us",
        "in_flight",
        "signs",
        "since_us",
        "slot_us",
        "work",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        self.since_us = 0
        self.work = self.slot_us = self.signs = 0
        self._seen_us = 0
        self._pending = self._pending_us = self._begun = 0
        self._first_bytes: list[int] = []
        self._base_us: int | None = None
        self._gauge = 0
        self._gauge_us: int | None = None

    def started(self, now_us: int, *, stream: bool) -> None:
        """Count a request that is sent; ``stream``: a first byte will come long before its end."""
        self.until(now_us)
        self.in_flight += 1
        self._pending += stream

    def ended(self, now_us: int, *, pending: bool) -> None:
        """Count one that runs no longer; ``pending``: it was a stream without a first byte."""
        self.until(now_us)
        self.in_flight -= 1
        self._pending -= pending

    def first_byte(self, took_us: int, now_us: int) -> None:
        """Note how long after its start a stream began; once for each."""
        self.until(now_us)
        self._pending -= 1
        self._begun += 1
        self.signs += 1
        if len(self._first_bytes) < FIRST_BYTES_MAX:
            self._first_bytes.append(took_us)

    def produced(self, tokens: int) -> None:
        """Count work as it's done, in tokens or whatever grows in proportion. O(1)."""
        self.work += tokens
        self.signs += 1

    def gauge(self, waiting: int, now_us: int) -> None:
        """Note how many requests wait inside the engine by its own account."""
        self._gauge = waiting
        self._gauge_us = now_us

    def until(self, now_us: int) -> None:
        """Let time pass."""
        passed_us = now_us - self._seen_us
        self.slot_us += self.in_flight * passed_us
        self._pending_us += self._pending * passed_us
        self._seen_us = now_us

    def begin(self, now_us: int) -> None:
        """Begin a window."""
        self.since_us = self._seen_us = now_us
        self.work = self.slot_us = self.signs = 0
        self._pending_us = self._begun = 0
        self._first_bytes.clear()

    def forget(self) -> None:
        """Forget what holds across windows: the engine was away."""
        self._base_us = self._gauge_us = None

    def queue(self, now_us: int) -> int | None:
        """Return how many requests wait inside the engine; None: unknown."""
        if len(self._first_bytes) >= FIRST_BYTES_MIN:
            middle_us = median_low(self._first_bytes)
            base_us = self._base_us
            if base_us is None or middle_us <= base_us:
                self._base_us = middle_us
            else:
                self._base_us = base_us + (middle_us - base_us) // FORGETS
        if self._gauge_us is not None and now_us - self._gauge_us <= GAUGE_FRESH_US:
            return self._gauge
        if self._base_us is None:
            return None
        return max(0, self._pending_us - self._begun * self._base_us) // (now_us - self.since_us)
