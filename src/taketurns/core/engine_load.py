# SPDX-License-Identifier: Apache-2.0
"""What a process sees an engine do, window by window: work, slots in use, first bytes, gauge."""

from taketurns.core.signs import FIRST_BYTES_MAX, Signs


class EngineLoad:
    """One engine's load. The count of what is in flight here is never guessed.

    Attributes:
        in_flight: Requests that run there.
        since_us: When the window began.
        work: Tokens that were produced in the window.
        slot_us: Slot time that was used in it.
        seen: First bytes and pieces of work in it.
    """

    __slots__ = (
        "_begun",
        "_first_bytes",
        "_gauge",
        "_gauge_us",
        "_pending",
        "_pending_us",
        "_seen_us",
        "in_flight",
        "seen",
        "since_us",
        "slot_us",
        "work",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        self.since_us = 0
        self.work = self.slot_us = self.seen = 0
        self._seen_us = 0
        self._pending = self._pending_us = self._begun = 0
        self._first_bytes: list[int] = []
        self._gauge: int | None = None
        self._gauge_us = 0

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
        self.seen += 1
        if len(self._first_bytes) < FIRST_BYTES_MAX:
            self._first_bytes.append(took_us)

    def produced(self, tokens: int) -> None:
        """Count work as it's done, in tokens or whatever grows in proportion. O(1)."""
        self.work += tokens
        self.seen += 1

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
        self.work = self.slot_us = self.seen = 0
        self._pending_us = self._begun = 0
        self._first_bytes.clear()

    def cut(self, now_us: int) -> Signs:
        """End the window, return it, and begin the next one."""
        self.until(now_us)
        signs = Signs(
            now_us - self.since_us,
            self.work,
            self.slot_us,
            self.seen,
            self._pending_us,
            self._begun,
            tuple(self._first_bytes),
            self._gauge,
            0 if self._gauge is None else now_us - self._gauge_us,
            self.in_flight,
        )
        self.begin(now_us)
        return signs

    def forget(self) -> None:
        """Forget what holds across windows: the engine was away."""
        self._gauge = None
