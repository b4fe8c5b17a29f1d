# SPDX-License-Identifier: Apache-2.0
"""The real clock, unguessable ids and wall time: the only entropy in the package."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from functools import lru_cache

from taketurns.ports.clock import Timer
from taketurns.units import NS_PER_US, US_PER_MS, US_PER_S

NS_PER_MS = NS_PER_US * US_PER_MS


class SystemClock:
    """Implements :class:`taketurns.ports.clock.Clock` on the running event loop.

    Args:
        loop: The loop whose time and timers are used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        # Not the loop's own time: uvloop counts that in whole milliseconds.
        return time.monotonic_ns() // NS_PER_US

    def call_at(self, when_us: int, callback: Callable[[], None]) -> Timer:
        # A loop may call back up to a millisecond early, as its timers are no finer.
        delay_us = max(0, when_us - self.now_us()) + US_PER_MS
        return self._loop.call_later(delay_us / US_PER_S, callback)


class _Turn:
    def __await__(self) -> Generator[None, None, None]:
        yield


def give_way() -> _Turn:
    """Let whatever else is ready on the event loop run first; await what is returned."""
    return _Turn()


def wall_time() -> datetime:
    """Return the time of day in UTC: for logs and records, never for scheduling."""
    return datetime.now(UTC)


def wall_text() -> str:
    """Return the time of day as RFC 3339 has it, in UTC, to the millisecond."""
    return _ms_text(time.time_ns() // NS_PER_MS)


@lru_cache(2)
def _ms_text(ms: int) -> str:
    return f"{_second_text(ms // 1_000)}.{ms % 1_000:03}+00:00"


@lru_cache(2)
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def wall_time_s() -> int:
    """Return seconds since 1970: for ``created`` fields of answers."""
    return int(time.time())


def new_id(prefix: str) -> str:
    """Return an unguessable id: the prefix and 128 random bits in hex."""
    # What `secrets` returns, without its three calls: each request has such an id.
    return prefix + os.urandom(16).hex()


def random_bytes(size: int) -> bytes:
    """Return bytes that can't be guessed: for keys."""
    return secrets.token_bytes(size)
