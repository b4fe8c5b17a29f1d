# SPDX-License-Identifier: Apache-2.0
"""Month quotas that outlive the process: a store keeps a mark ahead of each count.

Nothing is granted beyond a mark that the store has confirmed, and marks are
raised by a block before they are reached, in a thread. So a process that is
killed has never granted more than the mark says, and the next one begins at
the mark: it may count too much, by at most a block and what was reserved for
requests under way; never too little. A clean stop writes the exact count.

While the store can't be written, what fits under the marks is served, the rest
is refused, the operator is told once, and writing is tried again and again.

One thing is known too late: output tokens beyond what was reserved for a
request. They are written as soon as they are counted.

Where several gateways share the store, each has blocks of its own, and counts
what the others have taken as if it had granted that itself. It's told of them
whenever it raises a mark, and every ten seconds.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from typing import NamedTuple

from taketurns.core.limits import Admitted, Ledger, LimitRule
from taketurns.core.windows import MonthCount
from taketurns.errors import StoreError
from taketurns.gateway.marks import Mark, Need, block_of, label, month_rules
from taketurns.ports.clock import Clock, Timer
from taketurns.ports.stores import Bound, QuotaKey, QuotaStore, Raised
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

ANSWER_US = US_PER_S
"""How long a request waits for the store at most."""

RETRY_US = US_PER_S // 4
RETRY_US_MAX = 8 * US_PER_S

TRIM_US = 10 * US_PER_S
"""How long a mark may stay far above its count, after much that was reserved was given back."""

LOOK_US = 10 * US_PER_S
"""How often to look at what others have taken, where the store is shared."""

CLOSE_S = 5.0
"""How long a clean stop waits for the store."""


class Covered(Enum):
    """Whether the store has confirmed what a request takes of its months.

    Attributes:
        YES: It may run.
        NO: The store fails: settle the charges as not executed, and refuse.
        TAKEN: Others have taken what was left: settle them so, and look at the limits anew.
    """

    YES = "yes"
    NO = "no"
    TAKEN = "taken"


class _Answer(NamedTuple):
    """What the store answered to a write.

    Attributes:
        raised: How the marks stand that were raised.
        shifts: By how much others have moved marks, where it was asked.
    """

    raised: dict[QuotaKey, Raised]
    shifts: dict[QuotaKey, int]


class Quotas:
    """Keeps the marks of all month quotas ahead of their counts.

    Belongs to one event loop. Where there is no store, everything is covered.

    Args:
        store: Where marks are kept; only this object's own thread uses it.
        ledger: Counts.
        rules: The limits; those that aren't of a month are of no interest here.
        month: Returns the calendar month that it is; never an earlier one than before.
        clock: Calls back when to try again.
        block: By how much a rule's marks are raised at a time, at least 1.
    """

    def __init__(
        self,
        store: QuotaStore | None,
        ledger: Ledger,
        rules: Iterable[LimitRule],
        month: Callable[[], str],
        clock: Clock,
        *,
        block: Callable[[LimitRule], int] = block_of,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._calendar = month
        self._clock = clock
        self._block = block
        self._month = ""
        self._rules = month_rules(rules)
        # What the store holds, of counts that this process hasn't charged yet.
        self._stored: dict[QuotaKey, int] = {}
        self._marks: dict[tuple[str, str], Mark] = {}
        self._wanted: dict[QuotaKey, Mark] = {}
        self._slack: dict[QuotaKey, Mark] = {}
        self._forget_due = True
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="taketurns-quotas")
        self._look = False
        self._writing: asyncio.Future[_Answer] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._timers: dict[str, Timer] = {}
        self._failures = 0
        self._retry_us: int | None = None
        self._closed = False
        self.failing = False

    async def start(self) -> None:
        """Read the marks, and count on from them.

        Raises:
            StoreError: The store can't be read.
        """
        month = self._calendar()
        if self._store is not None:
            loop = asyncio.get_running_loop()
            self._stored = await loop.run_in_executor(self._thread, _load, self._store, month)
            if self._store.shared:
                self._call_in("look", LOOK_US, self._look_at_others)
        self._begin(month)

    def month(self) -> str:
        """Return the month to charge."""
        month = self._calendar()
        if month > self._month:
            self._begin(month)
        return month

    @property
    def retry_us(self) -> int | None:
        """When the store is tried again, by the clock; None: it's being tried, or all is well."""
        return self._retry_us

    def set_rules(self, rules: Iterable[LimitRule]) -> None:
        """Go by other rules, once the ledger has dropped the counts of what is gone.

        A rule or a tenant that comes back goes on from its mark.
        """
        self._rules = month_rules(rules)
        counted = self._ledger.months()
        for place, mark in list(self._marks.items()):
            if place not in counted:
                # What it's being raised to may be granted by nobody: it's not confirmed.
                self._stored[mark.key] = mark.kept
                mark.gone = True
                del self._marks[place]
        self._restore()
        self._wake()

    def covers(self, tenant: str, admitted: Admitted) -> bool:
        """Tell whether a request that was just admitted may run at once. O(limits).

        Where a count comes near its mark, that is raised in the background.

        Args:
            tenant: Who was charged.
            admitted: What.
        """
        if self._store is None:
            return True
        covered = True
        for rule, counter, amount in _months(admitted):
            mark = self._mark(rule, tenant, counter)
            if mark.kept >= counter.used or rule.shadow:
                self._run_ahead(mark)
            else:
                covered = False
                mark.waiting += amount
                self._run_ahead(mark)
                mark.waiting -= amount
        return covered

    async def cover(self, tenant: str, admitted: Admitted) -> Covered:
        """Wait until a request that :meth:`covers` didn't let run is covered.

        Call it right after ``covers``, with nothing awaited between.
        """
        needs = [
            Need(self._mark(rule, tenant, counter), amount)
            for rule, counter, amount in _months(admitted)
            if not rule.shadow
        ]
        try:
            while lacking := [need for need in needs if need.lacks()]:
                if any(need.taken() for need in lacking):
                    return Covered.TAKEN
                if self.failing or self._closed:
                    return Covered.NO
                for need in lacking:
                    if need.mark.asked < need.up_to:
                        self._want(need.mark)
                await self._next_answer()
            return Covered.YES
        finally:
            for need in needs:
                need.end()

    def settled(self, tenant: str, admitted: Admitted) -> None:
        """Look at the counts of a request that was just settled. O(limits)."""
        for rule, counter, _ in _months(admitted):
            known = self._marks.get((rule.name, "" if rule.total else tenant))
            if known is None or known.counter is not counter:
                # Its rule has gone meanwhile: what the store holds of it stays as it is.
                continue
            mark = self._mark(rule, tenant, counter)
            self._run_ahead(mark)
            if mark.kept - counter.used > 2 * mark.block and not self._closed:
                self._slack[mark.key] = mark
                if "trim" not in self._timers:
                    self._call_in("trim", TRIM_US, self._trim)

    async def aclose(self) -> None:
        """Write the exact counts, as far as the store can be written, and close it.

        Call it once all requests are settled: what isn't counts as reserved.
        """
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._wake()
        hung = False
        if self._store is not None:
            if self._writing is not None:
                _, pending = await asyncio.wait({self._writing}, timeout=CLOSE_S)
                hung = bool(pending)
            hung = hung or not await self._write_exact(self._store)
        self._thread.shutdown(wait=not hung)

    # Months and counts

    def _begin(self, month: str) -> None:
        self._month = month
        self._forget_due = True
        self._stored = {key: mark for key, mark in self._stored.items() if key.month >= month}
        self._restore()

    def _restore(self) -> None:
        """Set counts that weren't charged yet to what the store holds."""
        for key, mark in self._stored.items():
            rule = self._rules.get(key.rule)
            if key.month == self._month and rule is not None and rule.total == (not key.tenant):
                self._ledger.restore(rule, key.tenant, key.month, mark)

    def _mark(self, rule: LimitRule, tenant: str, counter: MonthCount) -> Mark:
        place = (rule.name, "" if rule.total else tenant)
        mark = self._marks.get(place)
        if mark is None or mark.over or mark.counter is not counter:
            key = QuotaKey(counter.month, label(rule), place[1])
            mark = self._marks[place] = Mark(key, counter, self._stored.pop(key, 0))
        if mark.rule is not rule:
            mark.rule = rule
            mark.block = self._block(rule)
        return mark

    # Writing

    def _run_ahead(self, mark: Mark) -> None:
        if (mark.asked - mark.counter.used) * 4 < mark.block and mark.goal() > mark.asked:
            self._want(mark)

    def _want(self, mark: Mark) -> None:
        self._wanted[mark.key] = mark
        if not self.failing:
            self._write()

    def _write(self) -> None:
        """Hand the store what is wanted, unless it's at work: then that is handed over next."""
        if self._writing is not None or self._closed or self._store is None:
            return
        raised: dict[QuotaKey, Mark] = {}
        for key, mark in self._wanted.items():
            goal = mark.goal()
            if goal > mark.kept and not mark.over:
                mark.asked = goal
                raised[key] = mark
        self._wanted = {}
        raises = {key: mark.asked for key, mark in raised.items()}
        lowers = self._take_slack(raised)
        look = self._month if self._look else ""
        if not raises and not lowers and not look:
            return
        bounds = {key: mark.bound() for key, mark in raised.items()}
        self._look = False
        forget = self._month if self._forget_due else ""
        self._forget_due = False
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(
            self._thread, _write_marks, self._store, (raises, bounds), lowers, forget, look
        )
        self._writing.add_done_callback(partial(self._written, raised, bool(look)))
        self._call_in("answer", ANSWER_US, self._late)

    def _take_slack(self, raised: Mapping[QuotaKey, Mark]) -> dict[QuotaKey, int]:
        """Lower marks that are far above their counts, here first: nothing is granted beyond."""
        lowers: dict[QuotaKey, int] = {}
        if "trim" not in self._timers and not self.failing:
            for key, mark in self._slack.items():
                goal = mark.counter.used + mark.block
                if goal + mark.block < mark.kept and key not in raised and not mark.over:
                    lowers[key] = mark.kept = mark.asked = goal
            self._slack = {}
        return lowers

    def _written(
        self,
        raised: Mapping[QuotaKey, Mark],
        looked: bool,  # noqa: FBT001 - bound by partial
        future: "asyncio.Future[_Answer]",
    ) -> None:
        self._writing = None
        self._cancel("answer")
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            for mark in raised.values():
                mark.asked = mark.kept
        else:
            self._take_in(raised, future.result())
        if error is not None:
            self._look |= looked
            self._wanted = {**raised, **self._wanted}
            self._failed(error)
        elif raised or looked:
            self._recovered()
        self._wake()
        if self._wanted and not self.failing:
            self._write()

    def _take_in(self, raised: Mapping[QuotaKey, Mark], answer: _Answer) -> None:
        for key, mark in raised.items():
            now = answer.raised[key]
            mark.shift(now.shift)
            mark.kept = mark.asked = now.mark
        if answer.shifts:
            marks = {mark.key: mark for mark in self._marks.values()}
            for key, amount in answer.shifts.items():
                if key in marks:
                    marks[key].shift(amount)
                else:
                    self._stored[key] = self._stored.get(key, 0) + amount
            self._restore()

    def _failed(self, error: BaseException) -> None:
        self._alarm(str(error))
        delay_us = min(RETRY_US << min(self._failures, 16), RETRY_US_MAX)
        self._failures += 1
        if not self._closed:
            self._retry_us = self._clock.now_us() + delay_us
            self._call_in("retry", delay_us, self._retry)

    def _recovered(self) -> None:
        self._failures = 0
        if self.failing:
            self.failing = False
            LOG.warning("month quotas are written again")

    def _alarm(self, reason: str) -> None:
        if not self.failing:
            self.failing = True
            LOG.error(
                "month quotas can't be written, requests beyond what is reserved are refused: %s",
                reason,
            )

    # Called by the clock

    def _retry(self) -> None:
        del self._timers["retry"]
        self._retry_us = None
        self._write()
        if self._writing is None:
            # A month has ended meanwhile, and nothing is wanted any more.
            self._recovered()

    def _late(self) -> None:
        del self._timers["answer"]
        self._alarm(f"no answer within {ANSWER_US // US_PER_S} s")
        self._wake()

    def _look_at_others(self) -> None:
        self._call_in("look", LOOK_US, self._look_at_others)
        self._look = True
        if not self.failing:
            self._write()

    def _trim(self) -> None:
        del self._timers["trim"]
        if not self.failing:
            self._write()

    def _call_in(self, name: str, delay_us: int, callback: Callable[[], None]) -> None:
        self._timers[name] = self._clock.call_at(self._clock.now_us() + delay_us, callback)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    # Waiting

    async def _next_answer(self) -> None:
        """Wait until the store has answered, or is given up."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _write_exact(self, store: QuotaStore) -> bool:
        """Set the marks to the counts and close the store; False where it doesn't answer."""
        marks = [mark for mark in self._marks.values() if not mark.over]
        exact = {mark.key: mark.counter.used for mark in marks}
        work = asyncio.get_running_loop().run_in_executor(
            self._thread, _write_last_marks, store, exact
        )
        done, _ = await asyncio.wait({work}, timeout=CLOSE_S)
        error = work.exception() if done else TimeoutError(f"no answer within {CLOSE_S:.0f} s")
        if error is not None:
            LOG.error("month quotas were not written at the end, and may count too much: %s", error)
        return bool(done)


def _months(admitted: Admitted) -> Iterator[tuple[LimitRule, MonthCount, int]]:
    """Yield what was charged of months: the rule, its counter, and how much."""
    for rule, counter, _, place, _ in admitted.lines:
        if isinstance(counter, MonthCount):
            yield rule, counter, admitted.amounts[place]


def _load(store: QuotaStore, month: str) -> dict[QuotaKey, int]:
    try:
        return store.load(month)
    except BaseException:
        store.close()
        raise


def _write_marks(
    store: QuotaStore,
    raises: tuple[Mapping[QuotaKey, int], Mapping[QuotaKey, Bound]],
    lowers: Mapping[QuotaKey, int],
    forget_before: str,
    look_since: str,
) -> _Answer:
    raised = store.raise_to(*raises) if raises[0] else {}
    # A mark that is too high, or too old, takes nothing from anyone: it may stay.
    with contextlib.suppress(StoreError):
        if lowers:
            store.lower_to(lowers)
        if forget_before:
            store.forget_before(forget_before)
    try:
        shifts = store.shifts(look_since) if look_since else {}
    except StoreError:
        # What was raised counts; the next look tells the rest.
        if not raises[0]:
            raise
        shifts = {}
    return _Answer(raised, shifts)


def _write_last_marks(store: QuotaStore, exact: Mapping[QuotaKey, int]) -> None:
    try:
        if exact:
            raised = store.raise_to(exact)
            store.lower_to({key: mark + raised[key].shift for key, mark in exact.items()})
    finally:
        store.close()
