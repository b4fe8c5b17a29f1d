# SPDX-License-Identifier: Apache-2.0
"""What operators limit: rules, which of them hold for a request, what it takes, how they stand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from taketurns.core.windows import PARTS


class Unit(StrEnum):
    """What a limit counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    INPUTS = "inputs"


PLACES = {unit: place for place, unit in enumerate(Unit)}
"""Where a unit's amount stands in :meth:`Amounts.by_unit`."""

PLACE_OF_NOTHING = len(PLACES)
"""Where 0 stands there."""

NOTHING = (0,) * (PLACE_OF_NOTHING + 1)
"""What a request takes that was not executed, in each unit."""


class Span(StrEnum):
    """Over what time a limit counts."""

    SLIDING = "sliding"
    MONTH = "month"
    PARALLEL = "parallel"


class Amounts(NamedTuple):
    """What one request takes, or is thought to take.

    Attributes:
        inputs: Texts or documents; 1 for a generation.
        input_tokens: Tokens of its input.
        output_tokens: Tokens of its output.
    """

    inputs: int = 1
    input_tokens: int = 0
    output_tokens: int = 0

    def by_unit(self) -> tuple[int, ...]:
        """Return the amount in each unit, in the order of :data:`PLACES`, and 0 behind them."""
        inputs, input_tokens, output_tokens = self
        return (1, input_tokens + output_tokens, input_tokens, output_tokens, inputs, 0)

    def of(self, unit: Unit) -> int:
        """Return the amount in a limit's unit."""
        return self.by_unit()[PLACES[unit]]


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One limit, as the operator set it.

    Attributes:
        name: Shown to operators and clients; unique.
        unit: What is counted.
        span: Over what time.
        max: The limit, at least 0 (nothing passes).
        period_us: Length of a sliding window, at least 60; 0 with other spans.
        tenant: Only this tenant; "" for all.
        tier: Only tenants of this tier; "" for all.
        model: Only this model; "" for all.
        endpoint: Only this endpoint; "" for all.
        total: All tenants together, instead of each its own.
        shadow: Count and tell, but let pass.
        place: Where its unit's amount stands in :meth:`Amounts.by_unit`.
    """

    name: str
    unit: Unit
    span: Span
    max: int
    period_us: int = 0
    tenant: str = ""
    tier: str = ""
    model: str = ""
    endpoint: str = ""
    total: bool = False
    shadow: bool = False
    place: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Looking a member up by its enum takes longer than all else that is done with it.
        object.__setattr__(self, "place", PLACES[self.unit])
        if self.max < 0:
            raise ValueError(f"limit {self.name}: max must be at least 0, got {self.max}")
        fits = self.period_us >= PARTS if self.span is Span.SLIDING else self.period_us == 0
        if not fits:
            raise ValueError(f"limit {self.name}: a sliding window, and only that, has a period")

    @property
    def selector(self) -> tuple[str, str, str, str]:
        """What it applies to, in the order in which rules are compared."""
        return (self.tenant, self.tier, self.model, self.endpoint)

    @property
    def counts(self) -> "_Counts":
        """What it counts: of rules that count the same, only the most specific holds."""
        return (self.unit, self.span, self.period_us, self.total)

    def applies(self, tenant: str, tier: str, model: str, endpoint: str) -> bool:
        """Tell whether it speaks of such a request."""
        asked = (tenant, tier, model, endpoint)
        return all(not mine or mine == its for mine, its in zip(self.selector, asked, strict=True))


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


_Counts = tuple[Unit, Span, int, bool]


def rules_for(
    rules: Sequence[LimitRule], *, tenant: str, tier: str, model: str, endpoint: str
) -> tuple[LimitRule, ...]:
    """Return the rules that hold for a request, in their order.

    Of rules that count the same thing over the same time, the most specific
    holds alone: one that names the tenant before one that names the tier, then
    the model, then the endpoint; of equals, the first. A rule in shadow mode
    holds beside the one that it would replace. Pure; O(rules).
    """
    enforced: dict[_Counts, LimitRule] = {}
    tried: dict[_Counts, LimitRule] = {}
    for rule in rules:
        if rule.applies(tenant, tier, model, endpoint):
            best = tried if rule.shadow else enforced
            known = best.get(rule.counts)
            if known is None or _specificity(rule) > _specificity(known):
                best[rule.counts] = rule
    for counts, rule in enforced.items():
        if counts in tried and _specificity(rule) > _specificity(tried[counts]):
            del tried[counts]
    return tuple(
        rule for rule in rules if (tried if rule.shadow else enforced).get(rule.counts) is rule
    )


def _specificity(rule: LimitRule) -> tuple[bool, ...]:
    return tuple(bool(name) for name in rule.selector)


def reserved(rule: LimitRule, amounts: Amounts) -> int:
    """Return what a request takes of a limit when it's admitted.

    What is known counts whole. Output tokens are a guess: they are cut so that
    a request whose known part fits the limit is never refused for ever; only a
    limit of 0 refuses all of them.
    """
    unit = rule.unit
    amount = amounts.of(unit)
    if amount <= rule.max:
        return amount
    if unit is Unit.TOKENS:
        return max(amounts.input_tokens, rule.max, 1)
    return max(rule.max, 1) if unit is Unit.OUTPUT_TOKENS else amount
