# SPDX-License-Identifier: Apache-2.0
"""The production scheduler: deficit round robin through the core and its dispatcher.

There is no second scheduler here. Tickets go to :class:`~taketurns.dispatch.Dispatcher`
as the gateway's do; what it grants is handed to the engines.

With ``slots``, an engine has that many, as in production; what it has no room
for waits inside it. Without, it offers one slot more whenever it has room for
just the ticket that would get it: as if slots followed its memory exactly.
"""

from collections import deque
from collections.abc import Sequence

from taketurns.core.cost import CostModel
from taketurns.core.decision import Expired, Granted
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.dispatch import Dispatcher
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import Surroundings
from taketurns.sim.schedulers.gate import Gate, GateRules
from taketurns.sim.schedulers.predictors import Predictor


class RoundRobin:
    """Implements :class:`~taketurns.sim.schedulers.base.SimScheduler` over the production core.

    Args:
        rules: How the pool schedules.
        tiers: Its tiers, best first.
        cost: The pool's cost model.
        predictor: Foresees output lengths.
        around: What it is made for.
        slots: Slots of each engine, or one number for all; None: as many as have room.
        settle_cost: A running charge is settled when it's off by so much, at least 1.
        gate: What requests are asked before they are queued; None: nothing.
    """

    def __init__(
        self,
        rules: PoolRules,
        tiers: Sequence[Tier],
        cost: CostModel,
        predictor: Predictor,
        around: Surroundings,
        *,
        slots: int | Sequence[int] | None = None,
        settle_cost: int = 1,
        gate: GateRules | None = None,
    ) -> None:
        self.pushes = self.keeps_head = slots is not None
        self.follows = cost.running(1, 1, 1) is not None
        tenants = [Tenant(name, facts.weight, facts.cap) for name, facts in around.tenants.items()]
        self.core = Scheduler(rules, tiers, tenants)
        self._dispatcher = Dispatcher(self.core, around.clock, self._perform)
        self._gate = None if gate is None else Gate(gate, self.core, enforced=around.throttled)
        self._cost = cost
        # What every request costs, where they all cost the same.
        self._price = cost.charge(1, 1) if cost.used(1, 1) is None else None
        self._predictor = predictor
        self._wake = around.wake
        self._gone = around.gone
        self._settle_cost = settle_cost
        self._error = self._cost_sum = self._count = 0
        self._queued: dict[str, Request] = {}
        self._granted: list[deque[Request]] = [deque() for _ in range(around.engines)]
        self._running: list[dict[str, Request]] = [{} for _ in range(around.engines)]
        self._offered = [0] * around.engines
        self._numbers = {str(number): number for number in range(around.engines)}
        for name, number in self._numbers.items():
            count = slots[number] if isinstance(slots, Sequence) else slots
            self._dispatcher.set_engine(name, count or 0)

    @property
    def waiting(self) -> int:
        return self.core.queued

    def arrived(self, request: Request) -> bool:
        if self._price is None:
            request.expected = self._predictor.expected(request)
            request.standing = self._cost.charge(request.input_tokens, request.expected)
        else:
            request.standing = self._price
        ticket = Ticket(
            request.id,
            request.tenant,
            request.tier,
            request.standing,
            request.input_tokens,
            request.priority,
            request.deadline_us,
        )
        if self._gate is not None and not self._gate.lets_in(request, ticket):
            return False
        self._queued[request.id] = request
        refused = self._dispatcher.submit((ticket,))
        if refused is None:
            return True
        del self._queued[request.id]
        request.refused_by = refused.reason.value
        self._ended(request, executed=False)
        return False

    def head(self, engine: int) -> Request | None:
        if self.pushes:
            granted = self._granted[engine]
            return granted[0] if granted else None
        ticket = self.core.peek()
        return None if ticket is None else self._queued[ticket.id]

    def admitted(self, engine: int, request: Request) -> None:
        if not self.pushes:
            self._offered[engine] += 1
            self._dispatcher.set_engine(str(engine), self._offered[engine])
        granted = self._granted[engine].popleft()
        assert granted is request, "what was peeked at is what is granted"
        if self.follows:
            self._running[engine][request.id] = request

    def decoded(self, engine: int, step: int) -> None:
        for request in self._running[engine].values():
            produced = request.produced(step)
            standing = self._cost.running(request.input_tokens, produced, request.expected)
            if standing is not None and standing - request.standing >= self._settle_cost:
                request.standing = standing
                self._dispatcher.settle(request.id, standing)

    def finished(self, request: Request) -> None:
        engine = request.engine
        if self.follows:
            del self._running[engine][request.id]
        if not self.pushes:
            self._withdraw(engine)
        if self._gate is not None:
            self._gate.ended(request, executed=True)
        self._count += 1
        if self._price is not None:
            self._dispatcher.finish(request.id)
            return
        self._predictor.seen(request)
        cost = self._cost.used(request.input_tokens, request.output_tokens)
        assert cost is not None, "where costs differ, usage tells them"
        ended = self._dispatcher.finish(request.id, cost=cost)
        self._error += abs(cost - ended.ticket.cost)
        self._cost_sum += cost

    def cancel(self, request_id: str) -> bool:
        """Take a waiting request out; False where it doesn't wait."""
        if not self._dispatcher.cancel((request_id,)):
            return False
        self._ended(self._queued.pop(request_id), executed=False)
        return True

    def resize(self, slots: int) -> None:
        """Give each engine so many slots from now on."""
        for name in self._numbers:
            self._dispatcher.set_engine(name, slots)

    def figures(self) -> dict[str, float]:
        """Return what only the scheduler knows.

        ``settlement_error``: difference of what was charged at dispatch from
        what it was in the end, of the latter. ``rounds_per_dispatch`` and
        ``debt_forgiven`` are the core's own counts.
        """
        state = self.core.snapshot()
        return {
            "settlement_error": self._error / max(1, self._cost_sum),
            "rounds_per_dispatch": sum(tier.round for tier in state.tiers) / max(1, self._count),
            "debt_forgiven": state.debt_forgiven,
        }

    def _ended(self, request: Request, *, executed: bool) -> None:
        if self._gate is not None:
            self._gate.ended(request, executed=executed)

    def _withdraw(self, engine: int) -> None:
        """Take an offered slot back."""
        self._offered[engine] -= 1
        self._dispatcher.set_engine(str(engine), self._offered[engine])

    def _perform(self, decision: Granted | Expired) -> None:
        if isinstance(decision, Expired):
            request = self._queued.pop(decision.ticket.id)
            self._ended(request, executed=False)
            self._gone(request)
            return
        engine = self._numbers[decision.engine]
        granted = self._granted[engine]
        for ticket in decision.tickets:
            granted.append(self._queued.pop(ticket.id))
        if self.pushes:
            self._wake(engine)
