# SPDX-License-Identifier: Apache-2.0
"""Adds up what tenants use, and writes it to the store behind their requests.

A clean stop loses nothing. A process that is killed loses what was counted
since the last write, five seconds at most where the store answers. While it
doesn't, what is counted is kept, and written in one batch later.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from functools import lru_cache

from taketurns.config.model import Config
from taketurns.core.decision import Outcome
from taketurns.errors import StoreError
from taketurns.ports.clock import Clock, Timer
from taketurns.ports.stores import Usage, UsageKey, UsageStore
from taketurns.stores import choose
from taketurns.system import new_id, wall_time_s
from taketurns.telemetry.records import RequestRecord
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

FLUSH_US = 5 * US_PER_S
"""How often what was counted is written."""

ROWS_MAX = 100_000
"""Most rows that wait to be written: requests of others than those are not counted then."""

CLOSE_S = 5.0

INVALID = "invalid"
"""Outcome of what was the caller's fault: it's not counted."""

UNEXECUTED = frozenset({Outcome.REFUSED.value, Outcome.EXPIRED.value})


class UsageLedger:
    """Usage by day, tenant, model and endpoint; belongs to one event loop.

    Args:
        store: Where it's kept; only this object's own thread uses it.
        day: Returns the day that it is, such as ``"2026-11-30"``.
        clock: Calls back when to write.
        days: How many days are kept, today included.

    Attributes:
        failing: True while the store can't be written.
    """

    def __init__(
        self, store: UsageStore, day: Callable[[], str], clock: Clock, *, days: int
    ) -> None:
        self.failing = False
        self._store = store
        self._today = day
        self._clock = clock
        self._days = days
        self._writer = new_id("gw_")
        self._number = 0
        self._counted: dict[UsageKey, Usage] = {}
        self._batch: dict[UsageKey, Usage] = {}
        self._forgot = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taketurns-usage")
        self._writing: asyncio.Future[None] | None = None
        self._timer: Timer | None = None

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended; one of no known tenant isn't."""
        if not record.tenant or not record.model or record.outcome == INVALID:
            return
        executed = record.wait_s is not None and record.outcome not in UNEXECUTED
        key = UsageKey(self._today(), record.tenant, record.model, record.endpoint)
        usage = (
            Usage(1, 0, record.input_tokens, record.output_tokens, record.cost)
            if executed
            else Usage(0, 1)
        )
        before = self._counted.get(key)
        if before is not None:
            usage = before.plus(usage)
        elif len(self._counted) >= ROWS_MAX:
            return
        self._counted[key] = usage
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.now_us() + FLUSH_US, self._flush)

    async def aclose(self) -> None:
        """Write what was counted, as far as the store can be written, and close it."""
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        hung = False
        if self._writing is not None:
            _, pending = await asyncio.wait({self._writing}, timeout=CLOSE_S)
            hung = bool(pending)
        while not hung and (self._batch or self._counted):
            self._take()
            work = loop.run_in_executor(self._thread, self._write, self._number, self._batch, "")
            done, _ = await asyncio.wait({work}, timeout=CLOSE_S)
            error = work.exception() if done else TimeoutError("no answer in time")
            if error is not None:
                LOG.error("usage was not written at the end: %s", error)
                hung = not done
                break
            self._batch = {}
        self._thread.submit(self._store.close)
        self._thread.shutdown(wait=not hung)

    def _take(self) -> None:
        """Make a batch of what was counted, unless the last one still has to be written."""
        if not self._batch and self._counted:
            self._batch, self._counted = self._counted, {}
            self._number += 1

    def _flush(self) -> None:
        self._timer = self._clock.call_at(self._clock.now_us() + FLUSH_US, self._flush)
        if self._writing is not None:
            return
        self._take()
        if not self._batch:
            self._timer.cancel()
            self._timer = None
            return
        today = date.fromisoformat(self._today())
        oldest = (today - timedelta(days=self._days - 1)).isoformat()
        forget = oldest if oldest != self._forgot else ""
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(
            self._thread, self._write, self._number, self._batch, forget
        )
        self._writing.add_done_callback(lambda future: self._written(future, oldest))

    def _write(self, number: int, batch: dict[UsageKey, Usage], forget_before: str) -> None:
        self._store.add(self._writer, number, batch)
        if forget_before:
            self._store.forget_before(forget_before)

    def _written(self, future: "asyncio.Future[None]", oldest: str) -> None:
        self._writing = None
        error = None if future.cancelled() else future.exception()
        if error is None:
            self._batch = {}
            self._forgot = oldest
            if self.failing:
                LOG.warning("usage is written again")
        elif not self.failing:
            LOG.error("usage can't be written, and is kept in memory for now: %s", error)
            if not isinstance(error, StoreError):
                LOG.error("that was not foreseen", exc_info=error)
        self.failing = error is not None


def usage_ledger(config: Config, clock: Clock) -> UsageLedger | None:
    """Return what adds usage up; None where nothing is kept. Nothing is opened yet.

    Raises:
        StartError: A package is missing.
    """
    store = choose.usage_store(config.store) if config.usage_days else None
    if store is None:
        return None

    @lru_cache(1)
    def day_at(second: int) -> str:
        return datetime.fromtimestamp(second, config.zone).date().isoformat()

    return UsageLedger(store, lambda: day_at(wall_time_s()), clock, days=config.usage_days)
