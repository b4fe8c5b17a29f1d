# SPDX-License-Identifier: Apache-2.0
"""Measures of fairness: Jain's index, and weighted max-min shares."""

from collections.abc import Mapping, Sequence
from fractions import Fraction


def jain_index(service_per_weight: Sequence[float]) -> float:
    """Return Jain's index of what each tenant got, divided by its weight.

    Meaningful only over tenants that were backlogged throughout.

    Args:
        service_per_weight: One value for each tenant, at least 0.

    Returns:
        1 where all got the same, 1/n where one got all; 1 where nobody got anything.

    Source: R. Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and
    Discrimination for Resource Allocation in Shared Computer Systems", DEC-TR-301, 1984.
    """
    total = sum(service_per_weight)
    squares = sum(value * value for value in service_per_weight)
    if squares == 0:
        return 1.0
    return total * total / (len(service_per_weight) * squares)


def max_min_shares(
    capacity: int, demands: Mapping[str, int], weights: Mapping[str, int]
) -> dict[str, Fraction]:
    """Share a capacity so that nobody can get more except from somebody with less per weight.

    Args:
        capacity: What is there, at least 0.
        demands: What each tenant wants, at least 0.
        weights: Weight of each tenant in ``demands``, at least 1.

    Returns:
        What each tenant gets: its whole demand, or the common level times its weight.

    Source: D. Bertsekas, R. Gallager, "Data Networks", 1992, section 6.5.2
    (progressive filling). Exact; O(n log n).
    """
    shares = {tenant: Fraction(0) for tenant in demands}
    left = Fraction(capacity)
    weight_left = sum(weights[tenant] for tenant in demands)
    by_need = sorted(demands, key=lambda tenant: Fraction(demands[tenant], weights[tenant]))
    for tenant in by_need:
        fair = left * weights[tenant] / weight_left
        shares[tenant] = min(Fraction(demands[tenant]), fair)
        left -= shares[tenant]
        weight_left -= weights[tenant]
    return shares
