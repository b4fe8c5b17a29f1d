# SPDX-License-Identifier: Apache-2.0
"""Rate limits and quotas: which rules hold for a request, whether it fits, what it takes.

All limits of a request are looked at first and charged together, or none is.
What isn't known yet (output tokens) is reserved and settled later, in the part
of the window that was charged. How each kind of limit counts: see
:mod:`taketurns.core.windows`.

Bound: what is admitted in any half-open window of a rule's period is at most
its limit. Requests that take more than was reserved for them can exceed it by
that difference, which counts against those that follow.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from taketurns.core.limit_rules import Amounts, LimitRule, Span, Unit, reserved, rules_for
from taketurns.core.windows import Counter, MonthCount, ParallelCount, Part, SlidingWindow

__all__ = [
    "Admitted",
    "Amounts",
    "Charge",
    "Denied",
    "Ledger",
    "LimitRule",
    "Plan",
    "Span",
    "Status",
    "Unit",
    "reserved",
    "rules_for",
]


_new = tuple.__new__
"""Makes a named tuple in half the time that calling its class takes."""


class Charge(NamedTuple):
    """What one rule was charged for a request.

    Attributes:
        rule: The rule.
        counter: Its counter.
        part: The part of the window, or the month, that was charged.
        amount: How much.
    """

    rule: LimitRule
    counter: Counter
    part: Part
    amount: int


class Status(NamedTuple):
    """How a rule stands for a tenant.

    Attributes:
        rule: The rule.
        used: What counts against it.
        wait_us: How long until what was asked for fits: 0 where it does; None where
            the clock doesn't tell (parallel, month, or more than the limit itself).
    """

    rule: LimitRule
    used: int
    wait_us: int | None


class Denied(NamedTuple):
    """A request doesn't fit; nothing was charged.

    Attributes:
        statuses: Every rule that it doesn't fit, in their order; never empty.
        never: Rules of which it asks more than the limit itself: no waiting helps.
    """

    statuses: tuple[Status, ...]
    never: tuple[LimitRule, ...]


class Admitted(NamedTuple):
    """A request fits; its limits were charged together.

    Attributes:
        charges: What was charged; to be settled, and its parallel places given back, once.
        shadowed: Rules in shadow mode that would have refused it.
    """

    charges: tuple[Charge, ...]
    shadowed: tuple[Status, ...]


class Plan:
    """The limits that hold for one kind of request, each with the counter that it goes by.

    Whoever asks often keeps it; after :meth:`Ledger.keep` it has to be made anew.

    Attributes:
        rules: The limits, in their order.
        counters: Theirs, in the same order.
        monthly: One of them counts a month.
    """

    __slots__ = ("_lines", "counters", "monthly", "rules")

    def __init__(self, rules: Sequence[LimitRule], counters: Sequence[Counter]) -> None:
        self.rules = tuple(rules)
        self.counters = tuple(counters)
        self.monthly = any(rule.span is Span.MONTH for rule in rules)
        # A call less for each of them is worth a line: this is done for every request.
        self._lines = tuple(
            (rule, counter, rule.max, rule.place, *_advances(counter))
            for rule, counter in zip(rules, counters, strict=True)
        )

    def admit(self, amounts: Amounts, *, now_us: int, month: str) -> Admitted | Denied:
        """Charge a request to all its limits, or to none. O(rules).

        Args:
            amounts: What it takes. Its output tokens are a guess: where they
                alone make it larger than a limit, as much is reserved as the limit allows.
            now_us: Monotonic time.
            month: The calendar month it is, such as ``"2026-11"``.
        """
        asked: list[tuple[LimitRule, Counter, int]] = []
        over: list[Status] = []
        shadowed: list[Status] = []
        by_unit = amounts.by_unit()
        for rule, counter, limit, unit, to_time, to_month in self._lines:
            if to_time is not None:
                to_time(now_us)
            elif to_month is not None:
                to_month(month)
            amount = by_unit[unit]
            if counter.used + amount > limit and amount:
                amount = reserved(rule, amounts)
                if counter.used + amount > limit:
                    status = _status(rule, counter, amount, now_us)
                    (shadowed if rule.shadow else over).append(status)
            asked.append((rule, counter, amount))
        if over:
            never = [item.rule for item in over if reserved(item.rule, amounts) > item.rule.max]
            return Denied(tuple(over), tuple(never))
        charges = [
            _new(Charge, (rule, counter, counter.charge(amount), amount))
            for rule, counter, amount in asked
        ]
        return Admitted(tuple(charges), tuple(shadowed))

    def status(self, amounts: Amounts, *, now_us: int, month: str) -> tuple[Status, ...]:
        """Return how the limits stand, and how long a request would have to wait."""
        for _, _, _, _, to_time, to_month in self._lines:
            if to_time is not None:
                to_time(now_us)
            elif to_month is not None:
                to_month(month)
        return tuple(
            _status(rule, counter, reserved(rule, amounts), now_us)
            for rule, counter in zip(self.rules, self.counters, strict=True)
        )


class Ledger:
    """The counters of every rule and tenant.

    Memory is bounded by rules x tenants: both are configured.
    """

    __slots__ = ("_counters", "_rules")

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}
        self._rules: dict[str, LimitRule] = {}

    def plan(self, rules: Sequence[LimitRule], tenant: str) -> Plan:
        """Return a tenant's plan for the limits that hold, see :func:`rules_for`."""
        return Plan(rules, [self._counter(rule, tenant) for rule in rules])

    def admit(
        self,
        rules: Sequence[LimitRule],
        tenant: str,
        amounts: Amounts,
        *,
        now_us: int,
        month: str,
    ) -> Admitted | Denied:
        """Charge one request by a plan that isn't kept, see :meth:`Plan.admit`."""
        return self.plan(rules, tenant).admit(amounts, now_us=now_us, month=month)

    def settle(self, charges: Sequence[Charge], used: Amounts | None) -> None:
        """Correct what was charged to what was used, and give parallel places back. Call once.

        Args:
            charges: Of one admitted request.
            used: What it has taken; None: it was not executed, and takes nothing.
        """
        by_unit = None if used is None else used.by_unit()
        for rule, counter, part, amount in charges:
            if by_unit is None or isinstance(counter, ParallelCount):
                counter.correct(part, -amount)
            elif difference := by_unit[rule.place] - amount:
                counter.correct(part, difference)

    def status(
        self, rules: Sequence[LimitRule], tenant: str, amounts: Amounts, *, now_us: int, month: str
    ) -> tuple[Status, ...]:
        """Return how rules stand for a tenant, and how long a request would have to wait."""
        return self.plan(rules, tenant).status(amounts, now_us=now_us, month=month)

    def months(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Return month and count by rule and tenant: what has to outlive the process."""
        return {
            key: (counter.month, counter.used)
            for key, counter in self._counters.items()
            if isinstance(counter, MonthCount)
        }

    def restore(self, rule: LimitRule, tenant: str, month: str, used: int) -> None:
        """Put a month's count back, as it was kept when the process ended."""
        counter = self._counter(rule, tenant)
        assert isinstance(counter, MonthCount), "only months are kept"
        counter.restore(month, used)

    def keep(self, rules: Iterable[LimitRule]) -> None:
        """Forget what was counted for rules that are no more, or count something else.

        A rule that keeps its name and what it counts goes on from where it is,
        whatever its limit. What is under way settles without effect.
        """
        counts = {rule.name: rule.counts for rule in rules}
        self._rules = {
            name: rule for name, rule in self._rules.items() if counts.get(name) == rule.counts
        }
        self._counters = {
            key: counter for key, counter in self._counters.items() if key[0] in self._rules
        }

    def _counter(self, rule: LimitRule, tenant: str) -> Counter:
        key = (rule.name, "" if rule.total else tenant)
        counter = self._counters.get(key)
        if counter is None:
            self._counters[key] = counter = _new_counter(rule)
            self._rules[rule.name] = rule
        return counter


_Advances = tuple[Callable[[int], None] | None, Callable[[str], None] | None]


def _advances(counter: Counter) -> _Advances:
    """Return what brings a counter up to a time, or to a month."""
    if isinstance(counter, SlidingWindow):
        return counter.advance, None
    return None, counter.advance if isinstance(counter, MonthCount) else None


def _new_counter(rule: LimitRule) -> Counter:
    if rule.span is Span.SLIDING:
        return SlidingWindow(rule.period_us)
    return MonthCount() if rule.span is Span.MONTH else ParallelCount()


def _status(rule: LimitRule, counter: Counter, amount: int, now_us: int) -> Status:
    excess = counter.used + amount - rule.max
    wait_us: int | None = None
    if excess <= 0 or not amount:
        wait_us = 0
    elif amount <= rule.max and isinstance(counter, SlidingWindow):
        wait_us = counter.wait_us(now_us, excess)
    return Status(rule, counter.used, wait_us)
