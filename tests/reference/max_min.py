# SPDX-License-Identifier: Apache-2.0
"""Weighted max-min allocation by filling: all levels rise until demand or capacity ends."""

from collections.abc import Mapping
from fractions import Fraction


def max_min(
    capacity: Fraction, demands: Mapping[str, Fraction], weights: Mapping[str, int]
) -> dict[str, Fraction]:
    """What each tenant gets of the capacity, exactly.

    Args:
        capacity: What there is to give; at least 0.
        demands: The most that each tenant takes.
        weights: Its share against the others, at least 1.
    """
    given = {name: Fraction(0) for name in demands}
    left = Fraction(capacity)
    hungry = {name for name, demand in demands.items() if demand > 0}
    while hungry and left > 0:
        total = sum(weights[name] for name in hungry)
        # The level rises until the first tenant is satisfied or nothing is left.
        rise = min((demands[name] - given[name]) / weights[name] for name in hungry)
        rise = min(rise, left / total)
        for name in hungry:
            given[name] += rise * weights[name]
        left -= rise * total
        hungry = {name for name in hungry if given[name] < demands[name]}
    return given
