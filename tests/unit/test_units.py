# SPDX-License-Identifier: Apache-2.0
"""Seconds become microseconds and back without loss, and round up where a client waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.units import (
    EXACT_INT_MAX,
    US_PER_MS,
    US_PER_S,
    ceil_s_from_us,
    s_from_us,
    us_from_s,
)


def test_the_units_fit_each_other():
    assert US_PER_S == 1000 * US_PER_MS == 1_000_000
    assert float(EXACT_INT_MAX) == EXACT_INT_MAX
    assert float(EXACT_INT_MAX + 2) != EXACT_INT_MAX + 2


@pytest.mark.parametrize(
    ("seconds", "us"),
    [(0, 0), (1, 1_000_000), (0.1, 100_000), (1e-6, 1), (0.5e-6, 0), (1.5e-6, 2), (-2, -2_000_000)],
)
def test_seconds_become_whole_microseconds(seconds, us):
    assert us_from_s(seconds) == us
    assert isinstance(us_from_s(seconds), int)


@given(st.integers(min_value=-(2**51), max_value=2**51))
def test_microseconds_survive_the_way_to_seconds_and_back(us):
    assert us_from_s(s_from_us(us)) == us


@pytest.mark.parametrize(
    ("us", "seconds"),
    [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (-1, 0), (-1_000_000, -1)],
)
def test_whole_seconds_round_up(us, seconds):
    assert ceil_s_from_us(us) == seconds
