# SPDX-License-Identifier: Apache-2.0
"""Whether the process lives and should get requests, for load balancers and platforms."""

from collections.abc import Callable, Iterator

import msgspec

from taketurns.gateway.build import Pools
from taketurns.gateway.coordination import Coordination
from taketurns.gateway.exchange import Answer, Exchange


class Health:
    """Answers probes.

    Args:
        pools: At least one of them must have an engine that can be used.
        coordination: Who decides.
        ready: Tells whether the gateway is to get anything new.
    """

    def __init__(self, pools: Pools, coordination: Coordination, ready: Callable[[], bool]) -> None:
        self._pools = pools
        self._coordination = coordination
        self._ready = ready

    async def answer_live(self, exchange: Exchange) -> Answer:
        """Answer ``GET /livez``: the process runs."""
        exchange.record.endpoint = "health"
        return Answer(200, b'{"status":"alive"}')

    async def answer_ready(self, exchange: Exchange) -> Answer:
        """Answer ``GET /readyz``: it takes requests, and at least one model has an engine."""
        exchange.record.endpoint = "health"
        reason = self._unready()
        if reason:
            told = msgspec.json.encode({"status": reason})
            return Answer(503, told, headers={"Retry-After": "1"})
        detail = ", ".join(self._details())
        ready = {"status": "ready", "detail": detail} if detail else {"status": "ready"}
        return Answer(200, msgspec.json.encode(ready))

    async def answer_ping(self, exchange: Exchange) -> Answer:
        """Answer SageMaker's ``GET /ping``: as ``/readyz``, without a word."""
        exchange.record.endpoint = "health"
        return Answer(503 if self._unready() else 200, b"")

    def _details(self) -> Iterator[str]:
        """Yield what isn't well though it should get requests."""
        if self._coordination.alone:
            yield "without the coordinator"
        if any(pool.availability.misfit for pool in self._pools.all().values()):
            yield "an engine refuses request after request (401, 403, 404 or 405)"

    def _unready(self) -> str:
        """Return why it should get no requests; empty: it should."""
        if not self._ready():
            return "draining"
        if not any(pool.availability.usable for pool in self._pools.all().values()):
            return "no_engine"
        return "" if self._coordination.ready else "no_coordinator"
