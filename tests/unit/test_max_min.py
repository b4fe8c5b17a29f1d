# SPDX-License-Identifier: Apache-2.0
"""The allocation that the fairness tests measure against is the weighted max-min one."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.max_min import max_min

DEMANDS = st.dictionaries(
    st.sampled_from("abcde"), st.fractions(0, 20, max_denominator=6), min_size=1
)


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "expected"),
    [
        (10, {"a": 2, "b": 8, "c": 10}, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 4, "c": 4}),
        (10, {"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 2}),
        (12, {"a": 20, "b": 20}, {"a": 1, "b": 3}, {"a": 3, "b": 9}),
        (12, {"a": 20, "b": 5}, {"a": 1, "b": 3}, {"a": 7, "b": 5}),
        (0, {"a": 20}, {"a": 1}, {"a": 0}),
    ],
)
def test_known_allocations(capacity, demands, weights, expected):
    exact = {name: Fraction(demand) for name, demand in demands.items()}
    assert max_min(Fraction(capacity), exact, weights) == expected


@given(st.fractions(0, 40, max_denominator=6), DEMANDS, st.lists(st.integers(1, 4), min_size=5))
def test_nothing_is_wasted_and_who_gets_less_than_asked_has_the_highest_level(
    capacity, demands, weights
):
    weight = dict(zip("abcde", weights, strict=False))
    given_to = max_min(capacity, demands, weight)
    assert sum(given_to.values()) == min(capacity, sum(demands.values()))
    for name, got in given_to.items():
        assert 0 <= got <= demands[name]
        if got < demands[name]:
            # To give it more, one would have to take from someone at the same level or lower.
            level = got / weight[name]
            assert all(other / weight[n] <= level for n, other in given_to.items())
