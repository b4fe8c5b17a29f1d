# SPDX-License-Identifier: Apache-2.0
"""The facts that the scheduler works with: tickets, tenants, tiers and a pool's rules.

All are immutable. Times are microseconds of one monotonic clock, costs are
integers in the pool's cost unit; both stay below 2**53.
"""

from dataclasses import dataclass
from typing import NamedTuple

PRIORITY_DEFAULT = 500
PRIORITY_MAX = 999


class Ticket(NamedTuple):
    """What the scheduler sees of a request, or of one item of it: never the body.

    Attributes:
        id: Unique among the tickets that are queued or running in a pool.
        tenant: Who is charged.
        tier: The tenant's tier; one of those the pool was made with.
        cost: What is charged at dispatch, in the pool's cost unit; at least 1.
        size: Tokens that count against a batch's budget; at least 1. Without
            batches it means nothing.
        priority: 0 first, 999 last, among the tenant's own tickets.
        deadline_us: Expires when the clock reaches it while it waits; None, or
            2**53 - 1 and later: never.
        group: A batch is filled from one group only.
        arrived_us: When it arrived; for people and metrics only.
        affinity: Tickets of the same number go to the same engine where that can be,
            in a pool whose rules say so; 0: to any. It never changes who goes next.
    """

    id: str
    tenant: str
    tier: str
    cost: int = 1
    size: int = 1
    priority: int = PRIORITY_DEFAULT
    deadline_us: int | None = None
    group: str = ""
    arrived_us: int = 0
    affinity: int = 0


@dataclass(frozen=True, slots=True)
class Tier:
    """A service level. Tiers are ranked in the order in which a pool is given them, best first.

    Attributes:
        name: Unique in the pool.
        floor_percent: Share of charged cost that the tier gets even while
            better tiers have work, 0 to 50; 0: none. All floors of a pool
            together are at most 50.
        slot_share_percent: Share of the pool's slots that the tier may hold, 1 to
            100; always at least one slot.
    """

    name: str
    floor_percent: int = 0
    slot_share_percent: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.floor_percent <= 50:
            raise ValueError(f"floor_percent must be 0 to 50, got {self.floor_percent}")
        if not 1 <= self.slot_share_percent <= 100:
            raise ValueError(f"slot_share_percent must be 1 to 100, got {self.slot_share_percent}")


WEIGHT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """What a pool knows of a tenant. One that it wasn't told of has these defaults.

    Attributes:
        name: As in :attr:`Ticket.tenant`.
        weight: Share against the other tenants of its tier, 1 to 1,000.
        cap: Most tickets in flight at once, at least 1; None: no cap.
    """

    name: str
    weight: int = 1
    cap: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= WEIGHT_MAX:
            raise ValueError(f"weight must be 1 to {WEIGHT_MAX}, got {self.weight}")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1, got {self.cap}")


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How large a batch may be.

    Attributes:
        size_max: Token budget, at least 1. A single item larger than it goes alone.
        items_max: Most items, at least 1.
        padded: Count a batch as items x its longest item, for engines that pad.
        misfits_max: Tenants passed over because their head doesn't fit, before
            the batch closes; at least 1.
        linger_us: How long the first item that comes to an empty queue waits for
            others while an engine is idle, at least 0.
    """

    size_max: int
    items_max: int
    padded: bool = False
    misfits_max: int = 8
    linger_us: int = 0

    def __post_init__(self) -> None:
        if self.linger_us < 0:
            raise ValueError(f"linger_us must be at least 0, got {self.linger_us}")
        for name in ("size_max", "items_max", "misfits_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How a pool schedules.

    Attributes:
        quantum: Cost units that a tenant of weight 1 gets per round, at least 1.
        min_charge: Least that a dispatched ticket costs in the end, unless it
            was certainly not executed; None: an eighth of the quantum, at least 1.
        debt_rounds: Rounds that a tenant can be set back by settlements, at least 1.
        tenant_queue_max: Most tickets that one tenant may have queued in one tier.
        queue_max: Most tickets queued in the pool.
        batch: Rules for batches, or None where each ticket takes a slot of its own.
        shared_queue: One queue by priority, deadline and arrival for all tenants
            and tiers, instead of tiers and round robin: for comparison.
        throttle: Measure the pool, so that waits can be predicted.
        headroom_percent: Share of the slots kept for tenants that hold none, 0 to 90;
            rounded up, and at least one slot is left for the others. Not with
            batches or a shared queue.
        sticky: Tickets' affinity chooses among the engines with a free slot, instead
            of their load alone.
    """

    quantum: int
    min_charge: int | None = None
    debt_rounds: int = 64
    tenant_queue_max: int = 10_000
    queue_max: int = 100_000
    batch: BatchRules | None = None
    shared_queue: bool = False
    throttle: bool = False
    headroom_percent: int = 0
    sticky: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.headroom_percent <= 90:
            raise ValueError(f"headroom_percent must be 0 to 90, got {self.headroom_percent}")
        if self.headroom_percent and (self.batch is not None or self.shared_queue):
            raise ValueError("headroom_percent goes with neither batches nor a shared queue")
        for name in ("quantum", "debt_rounds", "tenant_queue_max", "queue_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.min_charge is not None and self.min_charge < 0:
            raise ValueError(f"min_charge must be at least 0, got {self.min_charge}")

    def kept_slots(self, slots: int) -> int:
        """Return how many of so many slots are kept for tenants that hold none."""
        return max(0, min(-(-self.headroom_percent * slots // 100), slots - 1))

    @property
    def min_charge_or_default(self) -> int:
        """The least charge in force."""
        return max(1, self.quantum // 8) if self.min_charge is None else self.min_charge
