# SPDX-License-Identifier: Apache-2.0
"""Weighted round robin: each tenant in turn, as many requests as its weight, whatever they cost."""

from collections import deque
from collections.abc import Mapping

from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts


class WeightedTurns:
    """Implements :class:`~taketurns.sim.schedulers.base.SimScheduler`.

    Args:
        tenants: Weights of the tenants that differ from the default.
    """

    pushes = False
    keeps_head = False
    follows = False

    def __init__(self, tenants: Mapping[str, TenantFacts]) -> None:
        self._tenants = tenants
        self._queues: dict[str, deque[Request]] = {}
        self._ring: deque[str] = deque()
        self._left = 0
        self.waiting = 0

    def arrived(self, request: Request) -> bool:
        queue = self._queues.setdefault(request.tenant, deque())
        if not queue:
            self._ring.append(request.tenant)
            if len(self._ring) == 1:
                self._left = self._weight(request.tenant)
        queue.append(request)
        self.waiting += 1
        return True

    def head(self, engine: int) -> Request | None:  # noqa: ARG002 - one ring for all
        return self._queues[self._ring[0]][0] if self._ring else None

    def admitted(self, engine: int, request: Request) -> None:  # noqa: ARG002
        tenant = request.tenant
        queue = self._queues[tenant]
        queue.remove(request)
        self.waiting -= 1
        self._left -= 1
        if not queue:
            self._ring.remove(tenant)
        elif self._left <= 0:
            self._ring.rotate(-1)
        if self._ring and (self._left <= 0 or self._ring[0] != tenant):
            self._left = self._weight(self._ring[0])

    def decoded(self, engine: int, step: int) -> None:
        pass

    def finished(self, request: Request) -> None:
        pass

    def figures(self) -> dict[str, float]:
        return {}

    def _weight(self, tenant: str) -> int:
        facts = self._tenants.get(tenant)
        return facts.weight if facts else 1
