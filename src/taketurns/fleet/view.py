# SPDX-License-Identifier: Apache-2.0
"""A gateway's view of a shared pool: what it holds itself, and what it's told of the rest."""

from typing import Protocol

from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.snapshot import (
    EngineSnapshot,
    Explanation,
    PoolSnapshot,
    TenantSnapshot,
    TierSnapshot,
)
from taketurns.core.throttle import Prediction
from taketurns.fleet.forecast import SharedForecast
from taketurns.fleet.held import Holdings


class Shown(Protocol):
    """A pool, as its view reads it."""

    holdings: Holdings
    forecast: SharedForecast
    rules: PoolRules
    tiers: tuple[Tier, ...]
    tenants: dict[str, Tenant]
    ranks: dict[str, int]
    engines: dict[str, int]

    @property
    def alone(self) -> bool:
        """True while this gateway goes on without the coordinator."""
        ...


class FleetView:
    """Implements :class:`taketurns.ports.coordinator.View` for one gateway.

    Args:
        turns: Its pool.
    """

    def __init__(self, turns: Shown) -> None:
        self._turns = turns

    @property
    def queued(self) -> int:
        """Tickets that wait in the whole fleet, as last told; at least those held here."""
        turns = self._turns
        here = turns.holdings.queued
        return here if turns.alone else max(here, turns.forecast.waiting)

    @property
    def running(self) -> int:
        """Tickets in flight that are held here."""
        return len(self._turns.holdings) - self._turns.holdings.queued

    def is_waiting(self, ticket_id: str) -> bool:
        """Tell whether a ticket waits that is held here."""
        return self._turns.holdings.waiting(ticket_id) is not None

    def explain(self, ticket_id: str) -> Explanation | None:  # noqa: ARG002 - the port's
        """Return None: what stands in front is known to the coordinator only."""
        return None

    def predict(
        self,
        ticket: Ticket,
        now_us: int,
        *,
        target_us: int | None = None,
        ahead: int = 0,
        counts: bool = True,
    ) -> Prediction:
        """Predict how long a ticket would wait, from the shared backlog."""
        del target_us, counts
        turns = self._turns
        tenant = turns.tenants.get(ticket.tenant) or Tenant(ticket.tenant)
        rank = turns.ranks[ticket.tier]
        return turns.forecast.predict(ticket, rank, tenant, turns.rules.quantum, now_us, ahead)

    def snapshot(self) -> PoolSnapshot:
        """Return what is held here: gateways' sums are the fleet's. O(tickets)."""
        turns = self._turns
        counts: dict[tuple[str, str], list[int]] = {}
        busy = turns.holdings.slots_in_use()
        for _, held in turns.holdings.all():
            row = counts.setdefault((held.ticket.tier, held.ticket.tenant), [0, 0, 0])
            if not held.engine:
                row[0] += 1
                row[1] += held.ticket.cost
                continue
            row[2] += 1
        tiers = tuple(
            TierSnapshot(
                tier.name,
                0,
                0,
                0,
                tuple(
                    self._tenant(tenant, *row)
                    for (name, tenant), row in sorted(counts.items())
                    if name == tier.name
                ),
            )
            for tier in turns.tiers
        )
        engines = tuple(
            EngineSnapshot(name, slots, busy[name]) for name, slots in turns.engines.items()
        )
        total = sum(turns.engines.values())
        return PoolSnapshot(
            tiers,
            engines,
            turns.holdings.queued,
            self.running,
            total,
            total - sum(busy.values()),
            0,
        )

    def _tenant(self, name: str, queued: int, cost: int, in_flight: int) -> TenantSnapshot:
        known = self._turns.tenants.get(name) or Tenant(name)
        state = "waiting" if queued else "idle"
        return TenantSnapshot(
            name, known.weight, known.cap, 0, queued, cost, in_flight, None, state
        )
