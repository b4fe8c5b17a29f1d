# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a predicted wait: sums in buckets, rates, corrections, verdicts."""

import pytest

from taketurns.core.throttle import (
    ONE,
    RATE_ONE,
    Backlogs,
    Late,
    Pace,
    Prediction,
    Why,
    judge,
    solve,
    within_cap,
)


def backlogs(*tenants, unit=10):
    """Backlogs of tenants given as (cost, weight)."""
    found = Backlogs(unit)
    for cost, weight in tenants:
        found.change(0, cost, weight)
    return found


def test_the_sum_is_exact_at_the_edges_of_buckets():
    tenants = [(5, 1), (40, 2), (90, 1), (3_000, 4), (100_000, 3)]
    found = backlogs(*tenants)
    assert found.cost == sum(cost for cost, _ in tenants)
    for level in (0, 10, 20, 70, 80, 100, 160, 640, 5_120, 81_920, 10**9):
        exact = sum(min(cost, level * weight) for cost, weight in tenants)
        assert found.served(level, 0, 1) == pytest.approx(exact, rel=0.02), level
    assert found.served(80, 0, 1) == 5 + 40 + 80 + 320 + 240


def test_between_edges_it_is_below_the_exact_sum_by_an_eighth_at_most():
    tenants = [(cost * weight, weight) for cost in range(100, 4_000, 37) for weight in (1, 3)]
    found = backlogs(*tenants)
    for level in range(0, 5_000, 13):
        exact = sum(min(cost, level * weight) for cost, weight in tenants)
        assert exact * 7 // 8 <= found.served(level, 0, 1) <= exact


def test_a_tenant_is_left_out_as_if_it_had_nothing():
    others = [(70, 1), (500, 2)]
    for level in range(0, 1_000, 10):
        with_it = backlogs(*others, (300, 3)).served(level, 300, 3)
        assert with_it == pytest.approx(backlogs(*others).served(level, 0, 3), abs=60)
    assert backlogs((300, 3)).served(10**9, 300, 3) == 0


def test_what_was_counted_in_is_counted_out_again():
    found = backlogs((70, 1), (500, 2))
    for before, after in ((70, 75), (75, 900), (900, 30), (30, 0)):
        found.change(before, after, 1)
    found.change(0, 0, 7)
    assert found.cost == 500
    for level in range(0, 1_000, 10):
        assert found.served(level, 0, 1) == backlogs((500, 2)).served(level, 0, 1)


def test_the_largest_costs_have_a_bucket():
    found = backlogs((2**53 - 1, 1), unit=1)
    assert found.served(2**53 - 1, 0, 1) <= 2**53 - 1


def test_a_pace_is_known_from_so_many_grants_on():
    pace = Pace(100)
    for _ in range(4):
        assert not pace.known(4)
        pace.served(10, 2, 1)
    assert not pace.known(4)
    pace.slot_us += 80
    assert pace.known(4)
    assert (pace.cost, pace.tickets, pace.grants) == (40, 8, 4)


def test_old_measurements_are_forgotten_by_and_by():
    pace = Pace(4)
    for _ in range(4):
        pace.slot_us += 100
        pace.served(10, 1, 1)
    assert (pace.cost, pace.tickets, pace.grants, pace.slot_us) == (20, 2, 2, 200)


def test_what_took_no_time_is_taken_back_and_never_more_than_there_is():
    pace = Pace(100)
    pace.served(30, 2, 2)
    pace.take_back(10, 1)
    assert (pace.cost, pace.tickets, pace.grants) == (20, 1, 1)
    pace.take_back(90, 3)
    pace.take_back(90, 3)
    assert (pace.cost, pace.tickets, pace.grants) == (0, 0, 0)


def test_within_the_horizon_what_is_expected_goes_before_as_far_as_it_has_come():
    rate = RATE_ONE  # One cost unit a microsecond.
    # Nothing is expected.
    assert solve(100, 50, 50, rate, 1_000) == (150, 50)
    # 500 are expected in 1,000 us: half of the rate is left.
    assert solve(100, 50, 550, rate, 1_000) == (300, 200)
    # The whole of it comes before.
    assert solve(600, 0, 500, rate, 1_000) == (1_100, 500)
    # At the horizon both ways agree.
    assert solve(500, 0, 500, rate, 1_000) == (1_000, 500)
    assert solve(499, 0, 500, rate, 1_000)[0] in {997, 998}


def test_an_expectation_below_the_backlog_counts_for_nothing():
    assert solve(100, 50, 40, RATE_ONE, 1_000) == (150, 50)


def test_a_cap_on_tickets_in_flight_makes_a_wait_longer():
    pace = Pace(100)
    pace.served(cost=100, tickets=10, grants=10)
    pace.slot_us = 10_000
    prediction = Prediction(wait_us=50, alone_us=20, own=40)
    # 40 cost units take 4,000 us of a slot, and one comes free in 1,000.
    capped = within_cap(prediction, 2, pace)
    assert (capped.wait_us, capped.alone_us) == (2_500, 2_500)
    assert within_cap(prediction, 1_000, pace) == prediction
    assert within_cap(Prediction(None, own=40), 5, pace).wait_us == 1_000


def test_what_is_unknown_or_in_time_is_admitted():
    assert judge(Prediction(None), 0) is None
    assert judge(Prediction(0), -5) is None
    assert judge(Prediction(1_000), 1_000) is None
    assert judge(Prediction(1_500, factor=ONE // 2), 1_000) is None


def test_what_would_start_too_late_is_not():
    prediction = Prediction(5_000, newcomer_us=900, alone_us=100, slot_us=10)
    assert judge(prediction, 1_000) == Late(Why.SHARE, 5_000, 1_000, 1_000, 4_010)
    strict = prediction._replace(factor=2 * ONE)
    assert judge(strict, 3_000) == Late(Why.SHARE, 5_000, 3_000, 1_500, 3_510)


def test_the_reason_is_capacity_where_a_newcomer_would_be_late_too():
    late = judge(Prediction(5_000, newcomer_us=2_000), 1_000)
    assert late is not None
    assert late.reason is Why.CAPACITY


def test_no_leniency_admits_what_the_tenants_own_backlog_makes_late():
    lenient = Prediction(3_000, alone_us=2_000, factor=ONE // 4)
    assert judge(lenient, 1_600) is None
    late = judge(lenient, 1_000)
    assert late is not None
    assert (late.allowed_us, late.retry_after_us) == (4_000, 750)


def test_with_no_time_to_wait_only_what_starts_at_once_is_in_time():
    late = judge(Prediction(1), 0)
    assert late is not None
    assert late.retry_after_us == 1
    assert judge(Prediction(1), -1_000) == late


def test_the_rate_reads_in_cost_units_a_second():
    assert Prediction(0, rate=RATE_ONE // 2).cost_per_s == 500_000
