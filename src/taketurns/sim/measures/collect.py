# SPDX-License-Identifier: Apache-2.0
"""All measures of a run together: the observer that the simulator's commands use."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping

from taketurns.sim.measures.bins import Bins
from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.measures.targets import Targets
from taketurns.sim.measures.tenants import TenantMeasure
from taketurns.sim.measures.timeline import Timeline
from taketurns.sim.measures.windows import Windows
from taketurns.sim.request import Request

TOGETHER = 8_192
"""Finished requests that are counted together: that is several times cheaper than one by one."""


class Collected:
    """Implements :class:`~taketurns.sim.run.Observer`. Memory grows with tenants, not requests.

    Args:
        span_us: Time that windows and bins of service cover.
        weights: Weights of the tenants that differ from the default.
        offered_us: How long requests arrive: the window of goodput.
        early: Count whose the first so many admitted requests were.
        held_from_us: From when on it counts how long tenants hold slots; None: it doesn't.

    Attributes:
        solo: Tells how many microseconds a request takes on an engine for itself,
            so that slowdown is measured; None: it isn't.
        targets: What became of requests with a wait target.
    """

    def __init__(
        self,
        span_us: int,
        weights: Mapping[str, int],
        offered_us: int,
        early: int = 0,
        held_from_us: int | None = None,
    ) -> None:
        self.windows = Windows(span_us)
        self.bins = Bins(span_us, weights)
        self.timeline = Timeline(sorted({*self.windows.edges, *self.bins.edges}))
        self.tenants: dict[str, TenantMeasure] = {}
        self.targets = Targets(offered_us)
        self.solo: Callable[[Request], float] | None = None
        self.last_us = 0
        self._offered_us = offered_us
        self._early = early
        self._held_from_us = held_from_us
        self._running: dict[str, Request] = {}
        self._ended: list[Request] = []
        self._admitted = 0
        self._in_time_tokens = 0

    def arrived(self, request: Request) -> None:
        tenant = self.tenants.get(request.tenant)
        if tenant is None:
            self.tenants[request.tenant] = tenant = TenantMeasure(request.tier)
        if tenant.arrived == tenant.left:
            tenant.since_us = request.arrived_us
        tenant.arrived += 1

    def refused(self, request: Request) -> None:
        tenant = self._left(request.tenant, request.arrived_us)
        tenant.refused += 1
        tenant.refused_by[request.refused_by] += 1
        self.targets.refused(request)

    def expired(self, request: Request, now_us: int) -> None:
        self._left(request.tenant, now_us).expired += 1
        self.targets.admitted(request)

    def admitted(self, request: Request) -> None:
        tenant = self._left(request.tenant, request.admitted_us)
        if self._held_from_us is not None:
            self._running[request.id] = request
        if request.target_us is not None:
            self.targets.admitted(request)
        overtaken = self._admitted - request.number
        tenant.fresh.append(overtaken if overtaken > 0 else 0)
        self._admitted += 1
        if self._admitted <= self._early:
            tenant.early += 1

    def finished(self, request: Request) -> None:
        self._ended.append(request)
        if len(self._ended) >= TOGETHER:
            self._count()

    def close(self, now_us: int) -> None:
        """Count what has ended, and what waits and runs at the end."""
        self._count()
        for name, tenant in self.tenants.items():
            tenant.count_fresh()
            if tenant.arrived > tenant.left:
                self.timeline.backlogged(name, tenant.since_us, now_us)
        for request in self._running.values():
            self._hold(request, now_us, self._held_from_us or 0)

    @property
    def service(self) -> int:
        """Service of all tenants together, once it's closed."""
        return sum(tenant.service for tenant in self.tenants.values())

    def figures(self) -> dict[str, float]:
        """Return the run's figures by name, once it's closed."""
        differences = self.windows.differences(self.timeline)
        tenants = self.tenants.values()
        tokens = sum(tenant.tokens for tenant in tenants)
        return {
            "average_difference": statistics.fmean(differences),
            "max_difference": max(differences),
            "variance": statistics.pvariance(differences),
            "accumulated_difference": max(self.windows.accumulated(self.timeline)),
            **self.bins.figures(self.timeline),
            **self._by_tier(),
            **self.targets.figures(),
            "tokens_per_s": tokens / (self.last_us / 1e6) if self.last_us else 0.0,
            "goodput_tokens_per_s": self._in_time_tokens / (self._offered_us / 1e6),
            "arrived": sum(tenant.arrived for tenant in tenants),
            "served": sum(tenant.served for tenant in tenants),
            "refused": sum(tenant.refused for tenant in tenants),
            "expired": sum(tenant.expired for tenant in tenants),
            "queued_max_s": max((tenant.queued.largest for tenant in tenants), default=0) / 1e6,
            "last_s": self.last_us / 1e6,
        }

    def _left(self, name: str, now_us: int) -> TenantMeasure:
        """Let a request wait no more; return its tenant."""
        tenant = self.tenants[name]
        tenant.left += 1
        if tenant.left == tenant.arrived and now_us > tenant.since_us:
            self.timeline.backlogged(name, tenant.since_us, now_us)
        return tenant

    def _count(self) -> None:
        """Count the requests that have ended."""
        ended, self._ended = self._ended, []
        by_tenant: defaultdict[str, list[Request]] = defaultdict(list)
        for request in ended:
            by_tenant[request.tenant].append(request)
            if request.target_us is not None:
                self.targets.finished(request)
        if ended:
            self.last_us = ended[-1].finished_us
        in_time = [request for request in ended if request.finished_us <= self._offered_us]
        self._in_time_tokens += sum([one.input_tokens + one.output_tokens for one in in_time])
        if self._held_from_us is not None:
            for request in ended:
                del self._running[request.id]
                self._hold(request, request.finished_us, self._held_from_us)
        for name, requests in by_tenant.items():
            tenant = self.tenants[name]
            tenant.finished(requests)
            self.timeline.finished(name, requests)
            if self.solo is not None:
                tenant.slowdown.add([_slowdown(request, self.solo) for request in requests])

    def _by_tier(self) -> dict[str, float]:
        """Return misallocation inside each tier and its requests' waits; none with one tier."""
        names: dict[str, set[str]] = {}
        for name, tenant in self.tenants.items():
            names.setdefault(tenant.tier, set()).add(name)
        if len(names) < 2:
            return {}
        found: dict[str, float] = {}
        for tier, members in sorted(names.items()):
            fair = self.bins.figures(self.timeline, members)
            queued, slowdown = Histogram(), Histogram()
            for name in members:
                queued.merge(self.tenants[name].queued)
                slowdown.merge(self.tenants[name].slowdown)
            found |= {
                f"misallocated:{tier}": fair["misallocated"],
                f"queued_p50_s:{tier}": queued.quantile(0.5) / 1e6,
                f"queued_p99_s:{tier}": queued.quantile(0.99) / 1e6,
                f"slowdown_p50:{tier}": slowdown.quantile(0.5) / 1e3,
                f"slowdown_p99:{tier}": slowdown.quantile(0.99) / 1e3,
            }
        return found

    def _hold(self, request: Request, until_us: int, from_us: int) -> None:
        held_us = max(0, until_us - max(request.admitted_us, from_us))
        self.tenants[request.tenant].held_us += held_us * request.input_tokens


def _slowdown(request: Request, solo: Callable[[Request], float]) -> int:
    """Return how long a request took, in thousandths of its time on an engine for itself."""
    return round(1_000 * (request.finished_us - request.arrived_us) / solo(request))
