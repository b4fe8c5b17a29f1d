# SPDX-License-Identifier: Apache-2.0
"""Shares are by weight in every window, however traffic is spread over the gateways."""

import asyncio
import os
import random
from collections import Counter

import pytest
from fleet.conftest import run, until
from fleet.test_turns import gateways

from taketurns.core.fairness import jain_index
from taketurns.core.model import PoolRules, Tenant

PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
GRANTS = 20_000 if PROOF else 3_000
QUANTUM = 100
COST_MAX = 600
"""Thirty times the least: A's requests are large, C's are small."""

COSTS = {"a": (300, COST_MAX), "b": (100, 300), "c": (20, 60)}
SLOTS = 4
AHEAD = 16
"""Requests that each tenant keeps queued at each of its gateways."""


async def served(url, tenants, ways):
    """Return the charges in their order, while every tenant is backlogged.

    Args:
        ways: The numbers of the gateways that a tenant's requests come in by.
    """
    order, stop = [], asyncio.Event()
    rng = random.Random(7)
    rules = PoolRules(QUANTUM)
    async with gateways(url, 2, rules=rules, tenants=tenants, slots=0) as both:

        async def keep_asking(turns, tenant):
            low, high = COSTS[tenant]
            while not stop.is_set():
                cost = rng.randint(low, high)
                async with turns.turn(tenant, tier="only", cost=cost):
                    order.append((tenant, cost))
                    if len(order) >= GRANTS:
                        stop.set()
                    served = asyncio.Event()
                    asyncio.get_running_loop().call_later(cost * 5e-6, served.set)
                    await served.wait()

        async with asyncio.TaskGroup() as tasks:
            asking = [
                tasks.create_task(keep_asking(both[way], tenant.name))
                for tenant in tenants
                for way in ways[tenant.name]
                for _ in range(AHEAD)
            ]
            await until(lambda: sum(t.holdings.queued for t in both) == len(asking))
            for turns in both:
                turns.set_engine("gpu", SLOTS)
            await stop.wait()
            for task in asking:
                task.cancel()
    return order[:GRANTS]


def gap(order, weights, one, other):
    """Return the largest difference of charge per weight over any interval."""
    difference = least = most = 0
    for tenant, cost in order:
        if tenant == one:
            difference += cost / weights[one]
        elif tenant == other:
            difference -= cost / weights[other]
        least, most = min(least, difference), max(most, difference)
    return most - least


@pytest.mark.parametrize(
    ("weights", "ways"),
    [
        # A by the first gateway, B by the second, C by both.
        ({"a": 1, "b": 2, "c": 4}, {"a": [0], "b": [1], "c": [0, 1]}),
        # 4 : 1, with three quarters of the traffic on one gateway; and the other way round.
        ({"a": 4, "c": 1}, {"a": [0], "c": [0, 0, 0, 1]}),
        ({"a": 4, "c": 1}, {"a": [1], "c": [0, 0, 0, 1]}),
    ],
)
def test_shares_are_exact_whatever_way_requests_come(redis, weights, ways):
    tenants = [Tenant(name, weight) for name, weight in weights.items()]
    order = run(served(redis.url, tenants, ways))
    total = sum(cost for _, cost in order)
    # Windows of sixty rounds of everybody.
    window = 60 * QUANTUM * sum(weights.values())
    charged, seen, windows = Counter(), 0, 0
    for tenant, cost in order:
        charged[tenant] += cost
        seen += cost
        if seen >= window:
            windows += 1
            assert jain_index([charged[name] / weight for name, weight in weights.items()]) >= 0.99
            charged, seen = Counter(), 0
    assert windows >= total // (window + COST_MAX)
    for one in weights:
        for other in weights:
            if one < other:
                # What one gateway's scheduler keeps to; grants of the two reach this test's
                # record in an order that may differ by those in flight.
                bound = (
                    2 * QUANTUM + COSTS[one][1] / weights[one] + COSTS[other][1] / weights[other]
                )
                loose = SLOTS * COSTS[one][1] / weights[one]
                assert gap(order, weights, one, other) <= bound + loose
    shares = Counter()
    for tenant, cost in order:
        shares[tenant] += cost
    for name, weight in weights.items():
        assert shares[name] / total == pytest.approx(weight / sum(weights.values()), rel=0.03)
