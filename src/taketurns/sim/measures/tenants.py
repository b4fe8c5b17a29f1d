# SPDX-License-Identifier: Apache-2.0
"""What each tenant got: counts, service, how long it waited, and how far it was overtaken."""

from collections import Counter
from collections.abc import Sequence

from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.request import Request


class TenantMeasure:
    """One tenant's sums.

    Attributes:
        left: Requests that arrived and wait no more.
        since_us: When it had none that waited for the last time, and one came.
        fresh: By how many each was overtaken that was admitted and isn't counted yet.
    """

    __slots__ = (
        "arrived",
        "early",
        "expired",
        "first",
        "fresh",
        "held_us",
        "left",
        "overtaken",
        "queued",
        "refused",
        "refused_by",
        "served",
        "service",
        "since_us",
        "slowdown",
        "tier",
        "tokens",
    )

    def __init__(self, tier: str = "") -> None:
        self.tier = tier
        self.arrived = 0
        self.left = 0
        self.since_us = 0
        self.refused = 0
        self.refused_by: Counter[str] = Counter()
        self.expired = 0
        self.served = 0
        self.early = 0
        self.service = 0
        self.held_us = 0
        self.tokens = 0
        self.fresh: list[int] = []
        self.first = Histogram()
        self.queued = Histogram()
        self.overtaken = Histogram()
        self.slowdown = Histogram()

    def finished(self, requests: Sequence[Request]) -> None:
        """Count requests that have their last token."""
        self.served += len(requests)
        output = sum([request.output_tokens for request in requests])
        tokens = sum([request.input_tokens for request in requests]) + output
        self.tokens += tokens
        self.service += tokens + output
        self.first.add([request.first_us - request.arrived_us for request in requests])
        self.queued.add([request.admitted_us - request.arrived_us for request in requests])
        self.count_fresh()

    def count_fresh(self) -> None:
        """Count what has been admitted."""
        if self.fresh:
            self.overtaken.add(self.fresh)
            self.fresh.clear()

    def figures(self, all_service: int) -> dict[str, float]:
        """Return its figures by name.

        ``share``: of the service of all tenants.
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
            "share": self.service / all_service if all_service else 0.0,
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
