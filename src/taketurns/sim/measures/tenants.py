# SPDX-License-Identifier: Apache-2.0
"""What each tenant got: counts, service, how long it waited, and how far it was overtaken."""

from collections import Counter

from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.request import Request


class TenantMeasure:
    """One tenant's sums."""

    __slots__ = (
        "arrived",
        "early",
        "expired",
        "first",
        "held_us",
        "overtaken",
        "queued",
        "refused",
        "refused_by",
        "served",
        "service",
        "slowdown",
        "tier",
        "tokens",
    )

    def __init__(self, tier: str = "") -> None:
        self.tier = tier
        self.arrived = 0
        self.refused = 0
        self.refused_by: Counter[str] = Counter()
        self.expired = 0
        self.served = 0
        self.early = 0
        self.service = 0
        self.held_us = 0
        self.tokens = 0
        self.first = Histogram()
        self.queued = Histogram()
        self.overtaken = Histogram()
        self.slowdown = Histogram()

    def finished(self, request: Request) -> None:
        """Count a request that has its last token."""
        self.served += 1
        tokens, output = request.input_tokens + request.output_tokens, request.output_tokens
        self.tokens += tokens
        self.service += tokens + output
        arrived_us = request.arrived_us
        self.first.add(request.first_us - arrived_us)
        self.queued.add(request.admitted_us - arrived_us)

    def figures(self) -> dict[str, float]:
        """Return its figures by name.

        ``early``: how many of the first so many that the scenario counts.
        ``held_s``: seconds that it held slots, or seats: its input tokens.
        ``overtaken_p99``: how many that came later went before it.
        ``slowdown_p99``: time from arrival to the last token, of what the request
        takes on an engine for itself; 0 where that isn't measured.
        ``refused_by:NAME``: how many a limit, the throttle or a bound of the queue refused.
        """
        return {
            "arrived": self.arrived,
            "refused": self.refused,
            "expired": self.expired,
            "served": self.served,
            "early": self.early,
            "service": self.service,
            "held_s": self.held_us / 1e6,
            "queued_p50_s": self.queued.quantile(0.5) / 1e6,
            "queued_p99_s": self.queued.quantile(0.99) / 1e6,
            "queued_max_s": self.queued.largest / 1e6,
            "first_token_p50_s": self.first.quantile(0.5) / 1e6,
            "first_token_p99_s": self.first.quantile(0.99) / 1e6,
            "overtaken_p99": self.overtaken.quantile(0.99),
            "slowdown_p50": self.slowdown.quantile(0.5) / 1e3,
            "slowdown_p99": self.slowdown.quantile(0.99) / 1e3,
            **{f"refused_by:{name}": count for name, count in sorted(self.refused_by.items())},
        }
