# SPDX-License-Identifier: Apache-2.0
"""All measures of a run together: the observer that the simulator's commands use."""

import statistics

from taketurns.sim.measures.tenants import TenantMeasure
from taketurns.sim.measures.windows import ServiceWindows
from taketurns.sim.request import Request


class Collected:
    """Implements :class:`~taketurns.sim.run.Observer`.

    Args:
        span_us: Time that windows of service cover.
    """

    def __init__(self, span_us: int) -> None:
        self.windows = ServiceWindows(span_us)
        self.tenants: dict[str, TenantMeasure] = {}
        self.expired_count = 0
        self.last_us = 0

    def arrived(self, request: Request) -> None:
        self._tenant(request.tenant).arrived += 1

    def refused(self, request: Request) -> None:
        self._tenant(request.tenant).refused += 1

    def expired(self, request: Request) -> None:  # noqa: ARG002 - only their number
        self.expired_count += 1

    def finished(self, request: Request) -> None:
        self._tenant(request.tenant).finished(request)
        self.windows.finished(request)
        self.last_us = max(self.last_us, request.finished_us)

    def figures(self) -> dict[str, float]:
        """Return the run's figures by name."""
        differences = self.windows.differences()
        tenants = self.tenants.values()
        tokens = sum(tenant.tokens for tenant in tenants)
        return {
            "max_difference": max(differences),
            "average_difference": statistics.fmean(differences),
            "variance": statistics.pvariance(differences),
            "tokens_per_s": tokens / (self.last_us / 1e6) if self.last_us else 0.0,
            "served": sum(tenant.served for tenant in tenants),
            "accumulated_difference": max(self.windows.accumulated()),
            "arrived": sum(tenant.arrived for tenant in tenants),
            "refused": sum(tenant.refused for tenant in tenants),
            "expired": self.expired_count,
            "last_s": self.last_us / 1e6,
        }

    def _tenant(self, name: str) -> TenantMeasure:
        tenant = self.tenants.get(name)
        if tenant is None:
            self.tenants[name] = tenant = TenantMeasure()
        return tenant
