# SPDX-License-Identifier: Apache-2.0
"""The most specific rule holds, and a reservation never refuses for ever what could fit."""

from dataclasses import replace

import pytest

from taketurns.core.limit_rules import Amounts, LimitRule, Span, Unit, reserved, rules_for

MINUTE_US = 60_000_000
REQUEST = {"tenant": "acme", "tier": "trial", "model": "small", "endpoint": "chat"}


def limit(name="", *, unit=Unit.REQUESTS, max_=10, period_us=MINUTE_US, **fields):
    return LimitRule(name, unit, Span.SLIDING, max_, period_us, **fields)


def held(*rules, **request):
    return [rule.name for rule in rules_for(rules, **(REQUEST | request))]


@pytest.mark.parametrize(
    ("unit", "amount"),
    [
        (Unit.REQUESTS, 1),
        (Unit.INPUTS, 3),
        (Unit.INPUT_TOKENS, 50),
        (Unit.OUTPUT_TOKENS, 7),
        (Unit.TOKENS, 57),
    ],
)
def test_each_unit_counts_its_own(unit, amount):
    assert Amounts(inputs=3, input_tokens=50, output_tokens=7).of(unit) == amount


def test_a_request_is_one_input_without_tokens_unless_it_says_more():
    assert [Amounts().of(unit) for unit in Unit] == [1, 0, 0, 0, 1]


def test_a_limit_below_zero_is_an_error():
    with pytest.raises(ValueError, match="limit a: max must be at least 0, got -1"):
        limit("a", max_=-1)
    assert limit(max_=0).max == 0


@pytest.mark.parametrize("period_us", [-1, 0, 1, 59])
def test_a_sliding_window_has_a_period_of_at_least_60_us(period_us):
    with pytest.raises(ValueError, match="limit a: a sliding window, and only that, has a period"):
        limit("a", period_us=period_us)
    assert limit(period_us=60).period_us == 60


@pytest.mark.parametrize("span", [Span.MONTH, Span.PARALLEL])
def test_nothing_but_a_sliding_window_has_a_period(span):
    for period_us in (1, 59, 60, MINUTE_US):
        with pytest.raises(ValueError, match="limit a: a sliding window, and only that"):
            LimitRule("a", Unit.REQUESTS, span, 1, period_us)
    assert LimitRule("a", Unit.REQUESTS, span, 1).period_us == 0


@pytest.mark.parametrize("field", ["tenant", "tier", "model", "endpoint"])
def test_a_rule_applies_to_what_it_names_and_to_all_where_it_names_nothing(field):
    rule = limit(**{field: REQUEST[field]})
    assert rule.applies(**REQUEST)
    assert not rule.applies(**(REQUEST | {field: "other"}))
    assert limit().applies(**REQUEST)


def test_a_rule_must_agree_in_all_that_it_names():
    assert limit(tenant="acme", model="small").applies(**REQUEST)
    assert not limit(tenant="acme", model="large").applies(**REQUEST)


ORDER = ["tenant", "tier", "model", "endpoint"]


@pytest.mark.parametrize("at", range(4))
def test_one_that_names_the_tenant_goes_before_the_tier_the_model_and_the_endpoint(at):
    one = limit("one", **{ORDER[at]: REQUEST[ORDER[at]]})
    others = limit("others", **{field: REQUEST[field] for field in ORDER[at + 1 :]})
    assert held(one, others) == held(others, one) == ["one"]


def test_one_that_names_more_goes_before_one_that_names_less():
    general = limit("general")
    model = limit("model", model="small")
    both = limit("both", model="small", endpoint="chat")
    assert held(general, model, both) == held(both, model, general) == ["both"]
    assert held(general, model, both, endpoint="embed") == ["model"]
    assert held(general, model, both, model="large") == ["general"]
    assert held(model, both, model="large") == []


def test_of_equals_the_first_holds():
    assert held(limit("a"), limit("b")) == ["a"]
    assert held(limit("b"), limit("a")) == ["b"]


@pytest.mark.parametrize(
    "change", [{"unit": Unit.TOKENS}, {"period_us": 60 * MINUTE_US}, {"total": True}]
)
def test_rules_that_count_something_else_hold_beside_each_other_in_their_order(change):
    general = limit("general", **change)
    special = limit("special", tenant="acme")
    assert held(general, special) == ["general", "special"]
    assert held(special, general) == ["special", "general"]


def test_rules_of_other_spans_hold_beside_each_other():
    month = LimitRule("month", Unit.REQUESTS, Span.MONTH, 5)
    parallel = LimitRule("parallel", Unit.REQUESTS, Span.PARALLEL, 5)
    assert held(month, limit("minute"), parallel) == ["month", "minute", "parallel"]


def test_a_rule_in_shadow_mode_holds_beside_the_one_that_it_would_replace():
    enforced = limit("enforced", tier="trial")
    tried = limit("tried", tenant="acme", shadow=True)
    same = limit("same", tier="trial", shadow=True)
    assert held(enforced, tried) == ["enforced", "tried"]
    assert held(same, enforced) == ["same", "enforced"]
    assert held(enforced, same, tried) == ["enforced", "tried"]
    assert held(tried) == ["tried"]


def test_a_rule_in_shadow_mode_that_would_replace_nothing_doesnt_hold():
    enforced = limit("enforced", tenant="acme")
    tried = limit("tried", tier="trial", shadow=True)
    assert held(enforced, tried) == held(tried, enforced) == ["enforced"]


GUESS = Amounts(inputs=20, input_tokens=8, output_tokens=5)


@pytest.mark.parametrize(
    ("unit", "max_", "amount"),
    [
        # What is known counts whole, though it be more than the limit.
        (Unit.REQUESTS, 0, 1),
        (Unit.INPUTS, 19, 20),
        (Unit.INPUT_TOKENS, 7, 8),
        # The guess is cut to what the limit leaves.
        (Unit.OUTPUT_TOKENS, 6, 5),
        (Unit.OUTPUT_TOKENS, 5, 5),
        (Unit.OUTPUT_TOKENS, 4, 4),
        (Unit.TOKENS, 14, 13),
        (Unit.TOKENS, 13, 13),
        (Unit.TOKENS, 12, 12),
        (Unit.TOKENS, 8, 8),
        (Unit.TOKENS, 7, 8),
        # A limit of 0 lets nothing pass.
        (Unit.OUTPUT_TOKENS, 0, 1),
    ],
)
def test_what_is_known_is_reserved_whole_and_the_guess_as_far_as_the_limit_goes(unit, max_, amount):
    assert reserved(limit(unit=unit, max_=max_), GUESS) == amount


def test_a_limit_of_nothing_refuses_a_guess_even_where_nothing_else_is_known():
    rule = limit(unit=Unit.TOKENS, max_=0)
    assert reserved(rule, Amounts(output_tokens=5)) == 1
    assert reserved(rule, Amounts()) == 0
    assert reserved(replace(rule, unit=Unit.OUTPUT_TOKENS), Amounts()) == 0
