# SPDX-License-Identifier: Apache-2.0
"""What the tenants of one tier have queued, and what they are expected to send soon.

What a tenant sends fades with a half-life of two horizons, a horizon being how
long a ticket of the tier may wait. From that follows what it will send while a
ticket waits: who sends steadily goes in front by its share, whether or not it
has anything queued at the moment, and who is refused comes back.

Everything is O(1) in tenants and tickets.
"""

from collections import OrderedDict

from taketurns.core.throttle import Backlogs

HORIZON_US = 2_000_000
"""How long tickets may wait, as long as none has said it."""

STEPS = 256
"""Fading goes in steps of at least this part of a half-life: what is sent counts too long by it."""


class Own:
    """What one tenant has queued in one tier, and what it sends.

    Attributes:
        cost: Cost of what it has queued.
        by_priority: The same by priority; those with nothing are left out.
        weight: As it's counted with.
        offered: Cost of what it has sent, refused tickets included; it fades.
        as_of_us: The moment for which ``offered`` stands.
        soon: Cost of what it has queued and of what it's expected to send in a horizon,
            when that was counted last.
    """

    __slots__ = ("as_of_us", "by_priority", "cost", "offered", "soon", "weight")

    def __init__(self, weight: int, now_us: int) -> None:
        self.cost = 0
        self.by_priority: dict[int, int] = {}
        self.weight = weight
        self.offered = 0
        self.as_of_us = now_us
        self.soon = 0

    def before(self, priority: int) -> int:
        """Return the cost of what goes before a ticket that is queued next. O(priorities)."""
        by_priority = self.by_priority
        if len(by_priority) == 1 and priority in by_priority:
            return self.cost
        return sum(cost for other, cost in by_priority.items() if other <= priority)


class Demand:
    """What the tenants of one tier have queued and send.

    Args:
        unit: The tier's quantum to begin with.

    Attributes:
        backlogs: What they have queued.
        soon: That, and what they are expected to send within the horizon; see :meth:`recount`.
        own: The tenants by name; those who have nothing and send nothing are forgotten.
        offered: Cost of what all of them sent, refused tickets included; who
            keeps the time lets it fade.
        horizon_us: How long tickets may wait: a mean of their targets.
    """

    __slots__ = ("_stale", "backlogs", "horizon_us", "offered", "own", "soon")

    def __init__(self, unit: int) -> None:
        self.backlogs = Backlogs(unit)
        self.soon = Backlogs(unit)
        self.own: OrderedDict[str, Own] = OrderedDict()
        self.offered = 0
        self.horizon_us = HORIZON_US
        # Those who have sent something since their `soon` was counted.
        self._stale: set[Own] = set()

    def offer(self, tenant: str, weight: int, cost: int, now_us: int) -> Own:
        """Count what a tenant sends, whether or not it's queued then, and return its record.

        Another tenant's is brought up to date too, each in its turn, so that
        those who have gone quiet fade.
        """
        records = self.own
        own = records.get(tenant)
        if own is None:
            own = records[tenant] = Own(weight, now_us)
        self.offered += cost
        if now_us - own.as_of_us > self.horizon_us // (STEPS // 2):
            self._fade(own, now_us)
        own.offered += cost
        stale = self._stale
        stale.add(own)
        if len(records) > 1:
            name, other = records.popitem(last=False)
            if other is not own and now_us - other.as_of_us > self.horizon_us >> 4:
                self._fade(other, now_us)
                self._recount(other)
                stale.discard(other)
            if other.soon or other in stale:
                records[name] = other
        return own

    def recount(self) -> None:
        """Count in :attr:`soon` what was sent meanwhile. O(1), amortised over what is offered.

        Nobody asks while everything starts at once: what nobody asks needn't be counted.
        """
        for own in self._stale:
            self._recount(own)
        self._stale.clear()

    def queue(self, own: Own, priority: int, cost: int) -> None:
        """Count a ticket in, or out where its cost is given as negative."""
        before, soon, weight = own.cost, own.soon, own.weight
        own.cost = after = before + cost
        self.backlogs.change(before, after, weight)
        own.soon = soon + cost
        self.soon.change(soon, soon + cost, weight)
        by_priority = own.by_priority
        left = by_priority.get(priority, 0) + cost
        if left:
            by_priority[priority] = left
        else:
            del by_priority[priority]

    def weigh(self, tenant: str, weight: int) -> None:
        """Count a tenant with another weight."""
        own = self.own.get(tenant)
        if own is not None:
            self.backlogs.change(own.cost, 0, own.weight)
            self.soon.change(own.soon, 0, own.weight)
            own.weight = weight
            self.backlogs.change(0, own.cost, weight)
            self.soon.change(0, own.soon, weight)

    def aim(self, target_us: int) -> None:
        """Let the horizon follow the target of one more ticket."""
        horizon_us = self.horizon_us + (target_us - self.horizon_us) // 64
        self.horizon_us = horizon_us if horizon_us > 0 else 1

    def _recount(self, own: Own) -> None:
        # What fades with a half-life of h adds up to a rate of ln(2) / h of it; 0.347 of it
        # is what is sent in half of h.
        soon = own.cost + own.offered * 89 // 256
        self.soon.change(own.soon, soon, own.weight)
        own.soon = soon

    def _fade(self, own: Own, now_us: int) -> None:
        half_us = 2 * self.horizon_us
        halvings, rest_us = divmod(now_us - own.as_of_us, half_us)
        own.as_of_us = now_us
        offered = own.offered >> halvings
        # 2 ** -r is about 1 - r * (0.693 - 0.193 * r): exact to 1 % from r = 0 to 1,
        # and right in slope at 0, since most steps are small.
        fade = rest_us * (693 * half_us - 193 * rest_us)
        own.offered = offered - offered * fade // (1_000 * half_us * half_us)
