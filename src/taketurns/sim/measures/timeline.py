# SPDX-License-Identifier: Apache-2.0
"""Service, demand and backlog between fixed edges of time: what windows and bins are summed from.

A request's service is input + 2 x output tokens, spread evenly from its first
token to its last. Between two edges only a sum per tenant is kept, and only
where there is any.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
        # Whole microseconds are compared with these.
        self._whole = [math.ceil(edge) for edge in self.edges]
        gaps = range(len(self.edges) - 1)
        self._gaps = len(gaps)
        self.served: list[defaultdict[str, float]] = [defaultdict(float) for _ in gaps]
        self.demand: list[defaultdict[str, float]] = [defaultdict(float) for _ in gaps]
        self.full: list[set[str]] = [set() for _ in gaps]
        self.tenants: set[str] = set()

    def finished(self, tenant: str, requests: Iterable[Request]) -> None:
        """Count requests of a tenant that have their last token."""
        self.tenants.add(tenant)
        # Gaps that were looked at last: most requests are in the same ones as the one before.
        asked = given = (0, 0, 0)
        for request in requests:
            service = request.input_tokens + 2 * request.output_tokens
            arrived_us = request.arrived_us
            if not asked[1] <= arrived_us < asked[2]:
                asked = self._gap_at(arrived_us)
            if asked[2]:
                self.demand[asked[0]][tenant] += service
            begin, end = request.first_us, request.finished_us
            if not given[1] <= begin < given[2]:
                given = self._gap_at(begin)
            if end <= begin:
                # VTC's code leaves out what has one token: it has no length in time.
                continue
            if end < given[2]:
                self.served[given[0]][tenant] += service
            else:
                self._spread(tenant, max(0, given[0]), service, begin, end)

    def _gap_at(self, when_us: int) -> tuple[int, int, int]:
        """Return the number of the gap at a time, where it begins and ends; outside: 0 and 0."""
        at = bisect_right(self._whole, when_us) - 1
        inside = 0 <= at < self._gaps
        return (at, self._whole[at], self._whole[at + 1]) if inside else (at, 0, 0)

    def _spread(self, tenant: str, gap: int, service: int, begin: int, end: int) -> None:
        """Count service that goes over edges, from a gap on."""
        edges, per_us = self.edges, service / (end - begin)
        while gap < self._gaps and edges[gap] < end:
            part = per_us * (min(end, edges[gap + 1]) - max(begin, edges[gap]))
            self.served[gap][tenant] += part
            gap += 1

    def between(
        self, rows: Sequence[Mapping[str, float]], begin: float, end: float
    ) -> dict[str, float]:
        """Return sums of rows between two edges, by tenant."""
        sums: dict[str, float] = {}
        for at in range(self.edges.index(begin), self.edges.index(end)):
            for tenant, value in rows[at].items():
                sums[tenant] = sums.get(tenant, 0.0) + value
        return sums

    def backlogged(self, tenant: str, since_us: int, until_us: int) -> None:
        """Count a tenant as one that always had a request waiting in this time."""
        edges = self.edges
        at = bisect_right(edges, float(since_us - 1))
        while at < len(self.full) and edges[at + 1] <= until_us:
            self.full[at].add(tenant)
            at += 1
