# SPDX-License-Identifier: Apache-2.0
"""Many small requests beside a few large ones: equal shares of tokens, and short waits."""

import random

import pytest

from taketurns.core.model import BatchRules, PoolRules
from taketurns.testing.virtual_gpu import VirtualGpu
from taketurns.units import US_PER_S

BATCH_TOKENS = 4096
QUANTUM = BATCH_TOKENS // 64
"""The default."""
LARGE = [400] * 2_000
SHORT = [20]


def gpu(quantum=QUANTUM):
    batch = BatchRules(size_max=BATCH_TOKENS, items_max=256)
    return VirtualGpu(
        PoolRules(
            quantum=quantum, min_charge=1, batch=batch, tenant_queue_max=10**6, queue_max=10**6
        )
    )


def flood(engine, tenant):
    """Keep two large requests of a tenant under way."""

    def again(_):
        engine.submit(tenant, LARGE, again)

    for _ in range(2):
        again(None)


def test_tokens_are_shared_equally_while_both_are_backlogged():
    engine = gpu()
    flood(engine, "a")
    for _ in range(40_000):
        engine.submit("b", SHORT)
    engine.clock.run_until(10 * US_PER_S)

    served = {"a": 0, "b": 0}
    gaps = []
    for batch in engine.batches[1:]:
        assert set(batch.tokens) == {"a", "b"}, "both are in every batch"
        for tenant, tokens in batch.tokens.items():
            served[tenant] += tokens
        gaps.append(abs(served["a"] - served["b"]))
    # The round robin's bound: two quanta and the largest text of each.
    assert max(gaps) <= 2 * QUANTUM + LARGE[0] + SHORT[0]
    assert sum(served.values()) >= 0.95 * len(engine.batches) * BATCH_TOKENS


def latencies(engine, requests=400, tenants=("b",)):
    """Return what single texts take that come at random, the shortest first."""
    rng = random.Random(7)
    sent = []
    at_us = US_PER_S
    for _ in range(requests):
        at_us += rng.randrange(1, 100_000)
        engine.clock.run_until(at_us)
        sent.append(engine.submit(rng.choice(tenants), SHORT))
    engine.clock.run_until(at_us + US_PER_S)
    return sorted(request.latency_us for request in sent)


@pytest.mark.parametrize("quantum", [BATCH_TOKENS // 8, QUANTUM, 1])
def test_a_short_text_beside_a_flood_waits_two_batches_at_most(quantum):
    alone = latencies(gpu(quantum))
    busy = gpu(quantum)
    flood(busy, "a")
    beside = latencies(busy)

    two_batches_us = 2 * busy.batch_us(BATCH_TOKENS)
    assert beside[len(beside) * 99 // 100] <= alone[len(alone) * 99 // 100] + two_batches_us
    assert beside[-1] <= two_batches_us
    # Hardly any room is lost for it: what is left in a batch is less than a text.
    full = [sum(batch.tokens.values()) for batch in busy.batches]
    assert sum(full) >= 0.9 * len(full) * BATCH_TOKENS


def test_it_waits_no_longer_beside_thirty_floods():
    busy = gpu()
    for number in range(30):
        flood(busy, f"a{number}")
    beside = latencies(busy, tenants=[f"b{number}" for number in range(20)])

    assert beside[len(beside) * 99 // 100] <= 3 * busy.batch_us(BATCH_TOKENS)
