# SPDX-License-Identifier: Apache-2.0
"""Takes requests on as far as their limits allow, and settles what they took.

All limits of a request are charged together before it's queued, and settled
once when it ends, whatever way it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from taketurns.calendar_month import MonthClock
from taketurns.config.limits import per_of, unit_of
from taketurns.core.limit_rules import Amounts, LimitRule, Span, rules_for
from taketurns.core.limits import Admitted, Denied, Ledger, Plan, Status
from taketurns.dialects.names import Dialect
from taketurns.dialects.rate_headers import Limit, RateHeaders, reset_texts
from taketurns.errors import RequestError, StoreUnavailableError, TaketurnsError
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.pools import Caller
from taketurns.gateway.quotas import Covered, Quotas
from taketurns.ports.clock import Clock
from taketurns.ports.limits import SharedLimits, Taken
from taketurns.ports.stores import QuotaStore
from taketurns.units import US_PER_S, us_from_s

RULES_CACHED_MAX = 10_000
"""Most combinations of tenant, endpoint and model whose rules are kept at hand."""

MONTH_US = 31 * 86_400 * US_PER_S
"""Length of a month's window as headers tell it: the longest a month can be."""


class LimitedError(TaketurnsError):
    """A limit refuses a request: it was not queued and not executed.

    Attributes:
        status: The rule that takes longest to let it in.
        asked: How much the request asks of it.
        retry_us: How long until it would be let in; None: nobody can tell.
    """

    code = "rate_limit_exceeded"

    def __init__(self, status: Status, asked: int, retry_us: int | None) -> None:
        super().__init__(f"limit {status.rule.name}")
        self.status = status
        self.asked = asked
        self.retry_us = retry_us


class QuotaUnavailableError(TaketurnsError):
    """The store can't confirm a month's quota: granting more could under-count it."""

    code = "quota_store_unavailable"


@dataclass(slots=True)
class Admittance:
    """One request that was let in, where more than this process counts it; settle it once."""

    _admitted: Admitted
    _tenant: str
    _quotas: Quotas
    _settled: bool = field(default=False)
    _sharing: SharedLimits | None = field(default=None)
    _taken: Taken | None = field(default=None)

    def share(self, sharing: SharedLimits, taken: Taken) -> None:
        """Settle what was taken of limits that are shared, too."""
        self._sharing = sharing
        self._taken = taken

    def settle(self, used: Amounts | None) -> None:
        """Correct the charge to what was used; None: it was not executed.

        Called again it does nothing, so that every way out may call it.
        """
        if not self._settled:
            self._settled = True
            self._admitted.settle(used)
            self._quotas.settled(self._tenant, self._admitted)
            if self._sharing is not None and self._taken is not None:
                self._sharing.settle(self._taken, used)


class _Seen:
    """What counted of a shared limit when it was last seen; read like a counter."""

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used = 0


class _Held:
    """What is kept at hand for requests of one kind: limits and headers.

    Attributes:
        rules: The limits.
        plan: Those of them that are counted here.
        shared: The others.
        seen: What counted of those, by their names.
        counted: What is told of: each limit, and what counts against it.
        headers: Tells how they stand.
        here: All limits are counted in this process alone, and nobody else is asked.
    """

    __slots__ = ("counted", "headers", "here", "plan", "rules", "seen", "shared")

    def __init__(self, rules: tuple[LimitRule, ...], plan: Plan, *, stored: bool) -> None:
        self.rules = rules
        self.plan = plan
        self.shared = tuple(rule for rule in rules if rule not in plan.rules)
        self.here = not self.shared and not (stored and plan.months)
        self.seen = {rule.name: _Seen() for rule in self.shared}
        counters = dict(zip((rule.name for rule in plan.rules), plan.counters, strict=True))
        told = [
            (rule, counters.get(rule.name) or self.seen[rule.name])
            for rule in rules
            if rule.span is not Span.PARALLEL and not rule.shadow
        ]
        self.counted = [(rule.max, counter) for rule, counter in told]
        self.headers = RateHeaders([_as_told(rule) for rule, _ in told])


class Admission:
    """The limits of a gateway.

    Args:
        rules: As the operator wrote them, in the order of the file.
        clock: The process's clock.
        month: Says which month it is, and when it ends.
        wall: Returns the time of day.
        store: Where months are kept; None: in memory only.
        sharing: Counts what isn't of a month, together with other gateways; None: counted here.
        on_refusal: Told the name of a rule that refuses, and its mode: ``enforce`` or ``shadow``.
    """

    def __init__(
        self,
        rules: Sequence[LimitRule],
        clock: Clock,
        *,
        month: MonthClock,
        wall: Callable[[], datetime],
        store: QuotaStore | None,
        on_refusal: Callable[[str, str], None],
        sharing: SharedLimits | None = None,
    ) -> None:
        self._sharing = sharing
        self._ledger = Ledger()
        self._quotas = Quotas(store, self._ledger, rules, month, clock)
        self._rules = tuple(rules)
        self._clock = clock
        self._calendar = month
        self._wall = wall
        self._on_refusal = on_refusal
        self._stored = store is not None
        self._held: dict[tuple[str, str, str, str], _Held] = {}
        self._month = ""
        self._month_reset = reset_texts(0)
        self._look_us = 0
        # When the last one that a rule refused was told to come back.
        self._promised_us: dict[tuple[str, str], int] = {}

    async def start(self) -> None:
        """Go on from the month's counts that were kept.

        Raises:
            StoreError: They can't be read.
        """
        await self._quotas.start()

    async def aclose(self) -> None:
        """Keep the month's counts; all requests are settled by then."""
        await self._quotas.aclose()

    @property
    def failing(self) -> bool:
        """True while the month's counts can't be kept."""
        return self._quotas.failing

    def set_rules(self, rules: Sequence[LimitRule]) -> None:
        """Go by other rules; one that keeps its name and what it counts goes on counting."""
        self._rules = tuple(rules)
        self._held.clear()
        self._promised_us.clear()
        self._ledger.keep(rules)
        self._quotas.set_rules(rules)
        if self._sharing is not None:
            self._sharing.set_rules(_shared(rules))

    def rules(self, *, tenant: str, tier: str, endpoint: str, model: str) -> tuple[LimitRule, ...]:
        """Return the limits that hold for such a request."""
        return self._held_for(tenant, tier, endpoint, model).rules

    async def let_in(
        self, exchange: Exchange, caller: Caller, model: str, amounts: Amounts
    ) -> None:
        """Charge a request to its limits; whoever ends it settles ``exchange.admittance``.

        How its limits stand goes into the answer's headers, whatever the answer.

        Raises:
            LimitedError: A limit refuses it for now; nothing was charged.
            QuotaUnavailableError: A month's count can't be kept.
            RequestError: 400: it asks more than a limit allows at all; 403: that is nothing.
        """
        tenant = caller.tenant
        while True:
            # Anew each time: the rules may have changed while it waited.
            held = self._held_for(tenant, caller.tier, exchange.record.endpoint, model)
            if not held.rules:
                return
            now_us = self._clock.now_us()
            if now_us >= self._look_us:
                self._look_at_calendar(now_us)
            result = held.plan.admit(amounts, now_us=now_us, month=self._month)
            if isinstance(result, Denied):
                self._tell_standing(exchange, held)
                raise self._refusal(result, tenant, amounts, now_us)
            shadowed = result.shadowed
            if held.here:
                exchange.admittance = result
                break
            exchange.admittance = admittance = Admittance(result, tenant, self._quotas)
            if await self._covers(tenant, result):
                if held.shared and self._sharing is not None:
                    taken = await self._take_shared(self._sharing, exchange, held, tenant, amounts)
                    admittance.share(self._sharing, taken)
                    shadowed = (*shadowed, *taken.shadowed)
                break
            admittance.settle(None)
        for status in shadowed:
            self._on_refusal(status.rule.name, "shadow")
        self._tell_standing(exchange, held)

    async def _covers(self, tenant: str, admitted: Admitted) -> bool:
        """Wait until the store has confirmed what a request takes of its months.

        False: other gateways have used a month up meanwhile, or the rules have changed.
        """
        if not self._stored or self._quotas.covers(tenant, admitted):
            return True
        covered = await self._quotas.cover(tenant, admitted)
        if covered is Covered.NO:
            raise QuotaUnavailableError("the store of quotas can't be written")
        return covered is Covered.YES

    async def _take_shared(
        self, sharing: SharedLimits, exchange: Exchange, held: _Held, tenant: str, amounts: Amounts
    ) -> Taken:
        """Charge a request to the limits that are shared, or refuse it."""
        try:
            result = await sharing.admit(held.shared, tenant, amounts, exchange.record.request_id)
        except StoreUnavailableError as error:
            raise QuotaUnavailableError(str(error)) from error
        for status in result.statuses:
            held.seen[status.rule.name].used = status.used
        if isinstance(result, Denied):
            self._tell_standing(exchange, held)
            raise self._refusal(result, tenant, amounts, self._clock.now_us())
        return result

    def statuses(
        self, rules: Sequence[LimitRule], tenant: str, amounts: Amounts | None = None
    ) -> tuple[Status, ...]:
        """Return how rules stand for a tenant, and whether such a request would pass now.

        Those that are shared: as this gateway last saw them.
        """
        shared = () if self._sharing is None else _shared(rules)
        seen = (
            {}
            if self._sharing is None
            else {status.rule: status for status in self._sharing.standing(shared, tenant)}
        )
        counted = self._ledger.status(
            [rule for rule in rules if rule not in seen],
            tenant,
            amounts or Amounts(0, 0, 0),
            now_us=self._clock.now_us(),
            month=self._quotas.month(),
        )
        found = {status.rule: status for status in counted} | seen
        return tuple(found[rule] for rule in rules)

    def _look_at_calendar(self, now_us: int) -> None:
        """See which month it is: when it ends, and each second, as the wall clock may be set."""
        self._month = self._quotas.month()
        left_us = self._month_left_us()
        self._month_reset = reset_texts(left_us)
        self._look_us = now_us + min(left_us, US_PER_S)

    def _month_left_us(self) -> int:
        left_s = (self._calendar.end - self._wall()).total_seconds()
        return max(0, us_from_s(left_s))

    def _held_for(self, tenant: str, tier: str, endpoint: str, model: str) -> _Held:
        key = (tenant, tier, endpoint, model)
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= RULES_CACHED_MAX:
                self._held.clear()
            rules = rules_for(self._rules, tenant=tenant, tier=tier, model=model, endpoint=endpoint)
            shared = () if self._sharing is None else _shared(rules)
            counted = [rule for rule in rules if rule not in shared]
            plan = self._ledger.plan(counted, tenant)
            held = self._held[key] = _Held(rules, plan, stored=self._stored)
        return held

    def _refusal(
        self, denied: Denied, tenant: str, amounts: Amounts, now_us: int
    ) -> TaketurnsError:
        if denied.never:
            rule = min(denied.never, key=lambda item: item.max > 0)
            self._on_refusal(rule.name, "enforce")
            return _too_large(rule, amounts) if rule.max else _not_allowed(rule)
        # The rule that lets it in last; one of which nobody knows when comes first.
        status = max(denied.statuses, key=lambda item: (item.wait_us is None, item.wait_us or 0))
        rule = status.rule
        self._on_refusal(rule.name, "enforce")
        asked = amounts.of(rule.unit)
        if rule.span is Span.MONTH:
            return LimitedError(status, asked, self._month_left_us())
        if status.wait_us is None:
            return LimitedError(status, asked, None)
        # Those that are refused together are told moments as far apart as the limit
        # lets them in, or they would all come back at once. Where they fill a period,
        # the next are told its moments anew: none is told a time that only gets longer.
        key = (rule.name, "" if rule.total else tenant)
        earliest_us = now_us + status.wait_us
        promised_us = earliest_us
        last_us = self._promised_us.get(key, 0)
        if last_us >= earliest_us:
            apart_us = asked * rule.period_us // max(1, rule.max)
            if last_us + apart_us <= earliest_us + rule.period_us:
                promised_us = last_us + apart_us
        self._promised_us[key] = promised_us
        return LimitedError(status, asked, promised_us - now_us)

    def _tell_standing(self, exchange: Exchange, held: _Held) -> None:
        """Tell how limits stand whose counters are up to date."""
        left = [most - counter.used for most, counter in held.counted]
        cohere = exchange.dialect is Dialect.COHERE
        epoch_s = int(self._wall().timestamp()) if cohere else None
        told = held.headers.lines(left, self._month_reset, epoch_s=epoch_s)
        exchange.reply_lines["limits"] = told


def _shared(rules: Sequence[LimitRule]) -> tuple[LimitRule, ...]:
    """Return the rules that a coordinator counts: months have their own store."""
    return tuple(rule for rule in rules if rule.span is not Span.MONTH)


def _as_told(rule: LimitRule) -> Limit:
    if rule.span is Span.MONTH:
        return Limit(rule.name, rule.unit.value, rule.max, MONTH_US, None)
    # What a request just took counts for a whole window.
    return Limit(rule.name, rule.unit.value, rule.max, rule.period_us, rule.period_us)


def limit_in_words(rule: LimitRule) -> str:
    """Return a limit in words: ``60000 tokens per minute``, ``4 requests at once``."""
    if rule.span is Span.PARALLEL:
        return f"{rule.max} requests at once"
    return f"{rule.max} {unit_of(rule).replace('_', ' ')} per {per_of(rule)}"


def _not_allowed(rule: LimitRule) -> RequestError:
    return RequestError(
        403,
        "not_allowed",
        f"Limit {rule.name} lets nothing pass here.",
        hint="Ask your operator: waiting or sending less does not help.",
    )


def _too_large(rule: LimitRule, amounts: Amounts) -> RequestError:
    return RequestError(
        400,
        "request_exceeds_limit",
        f"The request asks for {amounts.of(rule.unit)} {rule.unit.value.replace('_', ' ')}; limit "
        f"{rule.name} allows {limit_in_words(rule)}, so it can never be let in.",
        hint="Make it smaller.",
    )
