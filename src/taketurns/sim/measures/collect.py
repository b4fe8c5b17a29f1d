# SPDX-License-Identifier: Apache-2.0
"""All measures of a run together: the observer that the simulator's commands use."""

import statistics
from collections.abc import Mapping

from taketurns.sim.measures.bins import Bins
from taketurns.sim.measures.tenants import TenantMeasure
from taketurns.sim.measures.windows import ServiceWindows
from taketurns.sim.request import Request


class Collected:
    """Implements :class:`~taketurns.sim.run.Observer`. Memory grows with tenants, not requests.

    Args:
        span_us: Time that windows and bins of service cover.
        weights: Weights of the tenants that differ from the default.
        offered_us: How long requests arrive: the window of goodput.
        early: Count whose the first so many admitted requests were.
        held_from_us: From when on it counts how long tenants hold slots.
    """

    def __init__(
        self,
        span_us: int,
        weights: Mapping[str, int],
        offered_us: int,
        early: int = 0,
        held_from_us: int = 0,
    ) -> None:
        self.windows = ServiceWindows(span_us)
        self.bins = Bins(span_us, weights)
        self.tenants: dict[str, TenantMeasure] = {}
        self.last_us = 0
        self._offered_us = offered_us
        self._early = early
        self._held_from_us = held_from_us
        self._running: dict[str, Request] = {}
        self._admitted = 0
        self._in_time_tokens = 0

    def arrived(self, request: Request) -> None:
        self._tenant(request.tenant).arrived += 1
        self.bins.arrived(request)

    def refused(self, request: Request) -> None:
        tenant = self._tenant(request.tenant)
        tenant.arrived += 1
        tenant.refused += 1

    def expired(self, request: Request, now_us: int) -> None:
        self._tenant(request.tenant).expired += 1
        self.bins.left(request, now_us)

    def admitted(self, request: Request) -> None:
        self.bins.left(request, request.admitted_us)
        tenant = self.tenants[request.tenant]
        tenant.overtaken.add(max(0, self._admitted - request.number))
        self._running[request.id] = request
        self._admitted += 1
        if self._admitted <= self._early:
            tenant.early += 1

    def finished(self, request: Request) -> None:
        del self._running[request.id]
        self._held(request, request.finished_us)
        self.tenants[request.tenant].finished(request)
        self.windows.finished(request)
        self.bins.finished(request)
        self.last_us = max(self.last_us, request.finished_us)
        if request.finished_us <= self._offered_us:
            self._in_time_tokens += request.input_tokens + request.output_tokens

    def close(self, now_us: int) -> None:
        """Count what waits and runs at the end."""
        self.bins.close(now_us)
        for request in self._running.values():
            self._held(request, now_us)

    def figures(self) -> dict[str, float]:
        """Return the run's figures by name."""
        differences = self.windows.differences()
        tenants = self.tenants.values()
        tokens = sum(tenant.tokens for tenant in tenants)
        return {
            "average_difference": statistics.fmean(differences),
            "max_difference": max(differences),
            "variance": statistics.pvariance(differences),
            "accumulated_difference": max(self.windows.accumulated()),
            **self.bins.figures(),
            "tokens_per_s": tokens / (self.last_us / 1e6) if self.last_us else 0.0,
            "goodput_tokens_per_s": self._in_time_tokens / (self._offered_us / 1e6),
            "arrived": sum(tenant.arrived for tenant in tenants),
            "served": sum(tenant.served for tenant in tenants),
            "refused": sum(tenant.refused for tenant in tenants),
            "expired": sum(tenant.expired for tenant in tenants),
            "queued_max_s": max((tenant.queued.largest_us for tenant in tenants), default=0) / 1e6,
            "last_s": self.last_us / 1e6,
        }

    def _held(self, request: Request, until_us: int) -> None:
        begin = max(request.admitted_us, self._held_from_us)
        held = max(0, until_us - begin) * request.input_tokens
        self.tenants[request.tenant].held_us += held

    def _tenant(self, name: str) -> TenantMeasure:
        tenant = self.tenants.get(name)
        if tenant is None:
            self.tenants[name] = tenant = TenantMeasure()
        return tenant
