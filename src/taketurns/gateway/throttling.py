# SPDX-License-Identifier: Apache-2.0
"""Refuses at once what can't be expected to start within its wait target."""

import logging
from collections.abc import Callable

from taketurns.core.model import Ticket
from taketurns.core.throttle import RATE_ONE, Late, Prediction, Why, judge
from taketurns.errors import TaketurnsError
from taketurns.gateway.pools import Caller, ServedModel
from taketurns.ports.coordinator import View
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)


class WouldBeLateError(TaketurnsError):
    """A request would wait longer than its target: it was not queued and not executed.

    Attributes:
        late: Why, and when it would be let in.
        prediction: How the wait comes about.
    """

    code = "would_wait_too_long"

    def __init__(self, late: Late, prediction: Prediction) -> None:
        super().__init__(f"predicted wait {late.wait_us} us, target {late.target_us} us")
        self.late = late
        self.prediction = prediction


class Throttle:
    """The throttle of one pool.

    Args:
        scheduler: Predicts; made with ``PoolRules.throttle`` where the model has a target.
        on_late: Told of each request that it refuses, or would: the model, the
            mode (``enforce`` or ``shadow``) and the reason.
    """

    def __init__(self, scheduler: View, on_late: Callable[[str, str, str], None]) -> None:
        self._scheduler = scheduler
        self._on_late = on_late
        # When the last one that was refused was told to come back: of a tenant, where its
        # share is the reason, else of all.
        self._promised_us: dict[str, int] = {}

    def check(
        self, model: ServedModel, caller: Caller, ticket: Ticket, *, now_us: int, ahead: int = 0
    ) -> None:
        """See that a ticket, to be queued next, can start in time.

        Args:
            model: What it's for; its target is the tier's, or the client's own if shorter.
            caller: Who sends it.
            ticket: The ticket, or the last of those of one request.
            now_us: The time.
            ahead: Cost of the request's other tickets.

        Raises:
            WouldBeLateError: It can't.
        """
        target_us = model.wait_target_us[caller.tier]
        if target_us is None:
            return
        if caller.wait_us_max is not None:
            target_us = min(target_us, caller.wait_us_max)
        prediction = self._scheduler.predict(ticket, now_us, target_us=target_us, ahead=ahead)
        if prediction.wait_us == 0:
            return
        late = judge(prediction, target_us)
        if late is None:
            return
        mode = model.section.throttle
        self._on_late(model.name, mode, late.reason.value)
        if mode == "enforce":
            promised = self._spread(late, prediction, caller.tenant, ticket.cost + ahead, now_us)
            raise WouldBeLateError(promised, prediction)
        LOG.info(
            "throttle of %s would have refused a request of %s: wait %d ms, target %d ms (shadow)",
            model.name,
            caller.tenant,
            late.wait_us // 1000,
            target_us // 1000,
        )

    def _spread(
        self, late: Late, prediction: Prediction, tenant: str, cost: int, now_us: int
    ) -> Late:
        """Tell those that are refused together moments as far apart as they can be served.

        Where they fill the time of a target, the next are told its moments anew.
        """
        key = "" if late.reason is Why.CAPACITY else tenant
        earliest_us = promised_us = now_us + late.retry_after_us
        next_us = self._promised_us.get(key, 0) + cost * RATE_ONE // max(1, prediction.rate)
        if earliest_us < next_us <= earliest_us + max(late.target_us, US_PER_S):
            promised_us = next_us
        self._promised_us[key] = promised_us
        return late._replace(retry_after_us=promised_us - now_us)
