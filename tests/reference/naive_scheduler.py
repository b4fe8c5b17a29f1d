# SPDX-License-Identifier: Apache-2.0
"""The whole scheduler over plain lists and the naive ring: slow, and easy to check by reading.

Every question ("who is due?", "which deadline is next?") is answered by looking
at everything there is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from reference.naive_ring import NEVER, Entry, Flow, NaiveRing

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier


class _Engine:
    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.in_flight = 0


def _score(name: str, affinity: int) -> int:
    """How much an affinity prefers an engine."""
    key = 14695981039346656037
    for byte in name.encode():
        key = (key ^ byte) * 1099511628211 % 2**64
    number = ((key ^ affinity) + 11400714819323198485) % 2**64
    number = (number ^ number // 2**30) * 13787848793156543929 % 2**64
    number = (number ^ number // 2**27) * 10723151780598845931 % 2**64
    return number ^ number // 2**31


class _Grant:
    def __init__(self, engine: _Engine, tier: str, left: int) -> None:
        self.engine = engine
        self.tier = tier
        self.left = left


class _Running:
    def __init__(self, ticket: Ticket, grant: _Grant) -> None:
        self.ticket = ticket
        self.grant = grant
        self.standing = ticket.cost


class _Batch:
    """The tickets of one grant so far."""

    def __init__(self, rules: PoolRules) -> None:
        self.rules = rules.batch
        self.tickets: list[Ticket] = []
        self.skipped: list[Flow] = []
        self.closed = False

    def fits(self, size: int) -> bool:
        if not self.tickets:
            return True
        if self.rules is None:
            return False
        sizes = [t.size for t in self.tickets] + [size]
        total = len(sizes) * max(sizes) if self.rules.padded else sum(sizes)
        return len(sizes) <= self.rules.items_max and total <= self.rules.size_max

    def group(self) -> str | None:
        return self.tickets[0].group if self.tickets else None

    def pass_over(self, flow: Flow, entry: Entry) -> None:
        assert self.rules is not None
        self.skipped.append(flow)
        if entry.passed_over or len(self.skipped) >= self.rules.misfits_max:
            self.closed = True
        entry.passed_over = True


class NaiveScheduler:
    """Same calls and same answers as ``taketurns.core.scheduler.Scheduler``."""

    def __init__(
        self, rules: PoolRules, tiers: Sequence[Tier], tenants: Iterable[Tenant] = ()
    ) -> None:
        self.rules = rules
        self.tiers = list(tiers)
        self.rings = {t.name: NaiveRing(rules.quantum, rules.debt_rounds) for t in tiers}
        self.credit = {t.name: 0 for t in tiers}
        self.tenants = {t.name: t for t in tenants}
        self.engines: list[_Engine] = []
        self.grants: list[_Grant] = []
        self.running: dict[str, _Running] = {}
        self._arrivals = 0
        # When the first of those that wait for a fuller batch was seen; None: none does.
        self.since: int | None = None
        self.lingered = False

    # -- tickets --------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> Refused | None:
        if ticket.id in self.running or self._find(ticket.id) or ticket.cost < 1:
            raise ValueError(ticket.id)
        if ticket.tier not in self.rings:
            raise ValueError(ticket.tier)
        flow = self._flow(ticket)
        own, everyone = len(flow.queue), len(self._waiting())
        rules = self.rules
        refused = None
        if everyone >= rules.queue_max:
            refused = Refused(ticket, Refusal.POOL_QUEUE_FULL, rules.queue_max, everyone)
        elif own >= rules.tenant_queue_max:
            refused = Refused(ticket, Refusal.TENANT_QUEUE_FULL, rules.tenant_queue_max, own)
        else:
            self._arrivals += 1
            flow.queue.append(Entry(ticket, self._arrivals))
            self.rings[ticket.tier].refresh(flow)
        self._forget()
        return refused

    def cancel(self, ticket_id: str) -> Ticket | None:
        entry = self._find(ticket_id)
        if entry is None:
            return None
        self._remove(entry)
        self._forget()
        return entry.ticket

    def change(self, ticket_id: str, *, priority: int, deadline_us: int | None) -> bool:
        entry = self._find(ticket_id)
        if entry is None:
            return False
        entry.ticket = entry.ticket._replace(priority=priority, deadline_us=deadline_us)
        return True

    def advance(self, now_us: int) -> list[Expired | Granted]:
        decisions: list[Expired | Granted] = []
        due = [e for e in self._waiting() if e.order()[1] <= now_us]
        for entry in sorted(due, key=lambda e: e.order()[1:]):
            self._remove(entry)
            decisions.append(Expired(entry.ticket))
        while not self._lingers(now_us) and (engine := self._free_engine()) is not None:
            grant = self._grant(engine)
            if grant is None:
                break
            decisions.append(grant)
        if not self._waiting():
            self.since, self.lingered = None, False
        self._forget()
        return decisions

    def _lingers(self, now_us: int) -> bool:
        batch = self.rules.batch
        waiting = self._waiting()
        if batch is None or not batch.linger_us or self.lingered or not waiting:
            return False
        since = now_us if self.since is None else self.since
        full = (
            len(waiting) >= batch.items_max or sum(e.ticket.size for e in waiting) >= batch.size_max
        )
        self.lingered = full or now_us - since >= batch.linger_us
        self.since = None if self.lingered else since
        return not self.lingered

    def next_wake_us(self) -> int | None:
        deadline = min((e.order()[1] for e in self._waiting()), default=NEVER)
        if self.since is not None and self.rules.batch is not None:
            deadline = min(deadline, self.since + self.rules.batch.linger_us)
        return None if deadline == NEVER else deadline

    def settle(self, ticket_id: str, cost: int) -> None:
        running = self.running[ticket_id]
        delta = cost - running.standing
        if delta:
            running.standing = cost
            self.rings[running.ticket.tier].settle(self._flow(running.ticket), delta, cost)
            self._forget()

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        running = self.running[ticket_id]
        ticket, grant = running.ticket, running.grant
        flow = self._flow(ticket)
        final = running.standing if cost is None else cost
        if executed:
            final = max(final, self.rules.min_charge_or_default)
            self.settle(ticket_id, final)
        else:
            final = 0
            self.rings[ticket.tier].refund(flow, running.standing)
        del self.running[ticket_id]
        flow.in_flight -= 1
        self.rings[ticket.tier].refresh(flow)
        grant.left -= 1
        if not grant.left:
            self.grants.remove(grant)
            grant.engine.in_flight -= 1
        self._forget()
        return Ended(ticket, outcome, final, grant.engine.name)

    # -- the pool ----------------------------------------------------------------------

    def set_tenant(self, tenant: Tenant) -> None:
        self.tenants[tenant.name] = tenant
        for ring in self.rings.values():
            if tenant.name in ring.flows:
                flow = ring.flows[tenant.name]
                ring.reweigh(flow, tenant.weight)
                flow.cap = tenant.cap
                ring.refresh(flow)
        self._forget()

    def set_quantum(self, quantum: int) -> None:
        self.rules = replace(self.rules, quantum=quantum)
        for ring in self.rings.values():
            ring.set_quantum(quantum)
        self._forget()

    def set_engine(self, name: str, slots: int) -> None:
        for engine in self.engines:
            if engine.name == name:
                engine.slots = slots
                return
        self.engines.append(_Engine(name, slots))

    def remove_engine(self, name: str) -> None:
        self.engines = [e for e in self.engines if e.name != name]

    # -- selection -----------------------------------------------------------------------

    def _free_engine(self) -> _Engine | None:
        best = None
        for engine in self.engines:
            if engine.in_flight >= engine.slots:
                continue
            if best is None or engine.in_flight * best.slots < best.in_flight * engine.slots:
                best = engine
        return best

    def _preferred(self, least: _Engine, affinity: int) -> _Engine:
        free = [e for e in self.engines if e.in_flight < e.slots]
        if not affinity or len(free) == 1:
            return least
        running = sum(e.in_flight for e in self.engines) + 1
        fair = Fraction(running, self.slots())
        fit = [e for e in free if Fraction(e.in_flight, e.slots) < Fraction(5, 4) * fair]
        # Of equal ones the first.
        return max(fit, key=lambda engine: _score(engine.name, affinity))

    def _grant(self, engine: _Engine) -> Granted | None:
        batch = _Batch(self.rules)
        while not batch.closed and batch.fits(1):
            ticket = self._select(batch)
            if ticket is None:
                break
            batch.tickets.append(ticket)
        if not batch.tickets:
            return None
        if self.rules.sticky:
            engine = self._preferred(engine, batch.tickets[0].affinity)
        grant = _Grant(engine, batch.tickets[0].tier, len(batch.tickets))
        engine.in_flight += 1
        self.grants.append(grant)
        for ticket in batch.tickets:
            self.running[ticket.id] = _Running(ticket, grant)
        return Granted(engine.name, tuple(batch.tickets))

    def held(self, tier: str) -> int:
        return sum(1 for g in self.grants if g.tier == tier)

    def slots(self) -> int:
        return sum(e.slots for e in self.engines)

    def keeps_the_rest(self) -> bool:
        """Whether the slots that are free are kept for tenants that hold none."""
        free = sum(max(0, e.slots - e.in_flight) for e in self.engines)
        share = self.rules.headroom_percent * self.slots()
        kept = min(share // 100 + (share % 100 > 0), self.slots() - 1)
        return kept > 0 and free <= kept

    def _eligible(self, tier: Tier, *, first: bool, kept: bool = False) -> bool:
        members = self.rings[tier.name].members()
        if not [f for f in members if not (kept and f.in_flight)]:
            return False
        if not first or tier.slot_share_percent == 100:
            return True
        return self.held(tier.name) < max(1, tier.slot_share_percent * self.slots() // 100)

    def _select(self, batch: _Batch) -> Ticket | None:
        first = not batch.tickets
        kept = first and self.keeps_the_rest()
        eligible = [t for t in self.tiers if self._eligible(t, first=first, kept=kept)]
        for tier in self.tiers:
            if tier not in eligible and not kept:
                self.credit[tier.name] = min(self.credit[tier.name], 0)
        # False sorts before True: those with floor credit come first, each part by rank.
        for tier in sorted(eligible, key=lambda t: self.credit[t.name] <= 0):
            entry = self._select_in(tier, batch, kept=kept)
            if entry is not None:
                self._pay_floors(tier, eligible, entry.ticket.cost)
                return entry.ticket
            if batch.closed:
                return None
        return None

    def _select_in(self, tier: Tier, batch: _Batch, *, kept: bool) -> Entry | None:
        ring = self.rings[tier.name]
        while (flow := ring.next_flow(batch.group(), batch.skipped, kept=kept)) is not None:
            entry = flow.head(batch.group())
            assert entry is not None
            if batch.fits(entry.ticket.size):
                ring.charge(flow, entry)
                return entry
            batch.pass_over(flow, entry)
            if batch.closed:
                return None
        return None

    def _pay_floors(self, charged: Tier, eligible: list[Tier], cost: int) -> None:
        for tier in eligible:
            if tier.floor_percent and tier is not eligible[0]:
                self.credit[tier.name] += cost * tier.floor_percent
                if tier is charged:
                    self.credit[tier.name] -= 100 * cost

    # -- looking things up ------------------------------------------------------------------

    def _flow(self, ticket: Ticket) -> Flow:
        tenant = self.tenants.get(ticket.tenant, Tenant(ticket.tenant))
        return self.rings[ticket.tier].flow(ticket.tenant, tenant.weight, tenant.cap)

    def _waiting(self) -> list[Entry]:
        return [e for r in self.rings.values() for f in r.flows.values() for e in f.queue]

    def _find(self, ticket_id: str) -> Entry | None:
        return next((e for e in self._waiting() if e.ticket.id == ticket_id), None)

    def _remove(self, entry: Entry) -> None:
        flow = self._flow(entry.ticket)
        flow.queue.remove(entry)
        self.rings[entry.ticket.tier].refresh(flow)

    def _forget(self) -> None:
        for ring in self.rings.values():
            ring.forget()

    def waiting_ids(self) -> list[str]:
        return [e.ticket.id for e in self._waiting()]

    def view(self) -> dict[str, object]:
        """What a snapshot shows, as plain values."""
        tiers = {}
        for tier in self.tiers:
            ring = self.rings[tier.name]
            tenants = {
                f.tenant: {
                    "weight": f.weight,
                    "cap": f.cap,
                    "balance": f.shown,
                    "queued": len(f.queue),
                    "queued_cost": sum(e.ticket.cost for e in f.queue),
                    "in_flight": f.in_flight,
                    "state": f.state,
                }
                for f in ring.flows.values()
            }
            tiers[tier.name] = {
                "round": ring.round,
                "floor_credit": self.credit[tier.name],
                "slots_held": self.held(tier.name),
                "tenants": tenants,
            }
        return {
            "tiers": tiers,
            "queued": len(self._waiting()),
            "running": len(self.running),
            "slots": self.slots(),
            "slots_free": sum(max(0, e.slots - e.in_flight) for e in self.engines),
            "debt_forgiven": sum(r.forgiven for r in self.rings.values()),
        }
