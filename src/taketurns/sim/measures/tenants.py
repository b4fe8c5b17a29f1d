# SPDX-License-Identifier: Apache-2.0
"""What each tenant got: counts, service, and how long it waited."""

from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.measures.windows import service_of
from taketurns.sim.request import Request


class TenantMeasure:
    """One tenant's sums."""

    __slots__ = ("arrived", "first", "queued", "refused", "served", "service", "tokens")

    def __init__(self) -> None:
        self.arrived = 0
        self.refused = 0
        self.served = 0
        self.service = 0
        self.tokens = 0
        self.first = Histogram()
        self.queued = Histogram()

    def finished(self, request: Request) -> None:
        """Count a request that has its last token."""
        self.served += 1
        self.service += service_of(request)
        self.tokens += request.input_tokens + request.output_tokens
        self.first.add(request.first_us - request.arrived_us)
        self.queued.add(request.admitted_us - request.arrived_us)

    def figures(self) -> dict[str, float]:
        """Return its figures by name."""
        return {
            "arrived": self.arrived,
            "refused": self.refused,
            "served": self.served,
            "service": self.service,
            "queued_p50_s": self.queued.quantile_s(0.5),
            "queued_p99_s": self.queued.quantile_s(0.99),
            "first_token_p50_s": self.first.quantile_s(0.5),
            "first_token_p99_s": self.first.quantile_s(0.99),
        }
