# SPDX-License-Identifier: Apache-2.0
"""Marks of month quotas, as the gateway holds them: how far the store lets each count go."""

from collections.abc import Iterable

from taketurns.core.limits import LimitRule, Span
from taketurns.core.windows import MonthCount
from taketurns.ports.stores import Bound, QuotaKey

BLOCKS_A_LIMIT = 1000
"""A block is this part of a limit: what a crash may cost a tenant."""

MARK_MAX = 2**53


def block_of(rule: LimitRule) -> int:
    """Return by how much a rule's marks are raised ahead of need: a thousandth of the limit."""
    return max(1, rule.max // BLOCKS_A_LIMIT)


class Mark:
    """The mark of one count in one month.

    Where others share the store, all numbers are sums with what they have taken.

    Attributes:
        kept: What the store has confirmed, at most.
        asked: What it's being asked for, or ``kept``.
        shifted: By how much others have moved it since this object was made.
        gone: Its rule is no more: nothing is granted of it that isn't covered yet.
        waiting: What of the count isn't granted yet: requests that wait for the store.
    """

    __slots__ = ("asked", "block", "counter", "gone", "kept", "key", "rule", "shifted", "waiting")

    def __init__(self, key: QuotaKey, counter: MonthCount, kept: int) -> None:
        self.key = key
        self.counter = counter
        self.kept = self.asked = kept
        self.rule: LimitRule | None = None
        self.block = 1
        self.shifted = 0
        self.gone = False
        self.waiting = 0

    @property
    def over(self) -> bool:
        """True once another month is counted."""
        return self.counter.month != self.key.month

    def goal(self) -> int:
        """Return where the mark should be: a block ahead, but no further than the limit."""
        used = self.counter.used
        ahead = used + self.block
        if self.rule is not None and not self.rule.shadow:
            ahead = min(ahead, self.rule.max)
        return max(used, ahead, self.kept)

    def bound(self) -> Bound:
        """Return how far others leave room for it to be raised."""
        enforced = self.rule is not None and not self.rule.shadow
        limit = self.rule.max if self.rule is not None and enforced else MARK_MAX
        return Bound(self.counter.used - self.waiting, limit)

    def shift(self, amount: int) -> None:
        """Count what others have taken, or given back."""
        self.kept += amount
        self.asked += amount
        self.shifted += amount
        if not self.over:
            self.counter.used += amount


class Need:
    """A request that waits until a mark covers it.

    Args:
        mark: The mark; the request was just charged.
        amount: What it was charged.
    """

    __slots__ = ("_amount", "_up_to", "mark")

    def __init__(self, mark: Mark, amount: int) -> None:
        self.mark = mark
        self._amount = amount
        self._up_to = mark.counter.used - mark.shifted
        mark.waiting += amount

    @property
    def up_to(self) -> int:
        """How high the mark has to be; what other requests gave back since then counts too."""
        return min(self._up_to + self.mark.shifted, self.mark.counter.used)

    def lacks(self) -> bool:
        """Tell whether the mark doesn't cover it."""
        return self.mark.kept < self.up_to and not self.mark.over

    def taken(self) -> bool:
        """Tell whether others have taken meanwhile what was left of the limit, or it is gone."""
        rule = self.mark.rule
        if self.mark.gone:
            return True
        return rule is not None and self.mark.shifted != 0 and self.up_to > rule.max

    def end(self) -> None:
        """Wait no longer, whatever the outcome; call it once."""
        self.mark.waiting -= self._amount


def month_rules(rules: Iterable[LimitRule]) -> dict[str, LimitRule]:
    """Return the rules that are of a month, by their names in the store."""
    return {label(rule): rule for rule in rules if rule.span is Span.MONTH}


def label(rule: LimitRule) -> str:
    """Return the name of a rule in the store: one that counts something else is another."""
    return f"{rule.unit}:{rule.name}"
