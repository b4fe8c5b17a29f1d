# SPDX-License-Identifier: Apache-2.0
"""A pool's state for people and metrics, and the explanation of one ticket's place."""

from typing import NamedTuple

from taketurns.core.flow import NEW, OUT, TURN, Flow
from taketurns.core.queue import Entry
from taketurns.core.slots import Slots
from taketurns.core.tiers import Tiers, TierState


class TenantSnapshot(NamedTuple):
    """One tenant in one tier.

    Attributes:
        tenant: Its name.
        weight: Quanta per round.
        cap: Most tickets in flight, or None.
        balance: Cost units granted and not spent; negative: overdraft to be repaid.
        queued: Tickets that wait.
        queued_cost: Their cost.
        in_flight: Tickets that run.
        head_arrived_us: When the ticket that goes next arrived, or None.
        state: ``idle``, ``new``, ``waiting``, ``turn`` or ``capped``.
    """

    tenant: str
    weight: int
    cap: int | None
    balance: int
    queued: int
    queued_cost: int
    in_flight: int
    head_arrived_us: int | None
    state: str


class TierSnapshot(NamedTuple):
    """One tier: its round, its floor's credit, the slots it holds, its tenants by name."""

    name: str
    round: int
    floor_credit: int
    slots_held: int
    tenants: tuple[TenantSnapshot, ...]


class EngineSnapshot(NamedTuple):
    """One engine: its slots, and how many of them are in use."""

    name: str
    slots: int
    in_flight: int


class PoolSnapshot(NamedTuple):
    """One pool. Tenants that equal a fresh one are left out."""

    tiers: tuple[TierSnapshot, ...]
    engines: tuple[EngineSnapshot, ...]
    queued: int
    running: int
    slots: int
    slots_free: int
    debt_forgiven: int


def snapshot(tiers: Tiers, slots: Slots, queued: int, running: int) -> PoolSnapshot:
    """Return the state of a pool. O(tenants)."""
    return PoolSnapshot(
        tiers=tuple(_tier(state) for state in tiers.states),
        engines=tuple(
            EngineSnapshot(engine.name, engine.slots, engine.in_flight) for engine in slots.engines
        ),
        queued=queued,
        running=running,
        slots=slots.total,
        slots_free=slots.free,
        debt_forgiven=sum(state.ring.debt_forgiven for state in tiers.states),
    )


def _tier(state: TierState) -> TierSnapshot:
    tenants = tuple(
        _tenant(flow) for _, flow in sorted(state.flows.items()) if not state.ring.is_fresh(flow)
    )
    return TierSnapshot(
        state.tier.name, state.ring.round, state.floor_credit, state.slots_held, tenants
    )


def _tenant(flow: Flow) -> TenantSnapshot:
    head = flow.queue.head()
    return TenantSnapshot(
        tenant=flow.tenant,
        weight=flow.weight,
        cap=flow.cap,
        balance=flow.balance,
        queued=flow.queue.count,
        queued_cost=flow.queue.cost,
        in_flight=flow.in_flight,
        head_arrived_us=None if head is None else head[3].arrived_us,
        state=_state_name(flow),
    )


def _state_name(flow: Flow) -> str:
    if flow.place == OUT:
        return "capped" if flow.queue.count else "idle"
    if flow.place == TURN:
        return "turn"
    return "new" if flow.place == NEW else "waiting"


class Ahead(NamedTuple):
    """Tickets of one tenant that go before the one explained.

    Attributes:
        tenant: Whose they are.
        tier: Their tier.
        tickets: How many.
        cost: Their cost.
        why: ``kept slot``, ``better tier``, ``floor of a lower tier``, ``turns come first``,
            ``higher priority``, ``earlier deadline`` or ``arrived earlier``.
    """

    tenant: str
    tier: str
    tickets: int
    cost: int
    why: str


class Explanation(NamedTuple):
    """What stands in front of a waiting ticket.

    Attributes:
        ticket_id: The ticket.
        tenant: Its tenant.
        tier: Its tier.
        tickets_ahead: Tickets that go before it.
        cost_ahead: Their cost.
        capped: Its tenant is at its cap: it waits for one of the tenant's own to finish.
        complete: False where more go before it than were counted.
        ahead: The same by tenant and reason, most cost first.
    """

    ticket_id: str
    tenant: str
    tier: str
    tickets_ahead: int
    cost_ahead: int
    capped: bool
    complete: bool
    ahead: tuple[Ahead, ...]


STEPS_MAX = 20_000
"""Most tickets that an explanation counts."""


def explain(tiers: Tiers, own: TierState, entry: Entry, slots: Slots) -> Explanation:
    """Find what goes before a waiting ticket, if nothing more arrives and costs are as charged.

    The selectors run on a copy of the queues, one ticket at a time and slots
    without end, so the order is the scheduler's own. Tenants at their cap
    stay out; the ticket's own tenant is taken as below its cap. Where only the
    slots kept for tenants that hold none are left, one ticket of each such tenant
    goes first, and nobody is taken to end what holds a slot.

    Args:
        tiers: The pool's tiers.
        own: The ticket's tier.
        entry: The ticket's entry.
        slots: The pool's slots; only read.
    """
    ticket = entry[3]
    name = ticket.tenant if ticket.tenant in own.flows else "*"
    capped = own.flows[name].capped
    copies = [_trial_state(state, own, name) for state in tiers.states]
    trial = Tiers([state for state, _ in copies])
    holders = [[flow for flow in flows if flow.in_flight] for _, flows in copies]
    counts: dict[tuple[str, str, str], list[int]] = {}
    steps = 0
    keeping = slots.kept > 0 and slots.full
    while True:
        quiet = trial.choose_quiet(slots.total) if keeping else None
        state = quiet or trial.choose(None)
        assert state is not None, "the ticket itself waits in one of the rings"
        if quiet is not None:
            flow: Flow | None = state.ring.begin_quiet(holders[state.rank])
        else:
            keeping = False
            flow = state.ring.turns[0] if state.ring.turns else state.ring.begin()
        assert flow is not None, "a tier with tenants in its ring has one to begin with"
        head = flow.queue.head()
        assert head is not None, "a flow in the ring has a ticket"
        taken = flow.queue.pop(head[3].group)
        complete = taken is entry
        if complete or steps == STEPS_MAX:
            break
        if flow.in_flight == 0:
            holders[state.rank].append(flow)
        flow.in_flight += 1
        why = _why(taken, entry, state.rank - own.rank, same_queue=flow.tenant == name)
        if quiet is not None and flow.tenant != name:
            why = "kept slot"
        count = counts.setdefault((taken[3].tenant, taken[3].tier, why), [0, 0])
        count[0] += 1
        count[1] += taken[3].cost
        state.ring.charge(flow, taken[3].cost, goes_on=flow.queue.count > 0)
        trial.charged(state, taken[3].cost)
        steps += 1
    ahead = [Ahead(tenant, tier, n, cost, why) for (tenant, tier, why), (n, cost) in counts.items()]
    ahead.sort(key=lambda item: (-item.cost, item.tenant, item.why))
    return Explanation(
        ticket_id=ticket.id,
        tenant=ticket.tenant,
        tier=ticket.tier,
        tickets_ahead=steps,
        cost_ahead=sum(item.cost for item in ahead),
        capped=capped,
        complete=complete,
        ahead=tuple(ahead),
    )


def _trial_state(state: TierState, own: TierState, tenant: str) -> tuple[TierState, list[Flow]]:
    """Return a copy of a tier in which the tenant asked about stands in the ring; who stands."""
    ring, twins = state.ring.copy()
    trial = TierState(state.tier, state.rank, ring)
    trial.floor_credit = state.floor_credit
    if state is own:
        flow = state.flows[tenant]
        if id(flow) not in twins:
            twins[id(flow)] = flow = flow.copy()
            ring.enter(flow)
    return trial, list(twins.values())


def _why(taken: Entry, entry: Entry, rank_below: int, *, same_queue: bool) -> str:
    if rank_below < 0:
        return "better tier"
    if rank_below > 0:
        return "floor of a lower tier"
    if not same_queue:
        return "turns come first"
    if taken[0] < entry[0]:
        return "higher priority"
    # Where arrival agrees with the deadline it says more: most deadlines just follow it.
    return "arrived earlier" if taken[2] < entry[2] else "earlier deadline"
