# SPDX-License-Identifier: Apache-2.0
"""Batches in virtual time: a flood beside single texts, and a crowd with several quanta."""

import random
from typing import NamedTuple

from taketurns.core.model import BatchRules, PoolRules
from taketurns.testing.virtual_gpu import VirtualGpu, VirtualRequest
from taketurns.units import US_PER_S

BATCH_TOKENS = 4096
QUANTUM = BATCH_TOKENS // 64
"""The gateway's default."""


def gpu(quantum: int = QUANTUM) -> VirtualGpu:
    batch = BatchRules(size_max=BATCH_TOKENS, items_max=256)
    most = 10**7
    return VirtualGpu(
        PoolRules(quantum, min_charge=1, batch=batch, tenant_queue_max=most, queue_max=most)
    )


def flood(engine: VirtualGpu, tenant: str, sizes: list[int]) -> None:
    """Keep two large requests of a tenant under way."""

    def again(_: VirtualRequest | None) -> None:
        engine.submit(tenant, sizes, again)

    again(None)
    again(None)


class Flooded(NamedTuple):
    """What a flood does to single texts."""

    gap_batches: float
    added_batches: float


def beside_a_flood() -> Flooded:
    """Measure the gap in tokens while both are backlogged, and what it adds to the p99."""
    engine = gpu()
    flood(engine, "a", [400] * 2_000)
    for _ in range(40_000):
        engine.submit("b", [20])
    engine.clock.run_until(10 * US_PER_S)
    served = {"a": 0, "b": 0}
    gap = 0
    for batch in engine.batches[1:]:
        for tenant, tokens in batch.tokens.items():
            served[tenant] += tokens
        gap = max(gap, abs(served["a"] - served["b"]))
    alone, busy = gpu(), gpu()
    flood(busy, "a", [400] * 2_000)
    added_us = _p99_us(busy, ["b"]) - _p99_us(alone, ["b"])
    return Flooded(gap / BATCH_TOKENS, added_us / busy.batch_us(BATCH_TOKENS))


def crowd(divisor: int) -> tuple[float, float]:
    """Return the p99 of single texts in full batches, and how full batches are.

    Args:
        divisor: The quantum is the batch's budget over this.
    """
    engine = gpu(max(1, BATCH_TOKENS // divisor))
    rng = random.Random(divisor)
    for number in range(32):
        sizes = [rng.choice([50, 100, 400, 800]) for _ in range(500)]
        flood(engine, f"large-{number}", sizes)
    p99_us = _p99_us(engine, [f"single-{number}" for number in range(16)])
    tokens = sum(sum(batch.tokens.values()) for batch in engine.batches)
    fill = tokens / len(engine.batches) / BATCH_TOKENS
    return p99_us / engine.batch_us(BATCH_TOKENS), fill


def _p99_us(engine: VirtualGpu, tenants: list[str]) -> int:
    """Send single texts at random times and return the 99th percentile of what they take."""
    rng = random.Random(7)
    sent = []
    at_us = US_PER_S
    for _ in range(1_000):
        at_us += int(rng.expovariate(1 / 20_000))
        engine.clock.run_until(at_us)
        sent.append(engine.submit(rng.choice(tenants), [rng.choice([10, 20, 40])]))
    engine.clock.run_until(at_us + 20 * US_PER_S)
    return sorted(request.latency_us for request in sent)[990]
