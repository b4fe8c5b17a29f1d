# SPDX-License-Identifier: Apache-2.0
"""A pool with one engine, driven ticket by ticket, for tests of what the scheduler promises."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from taketurns.core.decision import Ended, Expired, Granted
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.core.snapshot import TenantSnapshot

ONE_TIER = (Tier("only"),)


class Pool:
    """A scheduler with one engine, and a count of what it granted.

    ``granted`` has the tickets in the order in which they were chosen;
    ``in_flight`` those that run, oldest first.
    """

    def __init__(
        self,
        rules: PoolRules,
        *,
        slots: int = 1,
        tiers: Sequence[Tier] = ONE_TIER,
        tenants: Iterable[Tenant] = (),
    ) -> None:
        self.scheduler = Scheduler(rules, tiers, tenants)
        self.scheduler.set_engine("engine", slots)
        self.tiers = tiers
        self.now_us = 0
        self.granted: list[Ticket] = []
        self.in_flight: deque[Ticket] = deque()
        self.expired: list[Ticket] = []
        self.queued: Counter[str] = Counter()
        self._submitted = 0

    def submit(self, tenant: str, cost: int = 1, **fields: object) -> Ticket:
        tier = fields.pop("tier", self.tiers[0].name)
        name = fields.pop("id", f"t{self._submitted}")
        self._submitted += 1
        ticket = Ticket(name, tenant, tier, cost, **fields)  # type: ignore[arg-type]
        assert self.scheduler.submit(ticket) is None
        self.queued[tenant] += 1
        return ticket

    def advance(self, by_us: int = 0) -> list[Ticket]:
        """Return the tickets that start by this."""
        self.now_us += by_us
        started: list[Ticket] = []
        for decision in self.scheduler.advance(self.now_us):
            if isinstance(decision, Granted):
                started += decision.tickets
            elif isinstance(decision, Expired):
                self.expired.append(decision.ticket)
                self.queued[decision.ticket.tenant] -= 1
        for ticket in started:
            self.queued[ticket.tenant] -= 1
        self.granted += started
        self.in_flight += started
        return started

    def finish(self, pick: int = 0, **how: object) -> Ended:
        """End one of the running tickets: the oldest, or the one with this place, modulo."""
        ticket = self.in_flight[pick % len(self.in_flight)]
        self.in_flight.remove(ticket)
        return self.scheduler.finish(ticket.id, **how)  # type: ignore[arg-type]

    def serve(self) -> Ticket:
        """Let one ticket start (and end the oldest running one, if no slot is free)."""
        before = len(self.granted)
        self.advance()
        if len(self.granted) == before:
            self.finish()
            self.advance()
        return self.granted[before]

    def tenants(self) -> dict[str, TenantSnapshot]:
        return {t.tenant: t for tier in self.scheduler.snapshot().tiers for t in tier.tenants}

    def charged(self, since: int = 0) -> Counter[str]:
        """Cost charged at dispatch, by tenant, from the grant with this number on."""
        total: Counter[str] = Counter()
        for ticket in self.granted[since:]:
            total[ticket.tenant] += ticket.cost
        return total
