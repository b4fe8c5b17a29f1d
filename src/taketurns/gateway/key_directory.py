# SPDX-License-Identifier: Apache-2.0
"""The keys of a store over the network, held in memory: no request waits for a look-up.

All keys are read at the start, and every two seconds those that have changed.
While the store is out of reach the keys that are known go on to work, and the
operator is told once.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from taketurns.config.model import Config
from taketurns.errors import StoreError
from taketurns.ports.clock import Clock, Timer
from taketurns.ports.stores import KeyRecord
from taketurns.stores import choose
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

REFRESH_US = 2 * US_PER_S
"""How often to ask for changes: with the bounds on an answer's time, a revoked key is refused
within 5 seconds everywhere."""

OVERLAP_S = 60.0
"""How much further back than the last look to ask: a change is dated before it can be seen."""

CLOSE_S = 5.0


class KeySource(Protocol):
    """A key store that tells what has changed."""

    def list(self) -> tuple[KeyRecord, ...]:
        """Return all keys."""
        ...

    def changed(self, within_s: float) -> tuple[KeyRecord, ...]:
        """Return the keys that were added or revoked within so many seconds."""
        ...

    def close(self) -> None:
        """Give back what is held open."""
        ...


class KeyDirectory:
    """Looks keys up in memory; belongs to one event loop.

    Args:
        source: The store; only this object's own thread uses it.
        clock: Calls back when to look again.

    Attributes:
        failing: True while changes can't be read.
    """

    def __init__(self, source: KeySource, clock: Clock) -> None:
        self.failing = False
        self._source = source
        self._clock = clock
        self._records: dict[str, KeyRecord] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taketurns-keys")
        self._looked_us = 0
        self._timer: Timer | None = None
        self._reading: asyncio.Future[tuple[KeyRecord, ...]] | None = None

    async def start(self) -> None:
        """Read all keys.

        Raises:
            StoreError: They can't be read.
        """
        self._looked_us = self._clock.now_us()
        loop = asyncio.get_running_loop()
        self._know(await loop.run_in_executor(self._thread, self._source.list))
        self._look_later()

    def get(self, public_id: str) -> KeyRecord | None:
        """Return the key with a public id, revoked or not; None where there is none."""
        return self._records.get(public_id)

    def close(self) -> None:
        """Do nothing: the directory outlives those who look keys up in it."""

    async def aclose(self) -> None:
        """Look no more, and close the store."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=CLOSE_S)
        self._thread.submit(self._source.close)
        self._thread.shutdown(wait=False)

    def _know(self, records: tuple[KeyRecord, ...]) -> None:
        self._records.update((record.public_id, record) for record in records)

    def _look_later(self) -> None:
        self._timer = self._clock.call_at(self._clock.now_us() + REFRESH_US, self._look)

    def _look(self) -> None:
        began_us = self._clock.now_us()
        within_s = (began_us - self._looked_us) / US_PER_S + OVERLAP_S
        loop = asyncio.get_running_loop()
        self._reading = loop.run_in_executor(self._thread, self._source.changed, within_s)
        self._reading.add_done_callback(self._looked(began_us))

    def _looked(self, began_us: int) -> "Callable[[asyncio.Future[tuple[KeyRecord, ...]]], None]":
        def looked(reading: "asyncio.Future[tuple[KeyRecord, ...]]") -> None:
            self._reading = None
            if reading.cancelled() or self._timer is None:
                return
            self._look_later()
            error = reading.exception()
            if error is None:
                self._know(reading.result())
                self._looked_us = began_us
            self._tell(error)

        return looked

    def _tell(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StoreError):
            LOG.error("changes of keys can't be read", exc_info=error)
        if error is None and self.failing:
            LOG.warning("changes of keys are seen again")
        elif error is not None and not self.failing:
            LOG.error("changes of keys are not seen, those known go on to work: %s", error)
        self.failing = error is not None


def key_directory(config: Config, clock: Clock) -> KeyDirectory | None:
    """Return what holds the keys of a store over the network; None where that is a file."""
    if not choose.is_postgres(config.store):
        return None
    return KeyDirectory(choose.postgres_keys(config.store), clock)
