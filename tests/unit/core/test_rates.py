# SPDX-License-Identifier: Apache-2.0
"""A rate follows what is seen, in bounds, and learns nothing of nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.rates import Rate


def test_before_anything_is_seen_the_first_rate_holds():
    rate = Rate(4, least=1, most=64)
    assert [rate.tokens(amount) for amount in (0, 3, 4, 400)] == [0, 0, 1, 100]


def test_a_rate_comes_to_what_is_seen():
    rate = Rate(4, least=1, most=64)
    for _ in range(200):
        rate.seen(2_000, 1_000)
    assert rate.tokens(1_000) == pytest.approx(500, rel=0.01)


def test_one_odd_request_moves_it_by_little():
    rate = Rate(4, least=1, most=64)
    rate.seen(10**12, 1)
    assert rate.tokens(700) >= 90


@pytest.mark.parametrize(("amount", "tokens"), [(0, 5), (5, 0), (0, 0)])
def test_nothing_teaches_nothing(amount, tokens):
    rate = Rate(4, least=1, most=64)
    rate.seen(amount, tokens)
    assert rate.tokens(400) == 100


@given(st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**40)), max_size=30))
def test_it_stays_in_its_bounds(pairs):
    rate = Rate(4, least=2, most=16)
    for amount, tokens in pairs:
        rate.seen(amount, tokens)
        assert 1_000 <= rate.tokens(16_000) <= 8_000


def test_bounds_that_are_none_are_refused():
    with pytest.raises(ValueError):
        Rate(4, least=5, most=64)
