# SPDX-License-Identifier: Apache-2.0
"""Service, demand and backlog between fixed edges of time: what windows and bins are summed from.

A request's service is input + 2 x output tokens, spread evenly from its first
token to its last. Between two edges only a sum per tenant is kept, and only
where there is any.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence

from taketurns.sim.request import Request


def service_of(request: Request) -> int:
    """Return a request's service: an output token counts as two of input."""
    return request.input_tokens + 2 * request.output_tokens


class Timeline:
    """Sums between edges.

    Args:
        edges: Times in microseconds, rising; what is outside is left out.

    Attributes:
        edges: As given.
        served: Between each edge and the next: service by tenant.
        demand: The same for service of served requests, by when they arrived.
        full: Tenants that were backlogged all the time between two edges.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = [float(edge) for edge in edges]
        gaps = range(len(self.edges) - 1)
        self._gaps = len(gaps)
        self.served: list[defaultdict[str, float]] = [defaultdict(float) for _ in gaps]
        self.demand: list[defaultdict[str, float]] = [defaultdict(float) for _ in gaps]
        self.full: list[set[str]] = [set() for _ in gaps]
        self.tenants: set[str] = set()
        self._waiting: dict[str, int] = {}
        self._since: dict[str, int] = {}

    def arrived(self, request: Request) -> None:
        """A request waits."""
        tenant = request.tenant
        waiting = self._waiting.get(tenant)
        if waiting:
            self._waiting[tenant] = waiting + 1
        else:
            self._waiting[tenant] = 1
            self._since[tenant] = request.arrived_us

    def left(self, tenant: str, now_us: int) -> None:
        """A request waits no more."""
        waiting = self._waiting[tenant] - 1
        if waiting:
            self._waiting[tenant] = waiting
            return
        del self._waiting[tenant]
        since = self._since.pop(tenant)
        if now_us > since:
            self._mark(tenant, since, now_us)

    def finished(self, request: Request) -> None:
        """Count a request that has its last token."""
        tenant, edges = request.tenant, self.edges
        self.tenants.add(tenant)
        service = request.input_tokens + 2 * request.output_tokens
        # Floats are compared with floats in a fraction of the time.
        at = bisect_right(edges, float(request.arrived_us)) - 1
        if 0 <= at < self._gaps:
            self.demand[at][tenant] += service
        begin, end = float(request.first_us), float(request.finished_us)
        at = bisect_right(edges, begin) - 1
        if at >= self._gaps or end <= begin:
            # VTC's code leaves out what has one token: it has no length in time.
            return
        if at >= 0 and end <= edges[at + 1]:
            self.served[at][tenant] += service
            return
        per_us = service / (end - begin)
        for gap in range(max(0, at), self._gaps):
            start = edges[gap]
            if start >= end:
                return
            part = per_us * (min(end, edges[gap + 1]) - max(begin, start))
            self.served[gap][tenant] += part

    def close(self, now_us: int) -> None:
        """Count those that still wait as backlogged until now."""
        for tenant, since in self._since.items():
            self._mark(tenant, since, now_us)

    def between(
        self, rows: Sequence[Mapping[str, float]], begin: float, end: float
    ) -> dict[str, float]:
        """Return sums of rows between two edges, by tenant."""
        sums: dict[str, float] = {}
        for at in range(self.edges.index(begin), self.edges.index(end)):
            for tenant, value in rows[at].items():
                sums[tenant] = sums.get(tenant, 0.0) + value
        return sums

    def _mark(self, tenant: str, since_us: int, until_us: int) -> None:
        edges = self.edges
        at = bisect_right(edges, float(since_us - 1))
        while at < len(self.full) and edges[at + 1] <= until_us:
            self.full[at].add(tenant)
            at += 1
