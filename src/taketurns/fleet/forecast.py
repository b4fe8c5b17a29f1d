# SPDX-License-Identifier: Apache-2.0
"""Predicts waits from what the coordinator says of the shared backlog.

    wait = (better tiers + own + min(others, x * weight of the others)) / rate

x is what each gets per weight until the tenant's turn is done. That is the
formula of the pool's own throttle with the sum over tenants replaced by its
upper bound, since a gateway knows the others' total only; it isn't corrected by
experience. The rate is what was granted per time while there was a backlog.
"""

from typing import Any

from taketurns.core.model import Tenant, Ticket
from taketurns.core.throttle import RATE_ONE, Prediction
from taketurns.units import US_PER_S

WINDOW_US = US_PER_S // 4
"""Shortest time over which the rate is measured."""

KEPT_US = US_PER_S
"""How long what was told of a tenant's backlog counts."""

TENANTS_MAX = 10_000
"""Most tenants of whom something is kept; the oldest is forgotten first."""


class SharedForecast:
    """What is known of one pool.

    Attributes:
        waiting: Tickets that wait in the whole pool.
        running: Tickets that run there.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self._tiers: list[tuple[int, int]] = []
        self._own: dict[tuple[int, str], tuple[int, int]] = {}
        self._granted = 0
        self._since_us: int | None = None
        self._rate = 0

    def heard(self, summary: list[Any], now_us: int) -> None:
        """Take in what a step's answer says: tickets that wait and run, cost granted, tiers."""
        waiting, running, granted, tiers = summary
        if self._since_us is None or not waiting or not self.waiting:
            self._since_us, self._granted = now_us, granted
        elif now_us - self._since_us >= WINDOW_US:
            rate = (granted - self._granted) * RATE_ONE // (now_us - self._since_us)
            if rate > 0:
                self._rate = rate if self._rate == 0 else self._rate + (rate - self._rate) // 4
            self._since_us, self._granted = now_us, granted
        self.waiting, self.running, self._tiers = waiting, running, tiers

    def told(self, rank: int, tenant: str, cost: int, now_us: int) -> None:
        """Take in how much of a tenant waits in all."""
        self._own.pop((rank, tenant), None)
        self._own[rank, tenant] = (cost, now_us)
        if len(self._own) > TENANTS_MAX:
            del self._own[next(iter(self._own))]

    def predict(
        self, ticket: Ticket, rank: int, tenant: Tenant, quantum: int, now_us: int, ahead: int
    ) -> Prediction:
        """Predict how long a ticket would wait if it were queued next."""
        if not self.waiting or not self._tiers:
            return Prediction(0, rate=self._rate)
        rate = self._rate
        if rate <= 0:
            return Prediction(None)
        cost, weight = self._tiers[rank]
        own, told_us = self._own.get((rank, ticket.tenant), (0, 0))
        own = ahead + (own if now_us - told_us <= KEPT_US else 0)
        better = sum(cost for cost, _ in self._tiers[:rank])
        per_weight = (own // (quantum * tenant.weight) + 1) * quantum
        others = min(max(0, cost - own), per_weight * max(0, weight - tenant.weight))
        slot_us = ticket.cost * RATE_ONE // rate
        return Prediction(
            wait_us=(better + own + others) * RATE_ONE // rate,
            newcomer_us=(better + min(cost, quantum * weight)) * RATE_ONE // rate,
            alone_us=(better + own) * RATE_ONE // rate,
            better_tiers=better,
            own=own,
            others=others,
            slot_us=slot_us,
            rate=rate,
        )
