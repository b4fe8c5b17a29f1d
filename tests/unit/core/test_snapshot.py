# SPDX-License-Identifier: Apache-2.0
"""A snapshot shows the pool as it is; an explanation names what goes before a ticket, and why."""

import random

import pytest

from taketurns.core import snapshot
from taketurns.core.decision import Granted
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler

ONLY = (Tier("only"),)


class Pool:
    """A scheduler, with ids that count up."""

    def __init__(self, rules=None, tiers=ONLY, tenants=(), slots=0):
        self.scheduler = Scheduler(rules or PoolRules(quantum=10, min_charge=0), tiers, tenants)
        self.scheduler.set_engine("engine", slots)
        self.tier = tiers[0].name
        self.number = 0

    def add(self, tenant, cost=10, **fields):
        self.number += 1
        ticket = Ticket(
            f"{tenant}{self.number}", tenant, fields.pop("tier", self.tier), cost, **fields
        )
        assert self.scheduler.submit(ticket) is None
        return ticket.id

    def advance(self, now_us=0):
        return [
            ticket.id
            for granted in self.scheduler.advance(now_us)
            if isinstance(granted, Granted)
            for ticket in granted.tickets
        ]

    def why(self, ticket_id):
        explanation = self.scheduler.explain(ticket_id)
        assert explanation.tickets_ahead == sum(item.tickets for item in explanation.ahead)
        assert explanation.cost_ahead == sum(item.cost for item in explanation.ahead)
        return {(item.tenant, item.tier, item.why): item.tickets for item in explanation.ahead}

    def drain(self):
        """Serve one ticket at a time, each at its charge, and return the order."""
        self.scheduler.set_engine("engine", 1)
        order = []
        while self.scheduler.queued:
            granted = self.advance()
            order += granted
            for ticket_id in granted:
                self.scheduler.finish(ticket_id)
        return order


def test_a_fresh_pool_has_its_tiers_and_nothing_else():
    pool = Pool(tiers=(Tier("best"), Tier("last", floor_percent=5)))
    state = pool.scheduler.snapshot()
    assert [(t.name, t.round, t.floor_credit, t.slots_held, t.tenants) for t in state.tiers] == [
        ("best", 0, 0, 0, ()),
        ("last", 0, 0, 0, ()),
    ]
    assert (state.queued, state.running, state.slots, state.slots_free) == (0, 0, 0, 0)
    assert state.debt_forgiven == 0


def test_a_snapshot_shows_tenants_by_name_and_where_each_stands():
    pool = Pool(tenants=[Tenant("capped", weight=2, cap=1)], slots=4)
    pool.add("capped", 30, arrived_us=5)
    pool.add("capped", 7, arrived_us=6)
    pool.add("idle", 30)
    pool.add("waits", 10)
    pool.add("turn", 5)
    pool.add("waits", 40, arrived_us=8)
    pool.add("turn", 3, arrived_us=9)
    pool.advance()
    pool.add("new", 2)
    state = pool.scheduler.snapshot()
    (tier,) = state.tiers
    assert [tenant.tenant for tenant in tier.tenants] == ["capped", "idle", "new", "turn", "waits"]
    by_name = {tenant.tenant: tenant for tenant in tier.tenants}
    assert {name: tenant.state for name, tenant in by_name.items()} == {
        "capped": "capped",
        "idle": "idle",
        "new": "new",
        "turn": "turn",
        "waits": "waiting",
    }
    capped = by_name["capped"]
    assert (capped.weight, capped.cap, capped.balance) == (2, 1, -10)
    assert (capped.queued, capped.queued_cost, capped.in_flight) == (1, 7, 1)
    assert capped.head_arrived_us == 6
    assert by_name["idle"].head_arrived_us is None
    assert (state.queued, state.running, state.slots, state.slots_free) == (4, 4, 4, 0)
    assert [tuple(engine) for engine in state.engines] == [("engine", 4, 4)]
    assert tier.slots_held == 4


def test_a_snapshot_leaves_out_tenants_that_equal_a_fresh_one():
    pool = Pool(slots=1)
    ticket_id = pool.add("acme", 10)
    pool.advance()
    assert [t.tenant for t in pool.scheduler.snapshot().tiers[0].tenants] == ["acme"]
    pool.scheduler.finish(ticket_id)
    for _ in range(3):
        other = pool.add("other", 1)
        pool.advance()
        pool.scheduler.finish(other)
    names = [t.tenant for t in pool.scheduler.snapshot().tiers[0].tenants]
    assert "acme" not in names


def test_a_snapshot_sums_what_the_bound_on_debt_forgave():
    pool = Pool(PoolRules(quantum=1, min_charge=0, debt_rounds=1), slots=2)
    one, two = pool.add("acme", 1), pool.add("acme", 1)
    pool.advance()
    pool.scheduler.settle(one, 7)
    assert pool.scheduler.snapshot().debt_forgiven == 0
    # Both together are more than the largest charge, which is what one can be set back by.
    pool.scheduler.settle(two, 7)
    assert pool.scheduler.snapshot().debt_forgiven > 0


def test_what_does_not_wait_is_not_explained():
    pool = Pool(slots=1)
    ticket_id = pool.add("acme")
    pool.advance()
    assert pool.scheduler.explain(ticket_id) is None
    assert pool.scheduler.explain("never there") is None


def test_the_first_ticket_has_nothing_in_front_of_it():
    pool = Pool()
    ticket_id = pool.add("acme")
    explanation = pool.scheduler.explain(ticket_id)
    assert explanation == snapshot.Explanation(
        ticket_id, "acme", "only", 0, 0, capped=False, complete=True, ahead=()
    )


def test_a_tenants_own_tickets_go_before_by_priority_deadline_or_arrival():
    pool = Pool()
    pool.add("a", deadline_us=55)
    ticket_id = pool.add("a", deadline_us=60)
    pool.add("a", deadline_us=60)
    pool.add("a", deadline_us=50)
    pool.add("a", priority=0)
    pool.add("a", priority=0)
    assert pool.why(ticket_id) == {
        ("a", "only", "higher priority"): 2,
        ("a", "only", "earlier deadline"): 1,
        ("a", "only", "arrived earlier"): 1,
    }
    last = pool.add("a", deadline_us=60)
    assert pool.why(last)["a", "only", "arrived earlier"] == 4


def test_other_tenants_turns_come_first_most_cost_first():
    pool = Pool()
    pool.add("a", 1)
    pool.add("b", 9)
    ticket_id = pool.add("c")
    explanation = pool.scheduler.explain(ticket_id)
    assert [(item.tenant, item.why) for item in explanation.ahead] == [
        ("b", "turns come first"),
        ("a", "turns come first"),
    ]


def test_better_tiers_and_floors_of_lower_ones_are_named():
    pool = Pool(tiers=(Tier("best"), Tier("middle"), Tier("last", floor_percent=50)))
    for _ in range(4):
        pool.add("a", tier="best")
        pool.add("c", tier="last")
    ticket_id = pool.add("a", tier="middle")
    assert pool.why(ticket_id) == {
        ("a", "best", "better tier"): 4,
        ("c", "last", "floor of a lower tier"): 4,
    }


def test_the_same_tenant_in_another_tier_is_not_its_own_queue():
    pool = Pool(tiers=(Tier("best"), Tier("last")))
    pool.add("a", tier="best")
    ticket_id = pool.add("a", tier="last", priority=0)
    assert pool.why(ticket_id) == {("a", "best", "better tier"): 1}


def test_a_ticket_of_a_capped_tenant_is_explained_as_if_it_were_below_its_cap():
    pool = Pool(tenants=[Tenant("a", cap=1)], slots=1)
    pool.add("a")
    pool.advance()
    pool.add("b")
    first, second = pool.add("a"), pool.add("a")
    assert pool.scheduler.explain(first).capped
    explanation = pool.scheduler.explain(second)
    assert explanation.capped
    assert pool.why(second) == {
        ("a", "only", "arrived earlier"): 1,
        ("b", "only", "turns come first"): 1,
    }


def test_other_tenants_at_their_cap_stay_out():
    pool = Pool(tenants=[Tenant("a", cap=1)], slots=1)
    pool.add("a")
    pool.advance()
    pool.add("a", 1)
    ticket_id = pool.add("b", 1)
    assert pool.why(ticket_id) == {}


def test_in_a_shared_queue_all_is_priority_deadline_and_arrival():
    rules = PoolRules(quantum=10, shared_queue=True)
    pool = Pool(rules, tiers=(Tier("best"), Tier("last")))
    pool.add("a", tier="last")
    pool.add("a", tier="best", priority=0)
    ticket_id = pool.add("b", tier="best")
    pool.add("a", tier="best", deadline_us=9)
    pool.add("b", tier="best")
    assert pool.why(ticket_id) == {
        ("a", "last", "arrived earlier"): 1,
        ("a", "best", "higher priority"): 1,
        ("a", "best", "earlier deadline"): 1,
    }
    assert not pool.scheduler.explain(ticket_id).capped


def test_open_turns_of_a_batch_come_first_in_their_order():
    rules = PoolRules(quantum=10, batch=BatchRules(size_max=10, items_max=9))
    pool = Pool(rules, slots=1)
    for tenant, size in (("a", 6), ("b", 7), ("c", 8), ("d", 9)):
        pool.add(tenant, size, size=size)
    assert pool.advance() == ["a1"]
    assert [t.state for t in pool.scheduler.snapshot().tiers[0].tenants] == [
        "idle",
        "turn",
        "turn",
        "turn",
    ]
    assert pool.why("b2") == {}
    assert pool.why("d4") == {
        ("b", "only", "turns come first"): 1,
        ("c", "only", "turns come first"): 1,
    }


def test_tickets_of_other_groups_count_as_any_other():
    pool = Pool(PoolRules(quantum=10, batch=BatchRules(10, 9)))
    pool.add("a", group="x")
    pool.add("a", group="y")
    ticket_id = pool.add("a", group="x")
    assert pool.why(ticket_id) == {("a", "only", "arrived earlier"): 2}


def test_an_explanation_counts_up_to_its_bound_and_says_where_there_is_more(monkeypatch):
    monkeypatch.setattr(snapshot, "STEPS_MAX", 5)
    pool = Pool()
    tickets = [pool.add("a") for _ in range(8)]
    assert pool.scheduler.explain(tickets[5])[3:7] == (5, 50, False, True)
    assert pool.scheduler.explain(tickets[6])[3:7] == (5, 50, False, False)
    assert pool.scheduler.explain(tickets[7])[3:7] == (5, 50, False, False)


def test_explaining_changes_nothing():
    pool = Pool(tiers=(Tier("best"), Tier("last", floor_percent=20)), slots=1)
    for number in range(12):
        pool.add("abc"[number % 3], 7, tier=("best", "last")[number % 2])
    pool.advance()
    before = pool.scheduler.snapshot()
    for ticket_id in list(pool.scheduler._waiting):
        assert pool.scheduler.explain(ticket_id) is not None
    assert pool.scheduler.snapshot() == before


@pytest.mark.parametrize("seed", range(40))
def test_a_ticket_is_granted_after_just_the_tickets_that_were_explained(seed):
    draw = random.Random(seed)
    tiers = (Tier("best"), Tier("middle", floor_percent=20), Tier("last", floor_percent=30))
    tiers = tiers[: draw.randint(1, 3)]
    rules = PoolRules(quantum=draw.randint(1, 6), min_charge=0, shared_queue=seed % 8 == 0)
    pool = Pool(rules, tiers, [Tenant("a", weight=2)], slots=1)
    running = []
    for _ in range(40):
        step = draw.random()
        if step < 0.7:
            pool.add(
                draw.choice("abcd"),
                draw.randint(1, 9),
                tier=draw.choice(tiers).name,
                priority=draw.choice([0, 500]),
                deadline_us=draw.choice([None, 10, 20]),
            )
        elif step < 0.85:
            running += pool.advance()
        elif running:
            how = {"cost": draw.choice([None, 0, 20]), "executed": draw.random() < 0.8}
            pool.scheduler.finish(running.pop(), **how)
    for ticket_id in running:
        pool.scheduler.finish(ticket_id)
    waiting = list(pool.scheduler._waiting)
    explained = {ticket_id: pool.scheduler.explain(ticket_id) for ticket_id in waiting}
    order = pool.drain()
    assert sorted(order) == sorted(waiting)
    for ticket_id, explanation in explained.items():
        assert explanation.tickets_ahead == order.index(ticket_id)
