# SPDX-License-Identifier: Apache-2.0
"""Time in equal bins: how fair service was among those that were backlogged throughout one."""

import statistics
from collections.abc import Collection, Mapping

from taketurns.core.fairness import jain_index, max_min_shares
from taketurns.sim.measures.timeline import Timeline

BINS = 40
"""Bins of a span."""


class Bins:
    """The bins of a span.

    Args:
        span_us: Time that is looked at, from the start.
        weights: Weights of the tenants that differ from the default.
    """

    def __init__(self, span_us: int, weights: Mapping[str, int]) -> None:
        self._weights = weights
        self.edges = [span_us * at / BINS for at in range(BINS + 1)]
        """Edges that a timeline must have."""

    def served(self, timeline: Timeline) -> list[dict[str, float]]:
        """Return what each tenant got in each bin."""
        return [
            timeline.between(timeline.served, begin, end)
            for begin, end in zip(self.edges, self.edges[1:], strict=False)
        ]

    def rates(self, timeline: Timeline) -> dict[str, list[tuple[float, float]]]:
        """Return each tenant's service per second over time: seconds, rate."""
        width_s = (self.edges[1] - self.edges[0]) / 1e6
        rows = self.served(timeline)
        return {
            tenant: [
                (edge / 1e6 + width_s / 2, row.get(tenant, 0.0) / width_s)
                for edge, row in zip(self.edges, rows, strict=False)
            ]
            for tenant in sorted(timeline.tenants)
        }

    def fair(self, timeline: Timeline) -> dict[str, float]:
        """Return how weighted max-min fairness shares what was served in the span out.

        Who was backlogged throughout most of the bins wants everything, the others
        what they got.
        """
        got: dict[str, float] = {}
        for row in self.served(timeline):
            for tenant, value in row.items():
                got[tenant] = got.get(tenant, 0.0) + value
        there = round(sum(got.values()))
        often = [self._backlogged(timeline, at) for at in range(BINS)]
        demands = {
            tenant: there if 2 * sum(tenant in names for names in often) > BINS else round(value)
            for tenant, value in sorted(got.items())
        }
        weights = {tenant: self._weights.get(tenant, 1) for tenant in demands}
        shares = max_min_shares(there, demands, weights)
        return {tenant: float(share) for tenant, share in shares.items()}

    def figures(self, timeline: Timeline, only: Collection[str] | None = None) -> dict[str, float]:
        """Return fairness among backlogged tenants, over the bins that have two or more.

        ``jain``: Jain's index of service per weight among them, the mean over
        bins. ``misallocated``: share of all service that went elsewhere than
        weighted max-min fairness says, where backlogged tenants want
        everything and the others what they got.

        Args:
            timeline: What happened.
            only: Look at these tenants, and at what was left to them; None: all.
        """
        indices, elsewhere, total = [], 0.0, 0.0
        for at, got in enumerate(self.served(timeline)):
            served, names = got, sorted(self._backlogged(timeline, at))
            if only is not None:
                names = [name for name in names if name in only]
                served = {name: value for name, value in got.items() if name in only}
            if len(names) < 2:
                continue
            indices.append(
                jain_index([served.get(name, 0.0) / self._weights.get(name, 1) for name in names])
            )
            there = round(sum(served.values()))
            demands = {name: round(value) for name, value in sorted(served.items())}
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

    def _backlogged(self, timeline: Timeline, at: int) -> set[str]:
        first = timeline.edges.index(self.edges[at])
        last = timeline.edges.index(self.edges[at + 1])
        return set.intersection(*timeline.full[first:last])
