# SPDX-License-Identifier: Apache-2.0
"""Time in equal bins: who was backlogged throughout one, who got what, and how fair it was."""

import statistics
from collections import defaultdict
from collections.abc import Mapping

from taketurns.core.fairness import jain_index, max_min_shares
from taketurns.sim.measures.windows import service_of
from taketurns.sim.request import Request

BINS = 40
"""Bins of a span."""


class Bins:
    """Keeps a number for each bin and tenant that got something in it.

    Args:
        span_us: Time that is looked at, from the start; at least 1.
        weights: Weights of the tenants that differ from the default.
    """

    def __init__(self, span_us: int, weights: Mapping[str, int]) -> None:
        self.width_us = max(1, span_us // BINS)
        self._weights = weights
        self._served: list[dict[str, float]] = [defaultdict(float) for _ in range(BINS)]
        self._full: list[set[str]] = [set() for _ in range(BINS)]
        self._waiting: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def arrived(self, request: Request) -> None:
        """A request waits."""
        tenant = request.tenant
        waiting = self._waiting.get(tenant, 0)
        if not waiting:
            self._since[tenant] = request.arrived_us
        self._waiting[tenant] = waiting + 1

    def left(self, request: Request, now_us: int) -> None:
        """A request waits no more."""
        tenant = request.tenant
        waiting = self._waiting[tenant] - 1
        if waiting:
            self._waiting[tenant] = waiting
        else:
            del self._waiting[tenant]
            self._mark(tenant, self._since.pop(tenant), now_us)

    def finished(self, request: Request) -> None:
        """Spread a request's service evenly from its first token to its last."""
        service, tenant = service_of(request), request.tenant
        begin, end, width = request.first_us, request.finished_us, self.width_us
        first, last = begin // width, min(end // width, BINS - 1)
        if end <= begin:
            if first < BINS:
                self._served[first][tenant] += service
            return
        per_us = service / (end - begin)
        for at in range(first, last + 1):
            self._served[at][tenant] += per_us * (
                min(end, (at + 1) * width) - max(begin, at * width)
            )

    def close(self, now_us: int) -> None:
        """Count those that still wait as backlogged until now."""
        for tenant, since in self._since.items():
            self._mark(tenant, since, now_us)

    def served(self, tenant: str) -> list[float]:
        """Return what a tenant got in each bin."""
        return [row.get(tenant, 0.0) for row in self._served]

    def figures(self) -> dict[str, float]:
        """Return fairness among backlogged tenants, over the bins that have two or more.

        ``jain``: Jain's index of service per weight among them, the mean over
        bins. ``misallocated``: share of all service that went elsewhere than
        weighted max-min fairness says, where backlogged tenants want
        everything and the others what they got.
        """
        indices, elsewhere, total = [], 0.0, 0.0
        for served, full in zip(self._served, self._full, strict=True):
            if len(full) < 2:
                continue
            names = sorted(full)
            indices.append(
                jain_index([served.get(name, 0.0) / self._weights.get(name, 1) for name in names])
            )
            there = round(sum(served.values()))
            demands = {name: round(got) for name, got in sorted(served.items())}
            demands |= dict.fromkeys(names, there)
            weights = {name: self._weights.get(name, 1) for name in demands}
            fair = max_min_shares(there, demands, weights)
            elsewhere += sum(
                max(0.0, float(share) - served.get(name, 0.0)) for name, share in fair.items()
            )
            total += there
        return {
            "jain": statistics.fmean(indices) if indices else 1.0,
            "misallocated": elsewhere / total if total else 0.0,
        }

    def _mark(self, tenant: str, since_us: int, until_us: int) -> None:
        first = -(-since_us // self.width_us)
        for at in range(first, min(until_us // self.width_us, BINS)):
            self._full[at].add(tenant)
