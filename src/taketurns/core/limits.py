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

from taketurns.core.limit_rules import Amounts, LimitRule, Span, Unit, reserved, rules_for
from taketurns.core.windows import Counter, MonthCount, ParallelCount, Part, SlidingWindow

__all__ = [
    "Admitted",
    "Amounts",
    "Charge",
    "Denied",
    "Ledger",
    "LimitRule",
    "Span",
    "Status",
    "Unit",
    "reserved",
    "rules_for",
]


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


class Ledger:
    """The counters of every rule and tenant.

    Memory is bounded by rules x tenants: both are configured.
    """

    __slots__ = ("_counters", "_rules")

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], Counter] = {}
        self._rules: dict[str, LimitRule] = {}

    def admit(
        self,
        rules: Sequence[LimitRule],
        tenant: str,
        amounts: Amounts,
        *,
        now_us: int,
        month: str,
    ) -> Admitted | Denied:
        """Charge a request to all its limits, or to none. O(rules).

        Args:
            rules: Those that hold for it, see :func:`rules_for`.
            tenant: Whose it is.
            amounts: What it takes. Its output tokens are a guess: where they
                alone make it larger than a limit, as much is reserved as the limit allows.
            now_us: Monotonic time.
            month: The calendar month it is, such as ``"2026-11"``.
        """
        asked: list[tuple[LimitRule, Counter, int]] = []
        over: list[Status] = []
        shadowed: list[Status] = []
        for rule in rules:
            counter = self._counter(rule, tenant, now_us, month)
            amount = amounts.of(rule.unit)
            if counter.used + amount > rule.max and amount:
                amount = reserved(rule, amounts)
                if counter.used + amount > rule.max:
                    status = _status(rule, counter, amount, now_us)
                    (shadowed if rule.shadow else over).append(status)
            asked.append((rule, counter, amount))
        if over:
            never = [item.rule for item in over if reserved(item.rule, amounts) > item.rule.max]
            return Denied(tuple(over), tuple(never))
        charges = [
            Charge(rule, counter, counter.charge(amount), amount) for rule, counter, amount in asked
        ]
        return Admitted(tuple(charges), tuple(shadowed))

    def settle(self, charges: Sequence[Charge], used: Amounts | None) -> None:
        """Correct what was charged to what was used, and give parallel places back. Call once.

        Args:
            charges: Of one admitted request.
            used: What it has taken; None: it was not executed, and takes nothing.
        """
        for rule, counter, part, amount in charges:
            if used is None or isinstance(counter, ParallelCount):
                counter.correct(part, -amount)
            else:
                counter.correct(part, used.of(rule.unit) - amount)

    def status(
        self, rules: Sequence[LimitRule], tenant: str, amounts: Amounts, *, now_us: int, month: str
    ) -> tuple[Status, ...]:
        """Return how rules stand for a tenant, and how long a request would have to wait."""
        return tuple(
            _status(
                rule,
                self._counter(rule, tenant, now_us, month),
                reserved(rule, amounts),
                now_us,
            )
            for rule in rules
        )

    def months(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Return month and count by rule and tenant: what has to outlive the process."""
        return {
            key: (counter.month, counter.used)
            for key, counter in self._counters.items()
            if isinstance(counter, MonthCount)
        }

    def restore(self, rule: LimitRule, tenant: str, month: str, used: int) -> None:
        """Put a month's count back, as it was kept when the process ended."""
        counter = self._counter(rule, tenant, 0, month)
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

    def _counter(self, rule: LimitRule, tenant: str, now_us: int, month: str) -> Counter:
        key = (rule.name, "" if rule.total else tenant)
        counter = self._counters.get(key)
        if counter is None:
            self._counters[key] = counter = _new_counter(rule)
            self._rules[rule.name] = rule
        if isinstance(counter, SlidingWindow):
            counter.advance(now_us)
        elif isinstance(counter, MonthCount):
            counter.advance(month)
        return counter


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
