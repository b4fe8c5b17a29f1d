# SPDX-License-Identifier: Apache-2.0
"""A gateway alone, while its coordinator doesn't answer: the same core, its share of slots.

The shares of all gateways together are never more than the slots there are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from taketurns.core.decision import Expired, Granted, Outcome, Refused
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.dispatch import Dispatcher
from taketurns.ports.clock import Clock


def share(slots: int, gateway: str, members: Sequence[str], expected: int) -> int:
    """Return how many of an engine's slots are a gateway's own.

    Args:
        slots: The engine's.
        gateway: Its name.
        members: Those that were last known, itself among them, or none.
        expected: How many there are at least.
    """
    many = max(len(members), expected, 1)
    if gateway not in members or many > len(members):
        # Whose the rest is isn't known: nobody's.
        return slots // many
    place = sorted(members).index(gateway)
    return (place + 1) * slots // many - place * slots // many


class LocalPool:
    """A pool of this gateway alone; it's thrown away when the coordinator is back.

    Args:
        rules: How the pool schedules.
        tiers: Its tiers.
        tenants: Weights and caps.
        clock: The process's clock.
        perform: Carries decisions out.
        share: Returns this gateway's share of an engine's slots.
    """

    def __init__(
        self,
        rules: PoolRules,
        tiers: Sequence[Tier],
        tenants: Iterable[Tenant],
        *,
        clock: Clock,
        perform: Callable[[Granted | Expired], None],
        share: Callable[[int], int],
    ) -> None:
        self.scheduler = Scheduler(rules, tiers, tenants)
        self.dispatcher = Dispatcher(self.scheduler, clock, perform)
        self._share = share
        self._slots: dict[str, int] = {}
        # Slots that are held by what the coordinator granted before.
        self._earlier: dict[str, int] = {}

    def set_engines(self, slots: Mapping[str, int], earlier: Mapping[str, int]) -> None:
        """Say what engines there are, and how many slots of each are in use from before."""
        self._slots = dict(slots)
        self._earlier = dict(earlier)
        for name in slots:
            self._fit(name)

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine or resize it."""
        self._slots[name] = slots
        self._fit(name)

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine."""
        self._slots.pop(name, None)
        self.dispatcher.remove_engine(name)

    def freed(self, name: str) -> None:
        """Take note that something from before has ended on an engine."""
        self._earlier[name] = self._earlier.get(name, 0) - 1
        if name in self._slots:
            self._fit(name)

    def submit(self, tickets: Sequence[Ticket]) -> Refused | None:
        """Queue tickets, all or none."""
        return self.dispatcher.submit(tickets)

    def finish(self, ticket_id: str, *, cost: int | None, executed: bool) -> None:
        """End a ticket that was granted here."""
        self.dispatcher.finish(ticket_id, Outcome.COMPLETED, cost=cost, executed=executed)

    def close(self) -> None:
        """Decide nothing any more."""
        self.dispatcher.close()

    def _fit(self, name: str) -> None:
        slots = self._share(self._slots[name]) - self._earlier.get(name, 0)
        self.dispatcher.set_engine(name, max(0, slots))
