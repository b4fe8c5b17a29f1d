# SPDX-License-Identifier: Apache-2.0
"""Least counter first, and the virtual token counter (VTC) in its published variants.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024,
algorithm 2 and its variants with length prediction. Each tenant has a counter
of what it was charged per weight; the tenant with the least goes next. VTC
*lifts* the counter of a tenant that comes back, so that nobody saves up for
later; least counter first does not.
"""

from collections import deque
from collections.abc import Mapping

from taketurns.core.cost import EmaCost
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts
from taketurns.sim.schedulers.predictors import Nothing, Predictor


class LeastCounter:
    """Implements :class:`~taketurns.sim.schedulers.base.SimScheduler`.

    Args:
        lift: Lift the counter of a tenant that comes back: VTC.
        cost: What a running request stands charged.
        predictor: Foresees output lengths.
        tenants: Weights of the tenants that differ from the default.
    """

    pushes = False
    keeps_head = False
    follows = True

    def __init__(
        self,
        cost: EmaCost,
        predictor: Predictor,
        tenants: Mapping[str, TenantFacts],
        *,
        lift: bool,
    ) -> None:
        self._lift = lift
        self._cost = cost
        self._predictor = predictor
        self._weights = {name: facts.weight for name, facts in tenants.items()}
        self._counters: dict[str, float] = {}
        self._queues: dict[str, deque[Request]] = {}
        self._backlogged: dict[str, deque[Request]] = {}
        self._running: dict[int, dict[str, Request]] = {}
        self._last_left = ""
        self._as_it_streams = cost.horizon == 0 and isinstance(predictor, Nothing)
        self._seen: dict[int, int] = {}
        self._counts: dict[int, dict[str, int]] = {}
        self.waiting = 0

    def arrived(self, request: Request) -> bool:
        tenant = request.tenant
        queue = self._queues.setdefault(tenant, deque())
        if not queue:
            self._come_back(tenant)
            self._backlogged[tenant] = queue
        queue.append(request)
        self.waiting += 1
        return True

    def _come_back(self, tenant: str) -> None:
        counter = self._counters.get(tenant, 0.0)
        if self._lift:
            if self._backlogged:
                counter = max(counter, min(map(self._counters.__getitem__, self._backlogged)))
            elif self._last_left:
                counter = max(counter, self._counters[self._last_left])
        self._counters[tenant] = counter

    def head(self, engine: int) -> Request | None:  # noqa: ARG002 - counters for all
        if not self._backlogged:
            return None
        return self._backlogged[min(self._backlogged, key=self._counters.__getitem__)][0]

    def admitted(self, engine: int, request: Request) -> None:
        tenant = request.tenant
        queue = self._queues[tenant]
        queue.remove(request)
        self.waiting -= 1
        if not queue:
            del self._backlogged[tenant]
            self._last_left = tenant
        request.expected = self._predictor.expected(request)
        request.standing = 0
        self._charge(request, self._cost.charge(request.input_tokens, request.expected))
        self._running.setdefault(engine, {})[request.id] = request
        if self._as_it_streams:
            counts = self._counts.setdefault(engine, {})
            counts[tenant] = counts.get(tenant, 0) + 1

    def decoded(self, engine: int, step: int) -> None:
        since = self._seen.get(engine, 0)
        self._seen[engine] = step
        if self._as_it_streams:
            # What the loop below comes to, without looking at each request.
            cost = self._cost.output_weight * (step - since)
            for tenant, running in self._counts.get(engine, {}).items():
                self._counters[tenant] += running * cost / self._weights.get(tenant, 1)
            return
        for request in self._running.get(engine, {}).values():
            produced = request.produced(step)
            self._charge(
                request, self._cost.running(request.input_tokens, produced, request.expected)
            )

    def finished(self, request: Request) -> None:
        engine = request.engine
        del self._running[engine][request.id]
        if self._as_it_streams:
            counts = self._counts[engine]
            counts[request.tenant] -= 1
            steps = self._seen[engine] - request.start_step
            request.standing += self._cost.output_weight * steps
        final = self._cost.used(request.input_tokens, request.output_tokens)
        assert final is not None
        self._charge(request, final)
        self._predictor.seen(request)

    def figures(self) -> dict[str, float]:
        return {}

    def _charge(self, request: Request, standing: int) -> None:
        weight = self._weights.get(request.tenant, 1)
        self._counters[request.tenant] += (standing - request.standing) / weight
        request.standing = standing
