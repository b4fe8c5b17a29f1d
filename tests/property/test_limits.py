# SPDX-License-Identifier: Apache-2.0
"""Whatever comes when, limits hold over every window, and agree with one that keeps every event."""

import copy
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taketurns.core.limits import Admitted, Amounts, Denied, Ledger, LimitRule, Span, Unit

PERIODS = st.integers(60, 300)
LIMITS = st.integers(1, 12)
# Inside a part, over several parts, and (below zero) so much short of a whole period.
GAPS = st.integers(0, 8) | st.integers(0, 320) | st.integers(-6, -1)
PHASES = st.integers(0, 400)
TOKENS = st.integers(0, 5)
MONTHS = ("2026-11", "2026-12", "2027-01")
BIG = 10**9


def limit(period_us, max_, unit=Unit.TOKENS, **fields):
    return LimitRule("window", unit, Span.SLIDING, max_, period_us, **fields)


class Sender:
    """One rule, one tenant: what was admitted when, and what it was settled to."""

    def __init__(self, rule, now_us=0):
        self.ledger = Ledger()
        self.rule = rule
        self.now_us = now_us
        self.events = []  # [when, amount that holds for it, what was admitted or None once settled]

    def pass_time(self, gap_us):
        self.now_us += gap_us if gap_us >= 0 else self.rule.period_us + gap_us

    def ask(self, amounts):
        result = self.ledger.admit([self.rule], "a", amounts, now_us=self.now_us, month="m")
        if isinstance(result, Admitted):
            self.events.append([self.now_us, result.charges[0].amount, result])
        return result

    def settle(self, event, used):
        admitted, event[2] = event[2], None
        admitted.settle(used)
        event[1] = 0 if used is None else used.of(self.rule.unit)

    def used(self):
        (status,) = self.ledger.status(
            [self.rule], "a", Amounts(1, 1), now_us=self.now_us, month="m"
        )
        return status.used

    def most_in_a_window(self):
        """The most that any half-open window of the period's length holds.

        A window can be moved on until it begins with an event and loses none.
        """
        period_us = self.rule.period_us
        return max(
            (
                sum(amount for when, amount, _ in self.events if begin <= when < begin + period_us)
                for begin, _, _ in self.events
            ),
            default=0,
        )


STEPS = st.lists(
    st.tuples(GAPS, st.tuples(TOKENS, TOKENS), st.none() | st.tuples(st.integers(0, 9), TOKENS)),
    max_size=60,
)


@given(period_us=PERIODS, max_=LIMITS, phase_us=PHASES, steps=STEPS)
def test_no_window_holds_more_than_the_limit_where_none_takes_more_than_was_reserved(
    period_us, max_, phase_us, steps
):
    sender = Sender(limit(period_us, max_), phase_us)
    for gap_us, (known, guess), settled in steps:
        sender.pass_time(gap_us)
        sender.ask(Amounts(1, known, guess))
        open_ = [event for event in sender.events if event[2]]
        if settled and open_:
            pick, less = settled
            event = open_[pick % len(open_)]
            final = max(0, event[1] - less)
            sender.settle(event, Amounts(1, final) if final else None)
        assert sender.used() <= max_
    assert sender.most_in_a_window() <= max_


@given(
    period_us=PERIODS,
    max_=st.integers(1, 4),
    phase_us=PHASES,
    gaps=st.lists(st.integers(-4, 2), min_size=20, max_size=60),
)
def test_no_window_holds_more_where_bursts_come_about_a_period_apart(
    period_us, max_, phase_us, gaps
):
    sender = Sender(limit(period_us, max_, Unit.REQUESTS), phase_us)
    for gap_us in gaps:
        sender.pass_time(gap_us)
        sender.ask(Amounts())
    assert sender.most_in_a_window() <= max_


@given(period_us=PERIODS, max_=LIMITS, phase_us=PHASES, steps=STEPS)
def test_a_window_exceeds_the_limit_by_no_more_than_what_was_taken_beyond_reservations(
    period_us, max_, phase_us, steps
):
    sender = Sender(limit(period_us, max_), phase_us)
    beyond = []  # [when, how much more than reserved]
    for gap_us, (known, guess), settled in steps:
        sender.pass_time(gap_us)
        sender.ask(Amounts(1, known, guess))
        open_ = [event for event in sender.events if event[2]]
        if settled and open_:
            pick, more = settled
            event = open_[pick % len(open_)]
            beyond.append((event[0], more))
            sender.settle(event, Amounts(1, event[1] + more))
    for begin, _, _ in sender.events:
        end = begin + period_us
        held = sum(amount for when, amount, _ in sender.events if begin <= when < end)
        assert held <= max_ + sum(more for when, more in beyond if begin <= when < end)


@given(
    # Where a part is a sixtieth of the period exactly.
    part_us=st.integers(1, 5) | st.integers(100, 300),
    max_=st.integers(1, 60) | st.integers(60, 300),
    phase_us=PHASES,
)
def test_who_sends_steadily_at_the_limits_rate_gets_at_least_60_of_61(part_us, max_, phase_us):
    period_us = 60 * part_us
    sender = Sender(limit(period_us, max_, Unit.REQUESTS))
    periods = 6
    admitted = 0
    for number in range(periods * max_):
        sender.now_us = phase_us + number * period_us // max_
        admitted += isinstance(sender.ask(Amounts()), Admitted)
    assert admitted * 61 >= periods * max_ * 60


@given(parts=st.integers(1, 4), max_=st.integers(1, 30), phase_us=PHASES)
def test_who_sends_at_most_once_in_a_part_gets_the_whole_limit(parts, max_, phase_us):
    # Parts of 10 us, a request every one to four parts: the limit is what fits a period.
    sender = Sender(limit(600, 60 // parts, Unit.REQUESTS))
    for number in range(3 * max_):
        sender.now_us = phase_us + number * 10 * parts
        assert isinstance(sender.ask(Amounts()), Admitted)


@given(period_us=PERIODS, max_=LIMITS, phase_us=PHASES)
def test_who_always_has_more_gets_the_limit_in_every_period_and_a_part(period_us, max_, phase_us):
    sender = Sender(limit(period_us, max_, Unit.REQUESTS))
    for now_us in range(phase_us, phase_us + 4 * period_us):
        sender.now_us = now_us
        sender.ask(Amounts())
    long_us = period_us + -(-period_us // 60)
    for begin in range(phase_us, phase_us + 3 * period_us - long_us):
        assert sum(begin <= when < begin + long_us for when, _, _ in sender.events) >= max_


MIXED = (
    limit(60, 9),
    replace(limit(150, 3, Unit.REQUESTS), name="requests"),
    LimitRule("month", Unit.INPUT_TOKENS, Span.MONTH, 20),
    LimitRule("parallel", Unit.REQUESTS, Span.PARALLEL, 4),
)


def counts(ledger):
    """All that a ledger holds, as text, whichever the classes that hold it."""

    def seen(thing):
        if isinstance(thing, list | tuple):
            return [seen(item) for item in thing]
        if hasattr(type(thing), "__slots__") and not isinstance(thing, str | int):
            names = [
                name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())
            ]
            return {name: seen(getattr(thing, name)) for name in names}
        return thing

    return {key: seen(counter) for key, counter in ledger._counters.items()}


@given(
    steps=st.lists(st.tuples(GAPS, TOKENS, TOKENS, st.booleans()), max_size=40),
    order=st.permutations(MIXED),
)
def test_a_refusal_leaves_every_count_as_it_was(steps, order):
    ledger, now_us = Ledger(), 0
    for gap_us, known, guess, settle in steps:
        now_us += abs(gap_us)
        ledger.status(order, "a", Amounts(), now_us=now_us, month="m")
        before = counts(ledger)
        amounts = Amounts(1, known, guess)
        result = ledger.admit(order, "a", amounts, now_us=now_us, month="m")
        if isinstance(result, Denied):
            assert counts(ledger) == before
        elif settle:
            result.settle(amounts)


@given(
    steps=st.lists(
        st.tuples(GAPS, st.sampled_from("ab"), TOKENS, TOKENS, st.none() | st.integers(0, 9)),
        max_size=40,
    ),
    last=st.randoms(use_true_random=False),
)
def test_once_all_is_settled_the_counts_are_what_was_used(steps, last):
    rules = [
        limit(BIG, BIG),
        replace(limit(BIG, BIG, Unit.INPUTS), name="inputs", total=True),
        LimitRule("month", Unit.OUTPUT_TOKENS, Span.MONTH, BIG),
        LimitRule("parallel", Unit.REQUESTS, Span.PARALLEL, 5),
    ]
    ledger, now_us = Ledger(), 0
    open_, sums = [], {"a": Amounts(0, 0, 0), "b": Amounts(0, 0, 0)}

    def settle(pick):
        tenant, admitted, known = open_.pop(pick)
        used = last.choice([None, Amounts(1, known, last.randrange(9))])
        admitted.settle(used)
        if used:
            sums[tenant] = Amounts(*(x + y for x, y in zip(sums[tenant], used, strict=True)))

    for gap_us, tenant, known, guess, pick in steps:
        now_us += abs(gap_us)
        result = ledger.admit(rules, tenant, Amounts(1, known, guess), now_us=now_us, month="m")
        if isinstance(result, Admitted):
            open_.append((tenant, result, known))
        if pick is not None and open_:
            settle(pick % len(open_))
    while open_:
        settle(last.randrange(len(open_)))
    inputs = sum(used.inputs for used in sums.values())
    for tenant, used in sums.items():
        statuses = ledger.status(rules, tenant, Amounts(), now_us=now_us, month="m")
        assert [status.used for status in statuses] == [
            used.of(Unit.TOKENS),
            inputs,
            used.output_tokens,
            0,
        ]


@given(
    period_us=PERIODS,
    max_=LIMITS,
    steps=st.lists(st.tuples(GAPS, TOKENS), max_size=20),
    more=st.integers(0, 6),
    asked=st.tuples(TOKENS, TOKENS),
)
def test_nothing_is_admitted_with_more_used_that_is_refused_with_less(
    period_us, max_, steps, more, asked
):
    sender = Sender(limit(period_us, max_))
    for gap_us, known in steps:
        sender.pass_time(gap_us)
        sender.ask(Amounts(1, known))
    fuller = copy.deepcopy(sender)
    # In shadow mode it counts, whatever the limit.
    fuller.rule = replace(sender.rule, shadow=True)
    fuller.ask(Amounts(1, more))
    fuller.rule = sender.rule
    less_used, more_used = sender.ask(Amounts(1, *asked)), fuller.ask(Amounts(1, *asked))
    assert isinstance(less_used, Admitted) or isinstance(more_used, Denied)
    if isinstance(less_used, Denied) and not less_used.never:
        assert less_used.statuses[0].wait_us <= more_used.statuses[0].wait_us


@given(
    period_us=PERIODS,
    max_=LIMITS,
    phase_us=PHASES,
    steps=st.lists(st.tuples(GAPS, TOKENS, st.integers(-2, 2)), min_size=1, max_size=30),
    asked=st.tuples(TOKENS, TOKENS),
)
def test_a_retry_is_admitted_when_the_wait_is_over_and_not_a_microsecond_earlier(
    period_us, max_, phase_us, steps, asked
):
    sender = Sender(limit(period_us, max_), phase_us)
    for gap_us, known, correction in steps:
        sender.pass_time(gap_us)
        if isinstance(sender.ask(Amounts(1, known)), Admitted):
            sender.settle(sender.events[-1], Amounts(1, max(0, known + correction)))
    sender.pass_time(steps[0][0])
    amounts = Amounts(1, *asked)
    denied = copy.deepcopy(sender).ask(amounts)
    if isinstance(denied, Admitted) or denied.never:
        return
    (status,) = denied.statuses
    assert 0 < status.wait_us <= period_us + -(-period_us // 60)
    sender.now_us += status.wait_us - 1
    assert isinstance(sender.ask(amounts), Denied)
    sender.now_us += 1
    assert isinstance(sender.ask(amounts), Admitted)


@dataclass
class Event:
    """One charge of one rule."""

    when_us: int
    month: str
    amount: int
    given_back: bool = False


@dataclass
class NaiveRule:
    """Keeps every event, and counts them anew each time it's asked."""

    rule: LimitRule
    events: dict[str, list[Event]] = field(default_factory=dict)

    def of(self, tenant):
        return self.events.setdefault("" if self.rule.total else tenant, [])

    def counts(self, event, tenant, now_us, month):
        if self.rule.span is Span.PARALLEL:
            return not event.given_back
        if self.rule.span is Span.MONTH:
            return event.month == month
        # By the last event of its part, counted by hand over all 61 that can matter.
        width_us = -(-self.rule.period_us // 60)
        last_us = max(
            other.when_us
            for other in self.of(tenant)
            if other.when_us // width_us == event.when_us // width_us
        )
        return now_us - last_us < self.rule.period_us

    def used(self, tenant, now_us, month):
        return sum(
            event.amount for event in self.of(tenant) if self.counts(event, tenant, now_us, month)
        )

    def asked(self, amounts):
        known = replace_output(amounts, 0).of(self.rule.unit)
        whole = amounts.of(self.rule.unit)
        if known == whole:
            return whole
        return max(known, min(whole, max(self.rule.max, 1)))


def replace_output(amounts, tokens):
    return Amounts(amounts.inputs, amounts.input_tokens, tokens)


class LimitsMachine(RuleBasedStateMachine):
    """Several rules and tenants, against the naive ones."""

    @initialize(
        phase_us=PHASES,
        periods=st.lists(PERIODS, min_size=3, max_size=3),
        maxes=st.lists(st.integers(0, 12), min_size=6, max_size=6),
        shadow=st.integers(0, 11),
    )
    def start(self, phase_us, periods, maxes, shadow):
        spans = [
            (Unit.TOKENS, Span.SLIDING, periods[0], False),
            (Unit.REQUESTS, Span.SLIDING, periods[1], False),
            (Unit.OUTPUT_TOKENS, Span.SLIDING, periods[2], True),
            (Unit.INPUTS, Span.MONTH, 0, True),
            (Unit.TOKENS, Span.MONTH, 0, False),
            (Unit.REQUESTS, Span.PARALLEL, 0, False),
        ]
        self.rules = [
            LimitRule(
                f"rule {number}",
                unit,
                span,
                max_ * (4 if span is Span.MONTH else 1),
                period_us,
                total=total,
                shadow=shadow == number,
            )
            for number, ((unit, span, period_us, total), max_) in enumerate(
                zip(spans, maxes, strict=True)
            )
        ]
        self.naive = {item.name: NaiveRule(item) for item in self.rules}
        self.ledger = Ledger()
        self.now_us = phase_us
        self.month = 0
        self.open = []

    @property
    def at(self):
        return {"now_us": self.now_us, "month": MONTHS[self.month]}

    @rule(by_us=GAPS)
    def time_passes(self, by_us):
        self.now_us += abs(by_us)

    @precondition(lambda self: self.month + 1 < len(MONTHS))
    @rule()
    def month_passes(self):
        self.month += 1

    @rule(
        tenant=st.sampled_from("abc"),
        held=st.sets(st.integers(0, 5), min_size=1),
        amounts=st.builds(Amounts, st.integers(1, 3), TOKENS, TOKENS),
        by_us=st.integers(0, 4),
    )
    def ask(self, tenant, held, amounts, by_us):
        self.now_us += by_us
        rules = [self.rules[number] for number in sorted(held)]
        result = self.ledger.admit(rules, tenant, amounts, **self.at)
        over, shadowed, never, events = [], [], [], []
        for item in rules:
            naive = self.naive[item.name]
            asked, used = naive.asked(amounts), naive.used(tenant, **self.at)
            if asked and used + asked > item.max:
                (shadowed if item.shadow else over).append((item, used))
                if asked > item.max and not item.shadow:
                    never.append(item)
            events.append((item, tenant, Event(self.now_us, MONTHS[self.month], asked)))
        if over:
            assert isinstance(result, Denied)
            assert [status[:2] for status in result.statuses] == over
            assert list(result.never) == never
            return
        assert isinstance(result, Admitted)
        assert [status[:2] for status in result.shadowed] == shadowed
        assert [charge.amount for charge in result.charges] == [
            event.amount for _, _, event in events
        ]
        for item, _, event in events:
            self.naive[item.name].of(tenant).append(event)
        self.open.append((result, amounts, events))

    @precondition(lambda self: self.open)
    @rule(
        pick=st.integers(0, 30),
        output=st.none() | st.integers(0, 9),
        # Before, when, or after a charge is as old as the period.
        late_us=st.none() | st.integers(-1, 1),
    )
    def settle(self, pick, output, late_us):
        admitted, amounts, events = self.open.pop(pick % len(self.open))
        if late_us is not None:
            item, _, event = events[pick % len(events)]
            self.now_us = max(self.now_us, event.when_us + item.period_us + late_us)
            self.counts_agree()
        used = None if output is None else replace_output(amounts, output)
        admitted.settle(used)
        for item, tenant, event in events:
            # The ledger hasn't seen what passed since; until then it may correct what is over.
            if self.naive[item.name].counts(event, tenant, **self.at):
                event.amount = 0 if used is None else used.of(item.unit)
            event.given_back = True

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "naive"):
            return
        for tenant in "abc":
            for status in self.ledger.status(self.rules, tenant, Amounts(), **self.at):
                naive = self.naive[status.rule.name]
                assert status.used == naive.used(tenant, **self.at), (tenant, status)


TestLimits = LimitsMachine.TestCase
