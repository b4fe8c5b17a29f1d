# SPDX-License-Identifier: Apache-2.0
"""Corrections find the share of late tickets that is allowed; regimes and rates, by their edges."""

import pytest

from taketurns.core.model import Tier
from taketurns.core.regime import Correction, TierForecast, rate_of, regime
from taketurns.core.ring import Ring
from taketurns.core.throttle import ONE, RATE_ONE, Pace
from taketurns.core.tiers import TierState

SECOND = 1_000_000


@pytest.fixture
def pace():
    """A slot that serves one cost unit in ten microseconds."""
    found = Pace(100)
    found.served(1_000, 10, 10)
    found.slot_us = 10_000
    return found


def tier(rank=0, **settings):
    return TierForecast(TierState(Tier(f"tier-{rank}", **settings), rank, Ring(100, 64)))


def test_a_correction_settles_where_the_share_of_late_ones_is_the_one_allowed():
    correction = Correction(ONE, up=3_072, down=96)
    start = correction.factor
    for number in range(33 * 20):
        correction.learn(late=number % 33 == 0)
    assert correction.factor == pytest.approx(start, rel=0.1)


@pytest.mark.parametrize(("late", "end"), [(True, Correction.MOST), (False, Correction.LEAST)])
def test_a_correction_has_bounds(late, end):
    correction = Correction(ONE, up=3_072, down=96)
    for _ in range(2_000):
        correction.learn(late=late)
    assert correction.factor == end


def test_more_offered_than_half_as_much_again_is_overload():
    one = tier()
    one.demand.offered = 1_500
    assert regime(one, [one], 1_000, SECOND, SECOND) is one.calm
    one.demand.offered = 1_501
    assert regime(one, [one], 1_000, SECOND, SECOND) is one.overload


def test_more_waiting_than_is_served_in_a_target_is_overload():
    better, one = tier(), tier(1)
    better.demand.backlogs.cost = 1_500
    one.demand.backlogs.cost = 500
    one.demand.aim(2 * SECOND)
    assert regime(one, [better, one], 1_000, SECOND, SECOND) is one.calm
    one.demand.backlogs.cost = 501
    assert regime(one, [better, one], 1_000, SECOND, SECOND) is one.overload


def test_a_tier_gets_what_its_slots_serve_less_what_better_ones_take(pace):
    whole = 8 * RATE_ONE // 10
    assert rate_of(tier(), [], 8, pace, SECOND) == pytest.approx(whole, rel=1e-6)
    half = tier(slot_share_percent=50)
    assert rate_of(half, [], 8, pace, SECOND) == pytest.approx(whole // 2, rel=1e-6)
    better = tier()
    better.demand.offered = SECOND * 6 // 10
    assert rate_of(tier(1), [better], 8, pace, SECOND) == pytest.approx(whole // 4, rel=1e-6)
    better.demand.offered = SECOND
    assert rate_of(tier(1), [better], 8, pace, SECOND) == pytest.approx(whole // 20, rel=1e-6)
