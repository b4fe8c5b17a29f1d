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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from taketurns.core.limit_rules import (
    NOTHING,
    PLACE_OF_NOTHING,
    Amounts,
    Denied,
    LimitRule,
    Span,
    Status,
    Unit,
    reserved,
    rules_for,
)
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


_Line = tuple[LimitRule, Counter, int, int, int]
"""A rule, its counter, its limit, where its amount stands among what a request was charged,
and where it stands among what it used: what was parallel is always given back."""


class Admitted(NamedTuple):
    """A request fits; its limits were charged together.

    Attributes:
        lines: What was charged,
        parts: the parts that it was counted in, in the same order; none once it's settled,
        amounts: and how much, see :data:`_Line`.
        shadowed: Rules in shadow mode that would have refused it.
    """

    lines: tuple[_Line, ...]
    parts: list[Part]
    amounts: Sequence[int]
    shadowed: tuple[Status, ...]

    def settle(self, used: Amounts | None) -> None:
        """Correct what was charged to what was used, and give parallel places back.

        Called again it does nothing, so that every way out may call it.

        Args:
            used: What it has taken; None: it was not executed, and takes nothing.
        """
        lines, parts, amounts, _ = self
        spent = NOTHING if used is None else used.by_unit()
        for (_, counter, _, place, end), part in zip(lines, parts, strict=False):
            difference = spent[end] - amounts[place]
            if difference and part.counts:
                part.amount += difference
                counter.used += difference
        parts.clear()

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What each rule was charged, until it's settled."""
        return tuple(
            Charge(rule, counter, part, self.amounts[place])
            for (rule, counter, _, place, _), part in zip(self.lines, self.parts, strict=False)
        )


class Plan:
    """The limits that hold for one kind of request, each with the counter that it goes by.

    Whoever asks often keeps it; after :meth:`Ledger.keep` it has to be made anew.

    Attributes:
        rules: The limits, in their order.
        counters: Theirs, in the same order.
        months: Those of them that count months.
    """

    __slots__ = ("_lines", "_month", "counters", "months", "rules")

    def __init__(self, rules: Sequence[LimitRule], counters: Sequence[Counter]) -> None:
        self.rules = tuple(rules)
        self.counters = tuple(counters)
        self.months = tuple(item for item in counters if isinstance(item, MonthCount))
        self._month = ""
        # Whatever can be looked up once is: the loops over it are gone through for every request.
        self._lines = tuple(
            (rule, counter, rule.max, rule.place, _end_of(rule))
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
        if month != self._month:
            self._enter(month)
        lines = self._lines
        by_unit = amounts.by_unit()
        for _, counter, limit, place, _ in lines:
            if now_us >= counter.until_us:
                counter.advance(now_us)
            if counter.used + by_unit[place] > limit:
                return self._admit_closely(amounts, now_us)
        parts = []
        for _, counter, _, place, _ in lines:
            # As Counter.charge does it, without a call for each.
            amount = by_unit[place]
            part = counter.part if now_us < counter.end_us else counter.begin(now_us)
            if now_us > part.last_us:
                part.last_us = now_us
            part.amount += amount
            counter.used += amount
            parts.append(part)
        return _new(Admitted, (lines, parts, by_unit, ()))

    def _admit_closely(self, amounts: Amounts, now_us: int) -> Admitted | Denied:
        """As :meth:`admit`, where a guess may be cut, a rule be in shadow mode, or refuse."""
        over: list[Status] = []
        shadowed: list[Status] = []
        asked: list[int] = []
        lines: list[_Line] = []
        for number, (rule, counter, limit, _, end) in enumerate(self._lines):
            counter.advance(now_us)
            amount = reserved(rule, amounts)
            if counter.used + amount > limit and amount:
                status = _status(rule, counter, amount, now_us)
                (shadowed if rule.shadow else over).append(status)
            asked.append(amount)
            lines.append((rule, counter, limit, number, end))
        if over:
            never = [item.rule for item in over if reserved(item.rule, amounts) > item.rule.max]
            return Denied(tuple(over), tuple(never))
        parts = [
            counter.charge(now_us, amount)
            for counter, amount in zip(self.counters, asked, strict=True)
        ]
        return Admitted(tuple(lines), parts, asked, tuple(shadowed))

    def status(self, amounts: Amounts, *, now_us: int, month: str) -> tuple[Status, ...]:
        """Return how the limits stand, and how long a request would have to wait."""
        self._enter(month)
        for counter in self.counters:
            counter.advance(now_us)
        return tuple(
            _status(rule, counter, reserved(rule, amounts), now_us)
            for rule, counter in zip(self.rules, self.counters, strict=True)
        )

    def _enter(self, month: str) -> None:
        self._month = month
        for counter in self.months:
            counter.enter(month)


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


def _end_of(rule: LimitRule) -> int:
    return PLACE_OF_NOTHING if rule.span is Span.PARALLEL else rule.place


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
