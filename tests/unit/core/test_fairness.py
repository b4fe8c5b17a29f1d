# SPDX-License-Identifier: Apache-2.0
"""The measures of fairness have their textbook values."""

from fractions import Fraction

import pytest

from taketurns.core.fairness import jain_index, max_min_shares


@pytest.mark.parametrize(
    ("service", "index"),
    [([], 1), ([0, 0], 1), ([7], 1), ([3, 3, 3], 1), ([1, 0, 0, 0], 0.25), ([1, 3], 0.8)],
)
def test_jains_index_is_one_where_all_got_the_same_and_1_over_n_where_one_got_all(service, index):
    assert jain_index(service) == pytest.approx(index)


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "shares"),
    [
        (10, {}, {}, {}),
        (0, {"a": 5}, {"a": 1}, {"a": 0}),
        (10, {"a": 2, "b": 3}, {"a": 1, "b": 1}, {"a": 2, "b": 3}),
        (10, {"a": 9, "b": 9, "c": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 4.5, "b": 4.5, "c": 1}),
        (12, {"a": 99, "b": 99}, {"a": 1, "b": 3}, {"a": 3, "b": 9}),
        (12, {"a": 99, "b": 4, "c": 0}, {"a": 1, "b": 3, "c": 9}, {"a": 8, "b": 4, "c": 0}),
    ],
)
def test_max_min_gives_the_whole_demand_or_the_common_level(capacity, demands, weights, shares):
    assert max_min_shares(capacity, demands, weights) == shares


def test_max_min_is_exact():
    shares = max_min_shares(1, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1})
    assert set(shares.values()) == {Fraction(1, 3)}
    assert sum(shares.values()) == 1
