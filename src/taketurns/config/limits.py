# SPDX-License-Identifier: Apache-2.0
"""The ``limits`` section of the file: rate limits and quotas, and the time zone of their months."""

import difflib
import re
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, tzinfo
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, WithJsonSchema, model_validator

from taketurns.config.quantities import NAME_PATTERN, Count, Name, Text, between, fault
from taketurns.config.section import Section
from taketurns.core.limits import LimitRule, Span, Unit

ALL = "*"
"""In a selector: whatever it is."""

LIMIT_MAX = 1_000_000_000_000_000
"""Largest limit: sums of what is under way stay below 2**53 beside it."""

PERIOD_US = {
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
"""Length of each sliding window."""

_PER_BY_PERIOD_US = {period_us: per for per, period_us in PERIOD_US.items()}


def selector(value: str) -> str:
    """Check what a rule selects: a name, or ``*``."""
    if value == ALL or re.fullmatch(NAME_PATTERN, value):
        return value
    raise fault("is neither a name nor *", 'Write one name, or "*" for all, with the quotes.')


Selector = Annotated[
    str,
    AfterValidator(selector),
    WithJsonSchema({"type": "string", "pattern": rf"^(\*|{NAME_PATTERN})$|^\$\{{.+\}}$"}),
]


class LimitConfig(Section):
    """``limits[]``: how much may pass in a span of time."""

    tenant: Selector = ALL
    """Only this tenant's requests. Default ``"*"``: every tenant's."""

    tier: Selector = ALL
    """Only tenants of this tier. Default ``"*"``: of every tier."""

    model: Selector = ALL
    """Only requests for this model. Default ``"*"``: all models together."""

    endpoint: Literal[
        "*", "chat", "completions", "responses", "messages", "embeddings", "rerank", "tokenize"
    ] = "*"
    """Only requests to this endpoint. Default ``"*"``: all endpoints together."""

    unit: Literal["requests", "tokens", "input_tokens", "output_tokens", "inputs", "parallel"]
    """What counts. ``tokens``: of input and output. ``inputs``: texts of embeddings and documents
    of rerank; 1 for other requests. ``parallel``: requests that wait or run."""

    per: Literal["second", "minute", "hour", "day", "month"] | None = None
    """In what time: any second, minute, hour or day, wherever it begins, or the calendar month in
    ``time_zone``. Needed, but with ``parallel``, where it means nothing. Default: none."""

    max: Annotated[Count, between(0, LIMIT_MAX)]
    """How much: 0 lets nothing pass."""

    scope: Literal["each", "total"] = "each"
    """``each``: every tenant may have so much; ``total``: all that the rule selects together.
    Default each."""

    mode: Literal["enforce", "shadow"] = "enforce"
    """``shadow`` counts and reports what it would refuse, and refuses nothing; it holds beside the
    rule that it would replace. Default enforce."""

    name: Name | None = None
    """Shown in errors, metrics and the log. Default: made of what the rule counts and selects."""

    @model_validator(mode="after")
    def _per_goes_with_unit(self) -> Self:
        if self.unit == "parallel" and self.per is not None:
            raise fault("has `per`, which means nothing with unit: parallel", "Remove per.")
        if self.unit != "parallel" and self.per is None:
            raise fault("has no `per`", "Add per: second, minute, hour, day or month.")
        return self

    @property
    def name_or_default(self) -> str:
        """The name: where the operator gave none, one that no other rule has.

        It's made of what the rule is and not of where it stands, so that what was
        counted stays with it when other rules come and go.
        """
        if self.name is not None:
            return self.name
        counted = "/".join(
            [
                self.unit,
                *([self.per] if self.per else []),
                *(["total"] if self.scope == "total" else []),
            ]
        )
        named = [
            f"{key}={value}"
            for key in ("tenant", "tier", "model", "endpoint")
            if (value := getattr(self, key)) != ALL
        ]
        return f"{counted}[{','.join(named)}]" if named else counted

    def rule(self) -> LimitRule:
        """Return the rule as the core reads it."""
        return LimitRule(
            name=self.name_or_default,
            unit=Unit.REQUESTS if self.unit == "parallel" else Unit(self.unit),
            span=self._span,
            max=self.max,
            period_us=PERIOD_US.get(self.per or "", 0),
            tenant=_named(self.tenant),
            tier=_named(self.tier),
            model=_named(self.model),
            endpoint=_named(self.endpoint),
            total=self.scope == "total",
            shadow=self.mode == "shadow",
        )

    @property
    def _span(self) -> Span:
        if self.unit == "parallel":
            return Span.PARALLEL
        return Span.MONTH if self.per == "month" else Span.SLIDING


def _named(value: str) -> str:
    return "" if value == ALL else value


def limit_rules(limits: Sequence[LimitConfig]) -> tuple[LimitRule, ...]:
    """Return the rules as the core reads them, in the order of the file."""
    return tuple(limit.rule() for limit in limits)


def unit_of(rule: LimitRule) -> str:
    """Return a rule's unit as the operator writes it."""
    return "parallel" if rule.span is Span.PARALLEL else rule.unit.value


def per_of(rule: LimitRule) -> str | None:
    """Return a rule's span of time as the operator writes it; None with ``parallel``."""
    if rule.span is Span.SLIDING:
        return _PER_BY_PERIOD_US.get(rule.period_us)
    return "month" if rule.span is Span.MONTH else None


def zone(name: str) -> tzinfo:
    """Return a time zone; ``UTC`` needs no database of them.

    Raises:
        ValueError, OSError, LookupError: There is no such zone here.
    """
    return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def time_zone(name: str) -> str:
    """Check that a time zone is known here."""
    try:
        zone(name)
    except (ValueError, OSError, LookupError):
        known = zoneinfo.available_timezones()
        near = difflib.get_close_matches(name[:64], sorted(known), n=1, cutoff=0.6)
        hint = "Write a name such as UTC or Europe/Berlin."
        if near:
            hint = f"Did you mean {near[0]}? {hint}"
        elif not known:
            hint = "There is no time zone database here: install tzdata, or write UTC."
        raise fault("is not a time zone that is known here", hint) from None
    return name


TimeZone = Annotated[Text, AfterValidator(time_zone)]
