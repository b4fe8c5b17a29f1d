# SPDX-License-Identifier: Apache-2.0
"""What a gateway asks before it queues a request: its limits, then whether it starts in time.

Both are the production code: :class:`~taketurns.core.limits.Ledger` and the
scheduler's own prediction. A month is the whole run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taketurns.core.limit_rules import Amounts, LimitRule, rules_for
from taketurns.core.limits import Admitted, Denied, Ledger, Plan
from taketurns.core.model import Ticket
from taketurns.core.scheduler import Scheduler
from taketurns.core.throttle import judge
from taketurns.sim.request import Request


@dataclass(frozen=True, slots=True)
class GateRules:
    """What is asked of a request.

    Attributes:
        targets_us: Wait within which requests should start, by tier; a tier
            that is missing has none.
        limits: Rate limits and quotas.
        model: What limits know the pool's model as,
        endpoint: and the endpoint that requests come by.
    """

    targets_us: Mapping[str, int]
    limits: Sequence[LimitRule] = ()
    model: str = ""
    endpoint: str = ""


class Gate:
    """Lets requests in or refuses them. Memory: tenants, and what waits and runs.

    Args:
        rules: What it asks.
        core: Predicts; made with ``PoolRules.throttle`` where there are targets.
        enforced: False: whoever would be late is let in all the same.
    """

    def __init__(self, rules: GateRules, core: Scheduler, *, enforced: bool) -> None:
        self._rules = rules
        self._core = core
        self._enforced = enforced
        self._ledger = Ledger()
        self._plans: dict[tuple[str, str], Plan] = {}
        self._admitted: dict[str, Admitted] = {}

    def lets_in(self, request: Request, ticket: Ticket) -> bool:
        """Charge a request to its limits and look when it would start; say who refuses it."""
        plan = self._plan(request)
        if plan.rules:
            amounts = Amounts(1, request.input_tokens, request.expected)
            result = plan.admit(amounts, now_us=request.arrived_us, month="")
            if isinstance(result, Denied):
                request.refused_by = result.statuses[0].rule.name
                return False
            self._admitted[request.id] = result
        request.target_us = target_us = self._rules.targets_us.get(request.tier)
        if target_us is None:
            return True
        prediction = self._core.predict(ticket, request.arrived_us, target_us=target_us)
        late = judge(prediction, target_us)
        if late is None or not self._enforced:
            return True
        request.refused_by = f"throttle ({late.reason})"
        self.ended(request, executed=False)
        return False

    def ended(self, request: Request, *, executed: bool) -> None:
        """Settle a request's limits: it has finished, or was never begun."""
        admitted = self._admitted.pop(request.id, None)
        if admitted is not None:
            used = Amounts(1, request.input_tokens, request.output_tokens)
            admitted.settle(used if executed else None)

    def _plan(self, request: Request) -> Plan:
        key = (request.tenant, request.tier)
        plan = self._plans.get(key)
        if plan is None:
            rules = rules_for(
                self._rules.limits,
                tenant=request.tenant,
                tier=request.tier,
                model=self._rules.model,
                endpoint=self._rules.endpoint,
            )
            self._plans[key] = plan = self._ledger.plan(rules, request.tenant)
        return plan
