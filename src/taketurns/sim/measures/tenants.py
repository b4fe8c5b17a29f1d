# SPDX-License-Identifier: Apache-2.0
"""What each tenant got: counts, service, how long it waited, and how far it was overtaken."""

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
        "served",
        "service",
        "tokens",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.refused = 0
        self.expired = 0
        self.served = 0
        self.early = 0
        self.service = 0
        self.held_us = 0
        self.tokens = 0
        self.first = Histogram()
        self.queued = Histogram()
        self.overtaken = Histogram()

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
        }
