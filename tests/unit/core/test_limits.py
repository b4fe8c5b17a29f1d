# SPDX-License-Identifier: Apache-2.0
"""All limits of a request are charged together or none is, and settled where they were charged."""

from dataclasses import replace

import pytest

from taketurns.core.limits import (
    Admitted,
    Amounts,
    Denied,
    Ledger,
    LimitRule,
    Span,
    Unit,
)

PERIOD_US = 600
MONTH = "2026-11"
ONE = Amounts()


@pytest.fixture
def ledger():
    return Ledger()


def sliding(max_, name="window", *, unit=Unit.REQUESTS, **fields):
    return LimitRule(name, unit, Span.SLIDING, max_, PERIOD_US, **fields)


def monthly(max_, name="month", **fields):
    return LimitRule(name, Unit.REQUESTS, Span.MONTH, max_, **fields)


def parallel(max_, name="parallel", **fields):
    return LimitRule(name, Unit.REQUESTS, Span.PARALLEL, max_, **fields)


def admit(ledger, *rules, amounts=ONE, tenant="acme", now_us=0, month=MONTH):
    return ledger.admit(rules, tenant, amounts, now_us=now_us, month=month)


def used(ledger, *rules, tenant="acme", now_us=0, month=MONTH):
    statuses = ledger.status(rules, tenant, ONE, now_us=now_us, month=month)
    return [status.used for status in statuses]


def test_requests_pass_up_to_the_limit_and_not_beyond(ledger):
    rule = sliding(3)
    results = [admit(ledger, rule) for _ in range(5)]
    assert [type(result) for result in results] == [Admitted] * 3 + [Denied] * 2
    assert used(ledger, rule) == [3]


def test_a_request_without_rules_passes(ledger):
    admitted = admit(ledger)
    assert (admitted.charges, admitted.shadowed) == ((), ())
    admitted.settle(ONE)


def test_a_refusal_says_what_is_used_and_when_to_come_back(ledger):
    rule = sliding(3, unit=Unit.TOKENS)
    admit(ledger, rule, amounts=Amounts(1, 2), now_us=100)
    denied = admit(ledger, rule, amounts=Amounts(1, 2), now_us=150)
    assert denied == Denied(((rule, 2, 550),), ())


def test_all_limits_are_charged_or_none(ledger):
    rules = [sliding(9), monthly(9), parallel(9), sliding(1, "narrow", unit=Unit.INPUTS)]
    admit(ledger, *rules)
    for order in (rules, rules[::-1]):
        denied = admit(ledger, *order)
        assert [status.rule.name for status in denied.statuses] == ["narrow"]
        assert used(ledger, *rules) == [1, 1, 1, 1]


def test_every_limit_that_is_in_the_way_is_named_in_order(ledger):
    rules = [sliding(1), parallel(5), monthly(1)]
    admit(ledger, *rules)
    denied = admit(ledger, *rules, now_us=10)
    assert denied == Denied(((rules[0], 1, 590), (rules[2], 1, None)), ())


def test_more_than_the_limit_itself_never_passes(ledger):
    rules = [sliding(5, unit=Unit.INPUT_TOKENS), sliding(1, "requests")]
    admit(ledger, rules[1])
    denied = admit(ledger, *rules, amounts=Amounts(1, 6))
    assert denied == Denied(((rules[0], 0, None), (rules[1], 1, 600)), (rules[0],))
    assert isinstance(admit(ledger, rules[0], amounts=Amounts(1, 5)), Admitted)


def test_a_guess_that_is_larger_than_the_limit_reserves_all_of_it(ledger):
    rule = sliding(10, unit=Unit.TOKENS)
    (charge,) = admit(ledger, rule, amounts=Amounts(1, 4, 10_000)).charges
    assert (charge.rule, charge.amount) == (rule, 10)
    denied = admit(ledger, rule, amounts=Amounts(1, 4, 10_000), now_us=5)
    assert denied == Denied(((rule, 10, 595),), ())
    assert isinstance(admit(ledger, rule, amounts=Amounts(1, 4, 9_000), now_us=600), Admitted)


@pytest.mark.parametrize("rule", [sliding(0), monthly(0), parallel(0)])
def test_a_limit_of_nothing_lets_nothing_pass(ledger, rule):
    assert admit(ledger, rule) == Denied(((rule, 0, None),), (rule,))


def test_what_takes_nothing_of_a_limit_isnt_refused_for_it(ledger):
    rule = sliding(5, unit=Unit.OUTPUT_TOKENS)
    admit(ledger, rule, amounts=Amounts(1, 0, 5)).settle(Amounts(1, 0, 8))
    assert isinstance(admit(ledger, rule, amounts=Amounts(1, 0, 1)), Denied)
    assert isinstance(admit(ledger, rule, amounts=Amounts(7, 100, 0)), Admitted)
    (status,) = ledger.status([rule], "acme", Amounts(7, 100, 0), now_us=0, month=MONTH)
    assert status.wait_us == 0


def test_tenants_have_a_limit_each_unless_it_is_for_all_together(ledger):
    each, total = sliding(1, "each"), sliding(2, "total", total=True)
    assert isinstance(admit(ledger, each, total, tenant="a"), Admitted)
    assert isinstance(admit(ledger, each, total, tenant="a"), Denied)
    assert isinstance(admit(ledger, each, total, tenant="b"), Admitted)
    denied = admit(ledger, each, total, tenant="c")
    assert [(status.rule.name, status.used) for status in denied.statuses] == [("total", 2)]


def test_a_rule_in_shadow_mode_counts_and_tells_but_lets_pass(ledger):
    tried = sliding(1, "tried", shadow=True)
    rule = sliding(3)
    assert admit(ledger, tried, rule).shadowed == ()
    assert admit(ledger, tried, rule, now_us=10).shadowed == ((tried, 1, 590),)
    assert admit(ledger, tried, rule, now_us=10).shadowed == ((tried, 2, 600),)
    denied = admit(ledger, tried, rule, now_us=10)
    assert [status.rule for status in denied.statuses] == [rule]
    assert used(ledger, tried, rule, now_us=10) == [3, 3]


def test_a_rule_in_shadow_mode_lets_pass_what_would_never_fit(ledger):
    tried = sliding(1, unit=Unit.INPUTS, shadow=True)
    assert admit(ledger, tried, amounts=Amounts(7)).shadowed == ((tried, 0, None),)
    assert used(ledger, tried) == [7]


@pytest.mark.parametrize("output", [0, 3, 5, 9])
def test_a_charge_is_settled_to_what_was_used(ledger, output):
    rules = [
        sliding(100, unit=Unit.TOKENS),
        LimitRule("month", Unit.TOKENS, Span.MONTH, 100),
        sliding(100, "inputs", unit=Unit.INPUTS),
    ]
    admitted = admit(ledger, *rules, amounts=Amounts(4, 2, 5))
    assert used(ledger, *rules) == [7, 7, 4]
    admitted.settle(Amounts(3, 2, output))
    assert used(ledger, *rules) == [2 + output, 2 + output, 3]


def test_what_was_not_executed_takes_nothing(ledger):
    rules = [sliding(1), monthly(1), parallel(1)]
    for _ in range(3):
        admitted = admit(ledger, *rules)
        admitted.settle(None)
        assert used(ledger, *rules) == [0, 0, 0]


def test_a_settlement_counts_when_the_request_was_admitted(ledger):
    rule = sliding(10, unit=Unit.TOKENS)
    first = admit(ledger, rule, amounts=Amounts(1, 4), now_us=0)
    admit(ledger, rule, amounts=Amounts(1, 1), now_us=300)
    first.settle(Amounts(1, 7))
    assert used(ledger, rule, now_us=599) == [8]
    assert used(ledger, rule, now_us=600) == [1]


def test_a_settlement_of_what_is_out_of_the_window_is_without_effect(ledger):
    rule = sliding(10, unit=Unit.TOKENS)
    first = admit(ledger, rule, amounts=Amounts(1, 4), now_us=0)
    second = admit(ledger, rule, amounts=Amounts(1, 4), now_us=0)
    admit(ledger, rule, amounts=Amounts(1, 1), now_us=600)
    first.settle(Amounts(1, 9))
    second.settle(None)
    assert used(ledger, rule, now_us=600) == [1]


def test_more_than_was_reserved_counts_against_what_follows(ledger):
    rule = sliding(5, unit=Unit.TOKENS)
    first = admit(ledger, rule, amounts=Amounts(1, 5), now_us=0)
    first.settle(Amounts(1, 8))
    assert admit(ledger, rule, amounts=Amounts(1, 1), now_us=1) == Denied(((rule, 8, 599),), ())
    assert isinstance(admit(ledger, rule, amounts=Amounts(1, 5), now_us=600), Admitted)


def test_a_place_is_given_back_when_the_request_ends_whatever_it_used(ledger):
    rule = parallel(2)
    first, _ = admit(ledger, rule), admit(ledger, rule)
    assert admit(ledger, rule) == Denied(((rule, 2, None),), ())
    first.settle(ONE)
    assert used(ledger, rule) == [1]
    assert isinstance(admit(ledger, rule), Admitted)
    assert isinstance(admit(ledger, rule), Denied)


def test_time_gives_no_place_back(ledger):
    rule = parallel(1)
    admit(ledger, rule)
    assert isinstance(admit(ledger, rule, now_us=10**12, month="2099-01"), Denied)


def test_a_month_begins_anew_and_closes_the_one_before(ledger):
    rule = monthly(2)
    late, _ = admit(ledger, rule), admit(ledger, rule)
    assert admit(ledger, rule) == Denied(((rule, 2, None),), ())
    assert isinstance(admit(ledger, rule, month="2026-12"), Admitted)
    late.settle(None)
    assert used(ledger, rule, month="2026-12") == [1]
    # A calendar that goes back doesn't open it again.
    assert used(ledger, rule) == [1]


def test_a_plan_that_is_kept_goes_by_the_month_it_is_told(ledger):
    rules = [monthly(2), sliding(9)]
    plan = ledger.plan(rules, "acme")

    def ask(month):
        return type(plan.admit(ONE, now_us=0, month=month))

    assert [ask(MONTH) for _ in range(3)] == [Admitted, Admitted, Denied]
    assert [ask("2026-12") for _ in range(3)] == [Admitted, Admitted, Denied]
    assert ask(MONTH) is Denied
    assert used(ledger, *rules) == [2, 4]


def test_a_request_is_settled_once(ledger):
    rules = [sliding(9), monthly(9), parallel(9)]
    first, second = admit(ledger, *rules), admit(ledger, *rules)
    for _ in range(2):
        first.settle(None)
        assert used(ledger, *rules) == [1, 1, 1]
        assert first.charges == ()
    assert [charge.amount for charge in second.charges] == [1, 1, 1]


def test_months_outlive_the_process(ledger):
    own, shared = monthly(5, "own"), monthly(9, "shared", total=True)
    for tenant in ("a", "b", "a"):
        admit(ledger, own, shared, sliding(9), parallel(9), tenant=tenant)
    kept = ledger.months()
    assert kept == {
        ("own", "a"): (MONTH, 2),
        ("own", "b"): (MONTH, 1),
        ("shared", ""): (MONTH, 3),
    }
    after = Ledger()
    by_name = {rule.name: rule for rule in (own, shared)}
    for (name, tenant), (month, count) in kept.items():
        after.restore(by_name[name], tenant, month, count)
    assert after.months() == kept
    assert used(after, own, shared, tenant="a") == [2, 3]
    assert used(after, own, shared, tenant="a", month="2026-12") == [0, 0]


def test_only_months_are_restored(ledger):
    with pytest.raises(AssertionError, match="only months are kept"):
        ledger.restore(sliding(1), "a", MONTH, 1)


def test_a_status_tells_without_charging(ledger):
    rules = [sliding(5, unit=Unit.TOKENS), monthly(1), parallel(2)]
    admit(ledger, *rules, amounts=Amounts(1, 4), now_us=100)
    for _ in range(2):
        assert ledger.status(rules, "acme", Amounts(1, 2), now_us=200, month=MONTH) == (
            (rules[0], 4, 500),
            (rules[1], 1, None),
            (rules[2], 1, 0),
        )
    never = ledger.status(rules, "acme", Amounts(1, 6), now_us=200, month=MONTH)
    assert never[0] == (rules[0], 4, None)


def test_the_wait_that_a_refusal_tells_is_exact_over_several_parts(ledger):
    rule = sliding(10, unit=Unit.TOKENS)
    for now_us, amount in [(3, 2), (7, 1), (15, 3), (100, 4)]:
        admit(ledger, rule, amounts=Amounts(1, amount), now_us=now_us)
    for amount, at_us in [(3, 607), (4, 615), (6, 615), (7, 700), (10, 700)]:
        denied = admit(ledger, rule, amounts=Amounts(1, amount), now_us=120)
        assert denied.statuses == ((rule, 10, at_us - 120),)
        early = ledger.status([rule], "acme", Amounts(1, amount), now_us=120, month=MONTH)
        assert early == denied.statuses
    assert isinstance(admit(ledger, rule, amounts=Amounts(1, 7), now_us=699), Denied)
    assert isinstance(admit(ledger, rule, amounts=Amounts(1, 7), now_us=700), Admitted)


def test_a_clock_that_goes_back_lets_nothing_more_pass(ledger):
    rule = sliding(2)
    admit(ledger, rule, now_us=5_000)
    admit(ledger, rule, now_us=4_000)
    denied = admit(ledger, rule, now_us=3_000)
    assert denied == Denied(((rule, 2, 2_600),), ())
    assert isinstance(admit(ledger, rule, now_us=5_600), Admitted)


def test_a_rule_that_counts_the_same_goes_on_when_its_limit_changes(ledger):
    rule = sliding(1)
    admit(ledger, rule)
    wider = replace(rule, max=2)
    ledger.keep([wider])
    assert used(ledger, wider) == [1]
    assert isinstance(admit(ledger, wider), Admitted)
    assert isinstance(admit(ledger, wider), Denied)


@pytest.mark.parametrize(
    "other",
    [
        sliding(9, unit=Unit.TOKENS),
        LimitRule("window", Unit.REQUESTS, Span.SLIDING, 9, 60),
        monthly(9, "window"),
        sliding(9, total=True),
        sliding(9, "other"),
    ],
)
def test_counts_are_forgotten_with_the_rule_that_they_were_of(ledger, other):
    rule, kept = sliding(9), parallel(9)
    admitted = admit(ledger, rule, kept)
    ledger.keep([other, kept])
    assert used(ledger, other, kept) == [0, 1]
    admitted.settle(Amounts(1, 5))
    assert used(ledger, other, kept) == [0, 0]
