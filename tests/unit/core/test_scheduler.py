# SPDX-License-Identifier: Apache-2.0
"""The scheduler keeps its word for every call, and keeps nothing of tickets that ended."""

import random
from types import MappingProxyType

import pytest

from taketurns.core.decision import Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.core.queue import NEVER_US
from taketurns.core.scheduler import Scheduler

ONLY = (Tier("only"),)
RULES = PoolRules(quantum=10, min_charge=0)


class Pool:
    """A scheduler and the decisions it made."""

    def __init__(self, rules=RULES, tiers=ONLY, tenants=(), slots=0):
        self.scheduler = Scheduler(rules, tiers, tenants)
        if slots:
            self.scheduler.set_engine("engine", slots)
        self.tier = tiers[0].name
        self.now_us = 0

    def add(self, ticket_id, tenant="acme", cost=10, **fields):
        ticket = Ticket(ticket_id, tenant, fields.pop("tier", self.tier), cost, **fields)
        return self.scheduler.submit(ticket)

    def advance(self, now_us=None):
        """Ids in the order of the decisions; expired ones with a dash in front."""
        self.now_us = self.now_us if now_us is None else now_us
        names = []
        for decision in self.scheduler.advance(self.now_us):
            if isinstance(decision, Expired):
                names.append("-" + decision.ticket.id)
            else:
                names += [ticket.id for ticket in decision.tickets]
        return names

    def drain(self):
        """Finish whatever starts, until nothing waits."""
        order = []
        while self.scheduler.queued:
            names = self.advance()
            assert names, "something waits and nothing starts"
            order += names
            for name in names:
                self.scheduler.finish(name)
        return order

    def tenants(self):
        state = self.scheduler.snapshot()
        return {tenant.tenant: tenant for tier in state.tiers for tenant in tier.tenants}


def sizes(scheduler):
    """Entries of everything that the scheduler holds, dead ones included."""
    states = scheduler._tiers.states
    flows = [flow for state in states for flow in state.flows.values()]
    return MappingProxyType(
        {
            "waiting": len(scheduler._waiting),
            "running": len(scheduler._running),
            "standing": len(scheduler._standing),
            "passed": len(scheduler._passed),
            "deadlines": len(scheduler._deadlines.heap),
            "flows": len(flows),
            "idle": sum(len(state._idle) for state in states),
            "turns": sum(len(state.ring.turns) for state in states),
            "aside": sum(len(state.ring._aside) for state in states),
            "ring": sum(len(state.ring._waiting) + len(state.ring._new) for state in states),
            "queues": sum(
                len(flow.queue._heap) + sum(map(len, flow.queue._others.values())) for flow in flows
            ),
        }
    )


# Making one


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", "b", "a"]])
def test_tiers_are_one_or_more_of_different_names(names):
    with pytest.raises(ValueError, match="tiers must be one or more of different names"):
        Scheduler(RULES, [Tier(name) for name in names])


def test_floors_are_at_most_half_in_all():
    with pytest.raises(ValueError, match="at most 50 %"):
        Scheduler(RULES, [Tier("a", floor_percent=30), Tier("b", floor_percent=30)])


# Submitting


def test_a_ticket_that_was_queued_waits_until_it_is_granted():
    pool = Pool()
    assert pool.add("t") is None
    assert pool.scheduler.is_waiting("t")
    assert pool.advance() == []
    pool.scheduler.set_engine("engine", 1)
    assert pool.scheduler.advance(0) == [Granted("engine", (Ticket("t", "acme", "only", 10),))]
    assert not pool.scheduler.is_waiting("t")
    assert (pool.scheduler.queued, pool.scheduler.running) == (0, 1)


@pytest.mark.parametrize(
    ("ticket", "words"),
    [
        (Ticket("t", "acme", "other"), "ticket 't': the pool has no tier 'other'"),
        (Ticket("t", "acme", "only", 0), "ticket 't': cost and size must be at least 1"),
        (Ticket("t", "acme", "only", 1, 0), "ticket 't': cost and size must be at least 1"),
    ],
)
def test_a_ticket_that_makes_no_sense_is_an_error_and_leaves_no_trace(ticket, words):
    pool = Pool()
    with pytest.raises(ValueError, match=words):
        pool.scheduler.submit(ticket)
    assert not any(sizes(pool.scheduler).values())


def test_an_id_that_waits_or_runs_is_taken_and_one_that_ended_is_free_again():
    pool = Pool(slots=1)
    pool.add("t")
    with pytest.raises(ValueError, match="ticket 't' is queued or running already"):
        pool.add("t")
    pool.advance()
    with pytest.raises(ValueError, match="ticket 't' is queued or running already"):
        pool.add("t")
    pool.scheduler.finish("t")
    assert pool.add("t", cost=3) is None
    assert pool.advance() == ["t"]
    assert pool.scheduler.finish("t").cost == 3


def test_an_id_that_was_used_again_has_nothing_of_its_first_use():
    pool = Pool(slots=1)
    pool.add("t", cost=10, deadline_us=5)
    pool.scheduler.cancel("t")
    pool.add("t", cost=4)
    assert pool.scheduler.next_wake_us() is None
    assert pool.advance(now_us=9) == ["t"]
    pool.scheduler.settle("t", 7)
    pool.scheduler.finish("t")
    pool.add("t", cost=4)
    pool.advance()
    # What was settled the first time doesn't stand charged the second time.
    assert pool.scheduler.finish("t").cost == 4


def test_a_full_tenant_queue_refuses_that_tenant_only():
    pool = Pool(PoolRules(quantum=10, tenant_queue_max=2))
    pool.add("a1", "a")
    pool.add("a2", "a")
    refused = pool.add("a3", "a")
    assert refused == Refused(
        Ticket("a3", "a", "only", 10), Refusal.TENANT_QUEUE_FULL, limit=2, queued=2
    )
    assert not pool.scheduler.is_waiting("a3")
    assert pool.add("b1", "b") is None


def test_a_tenants_queue_is_bounded_in_each_tier_alone():
    pool = Pool(PoolRules(quantum=10, tenant_queue_max=1), (Tier("one"), Tier("two")))
    assert pool.add("a", tier="one") is None
    assert pool.add("b", tier="two") is None
    assert pool.add("c", tier="two") is not None


def test_a_full_pool_refuses_everybody_until_one_leaves():
    pool = Pool(PoolRules(quantum=10, queue_max=2), slots=1)
    pool.add("a1", "a")
    pool.add("b1", "b")
    refused = pool.add("c1", "c")
    assert (refused.reason, refused.limit, refused.queued) == (Refusal.POOL_QUEUE_FULL, 2, 2)
    assert "c" not in pool.tenants()
    pool.advance()
    assert pool.add("c1", "c") is None


# Leaving the queue


def test_a_cancelled_ticket_is_never_granted():
    pool = Pool()
    pool.add("t")
    pool.add("u")
    assert pool.scheduler.cancel("t") == Ticket("t", "acme", "only", 10)
    assert pool.scheduler.cancel("t") is None
    pool.scheduler.set_engine("engine", 9)
    assert pool.advance() == ["u"]


def test_a_running_ticket_cannot_be_cancelled():
    pool = Pool(slots=1)
    pool.add("t")
    pool.advance()
    assert pool.scheduler.cancel("t") is None
    assert pool.scheduler.running == 1


def test_tickets_expire_when_the_clock_reaches_their_deadline_by_deadline_then_arrival():
    pool = Pool(slots=1)
    pool.add("late", deadline_us=8)
    pool.add("soon", "b", deadline_us=5)
    pool.add("soon too", deadline_us=5)
    pool.add("runs", "c", priority=0)
    assert pool.scheduler.next_wake_us() == 5
    assert pool.advance(8) == ["-soon", "-soon too", "-late", "runs"]
    assert pool.scheduler.next_wake_us() is None


def test_a_ticket_expires_rather_than_start_at_its_deadline():
    pool = Pool(slots=1)
    pool.add("t", deadline_us=5)
    assert pool.advance(5) == ["-t"]
    pool.add("u", deadline_us=7)
    assert pool.advance(6) == ["u"]


def test_the_deadline_of_a_ticket_that_runs_or_left_wakes_nobody():
    pool = Pool(slots=1)
    pool.add("runs", deadline_us=5)
    pool.add("leaves", deadline_us=6)
    pool.add("stays", deadline_us=7)
    pool.advance(0)
    pool.scheduler.cancel("leaves")
    assert pool.scheduler.next_wake_us() == 7
    assert pool.advance(6) == []


def test_a_deadline_at_the_end_of_time_never_comes_and_holds_no_memory():
    pool = Pool()
    for number in range(300):
        pool.add(f"t{number}", deadline_us=NEVER_US)
        pool.scheduler.cancel(f"t{number}")
    pool.add("t", deadline_us=NEVER_US)
    for deadline_us in (None, 2**63, 50, None, NEVER_US):
        assert pool.scheduler.change("t", priority=500, deadline_us=deadline_us)
    assert pool.scheduler.next_wake_us() is None
    assert sizes(pool.scheduler)["deadlines"] == 0


# Changing


def test_a_change_holds_for_the_place_in_the_queue_and_keeps_the_arrival_number():
    pool = Pool(slots=1)
    for name in "abc":
        pool.add(name)
    assert pool.scheduler.change("c", priority=0, deadline_us=None)
    assert pool.scheduler.change("a", priority=500, deadline_us=None)
    assert pool.drain() == ["c", "a", "b"]


def test_a_deadline_can_be_put_off_brought_forward_and_dropped_before_it_comes():
    pool = Pool()
    pool.add("later", deadline_us=5)
    pool.add("sooner", deadline_us=50)
    pool.add("never", deadline_us=5)
    pool.add("set")
    assert pool.scheduler.change("later", priority=500, deadline_us=20)
    assert pool.scheduler.change("sooner", priority=500, deadline_us=6)
    assert pool.scheduler.change("never", priority=500, deadline_us=None)
    assert pool.scheduler.change("set", priority=500, deadline_us=30)
    assert pool.advance(5) == []
    assert pool.scheduler.next_wake_us() == 6
    assert pool.advance(19) == ["-sooner"]
    assert pool.advance(99) == ["-later", "-set"]
    assert pool.scheduler.is_waiting("never")


def test_what_does_not_wait_any_more_cannot_be_changed():
    pool = Pool(slots=1)
    pool.add("runs", priority=0)
    pool.add("expires", deadline_us=5)
    pool.advance(0)
    assert pool.advance(5) == ["-expires"]
    for name in ("runs", "expires", "never there"):
        assert not pool.scheduler.change(name, priority=0, deadline_us=None)


def test_a_ticket_of_another_group_than_its_queues_first_can_be_changed():
    pool = Pool(PoolRules(quantum=100, min_charge=0, batch=BatchRules(9, 9)))
    pool.add("x1", group="x")
    pool.add("y1", group="y")
    pool.add("y2", group="y")
    assert pool.scheduler.change("y2", priority=0, deadline_us=7)
    pool.scheduler.set_engine("engine", 1)
    assert pool.advance() == ["y2", "y1"]
    pool.scheduler.finish("y1")
    pool.scheduler.finish("y2")
    assert pool.advance() == ["x1"]


def test_a_changed_ticket_is_granted_as_it_was_changed():
    pool = Pool(slots=1)
    pool.add("t", deadline_us=5)
    pool.scheduler.change("t", priority=3, deadline_us=9)
    (granted,) = pool.scheduler.advance(0)
    assert (granted.tickets[0].priority, granted.tickets[0].deadline_us) == (3, 9)


# Settling and finishing


def test_a_finished_ticket_costs_what_stands_charged_unless_it_is_told():
    pool = Pool(slots=3)
    for name in "abc":
        pool.add(name, cost=5)
    pool.advance()
    pool.scheduler.settle("b", 8)
    ended = [
        pool.scheduler.finish("a"),
        pool.scheduler.finish("b", Outcome.FAILED),
        pool.scheduler.finish("c", Outcome.CANCELLED, cost=2),
    ]
    assert [(end.ticket.id, end.outcome, end.cost, end.engine) for end in ended] == [
        ("a", Outcome.COMPLETED, 5, "engine"),
        ("b", Outcome.FAILED, 8, "engine"),
        ("c", Outcome.CANCELLED, 2, "engine"),
    ]


def test_what_was_dispatched_costs_at_least_the_least_charge():
    pool = Pool(PoolRules(quantum=80), slots=3)
    for name in "abc":
        pool.add(name, cost=5)
    pool.advance()
    assert pool.scheduler.finish("a").cost == 10
    assert pool.scheduler.finish("b", cost=0).cost == 10
    assert pool.scheduler.finish("c", cost=11).cost == 11


def test_what_was_certainly_not_executed_costs_nothing():
    pool = Pool(PoolRules(quantum=80), slots=1)
    pool.add("t", cost=500)
    pool.advance()
    assert pool.tenants()["acme"].balance == -420
    assert pool.scheduler.finish("t", Outcome.FAILED, cost=7, executed=False).cost == 0
    assert pool.tenants()["acme"].balance == 0


def test_a_settlement_moves_the_balance_by_the_difference_from_what_stands():
    pool = Pool(slots=1)
    pool.add("t", cost=30)
    pool.advance()
    pool.scheduler.settle("t", 30)
    assert not pool.scheduler._standing
    assert pool.tenants()["acme"].balance == -20
    pool.scheduler.settle("t", 45)
    pool.scheduler.settle("t", 45)
    assert pool.tenants()["acme"].balance == -35
    pool.scheduler.settle("t", 0)
    assert pool.tenants()["acme"].balance == 0
    assert pool.scheduler.finish("t").cost == 0


def test_a_negative_cost_and_a_ticket_that_does_not_run_are_errors():
    pool = Pool(slots=1)
    pool.add("runs")
    pool.advance()
    pool.add("waits")
    with pytest.raises(ValueError, match="cost must be at least 0, got -1"):
        pool.scheduler.settle("runs", -1)
    for name in ("waits", "never there"):
        with pytest.raises(KeyError):
            pool.scheduler.settle(name, 1)
        with pytest.raises(KeyError):
            pool.scheduler.finish(name)
    pool.scheduler.finish("runs")
    with pytest.raises(KeyError):
        pool.scheduler.finish("runs")


def test_a_settlement_counts_though_its_tenant_is_idle():
    pool = Pool(slots=1)
    pool.add("a1", "a", cost=10)
    pool.advance()
    pool.scheduler.finish("a1", cost=40)
    pool.add("a2", "a")
    for number in range(9):
        pool.add(f"b{number}", "b")
    assert pool.drain()[:5] == ["b0", "b1", "b2", "a2", "b3"]


def test_a_tenant_with_work_in_flight_is_not_forgotten_however_many_rounds_pass():
    pool = Pool(slots=2)
    pool.add("a1", "a", cost=10)
    pool.advance()
    for number in range(50):
        pool.add(f"b{number}", "b")
        pool.advance()
        pool.scheduler.finish(f"b{number}")
    pool.scheduler.finish("a1", cost=40)
    assert pool.tenants()["a"].balance == -30


def test_a_settlement_of_a_capped_tenant_makes_no_credit():
    pool = Pool(tenants=[Tenant("a", cap=1)], slots=2)
    pool.add("a1", "a", cost=30)
    pool.add("a2", "a", cost=30)
    pool.advance()
    assert pool.tenants()["a"].state == "capped"
    pool.scheduler.settle("a1", 0)
    assert (pool.tenants()["a"].balance, pool.tenants()["a"].state) == (0, "capped")


def test_a_forgotten_tenant_comes_back_with_its_weight_and_cap():
    pool = Pool(tenants=[Tenant("a", weight=3, cap=2)], slots=1)
    for number in range(4):
        pool.add(f"a{number}", "a", cost=1)
        pool.advance()
        pool.scheduler.finish(f"a{number}")
        pool.add(f"b{number}", "b", cost=1)
        pool.advance()
        pool.scheduler.finish(f"b{number}")
    assert sizes(pool.scheduler)["flows"] <= 2
    pool.add("again", "a")
    assert (pool.tenants()["a"].weight, pool.tenants()["a"].cap) == (3, 2)


def test_a_tenant_that_could_have_been_forgotten_counts_as_if_it_were():
    pool = Pool(PoolRules(quantum=1, min_charge=0, debt_rounds=1), slots=1)
    pool.add("a", "a", cost=50)
    pool.advance()
    pool.scheduler.finish("a", cost=0)
    flow = pool.scheduler._tiers.states[0].flows["a"]
    pool.add("soon", "a")
    pool.scheduler.cancel("soon")
    assert flow.largest == 50
    # Rounds pass, and nothing comes to rest that would let it be looked at.
    pool.add("b1", "b", cost=2)
    pool.add("b2", "b", cost=1)
    pool.advance()
    pool.scheduler.finish("b1")
    pool.advance()
    pool.add("a", "a")
    assert flow.largest == 0


# Slots and engines


def test_slots_are_shared_out_until_none_is_free():
    pool = Pool(slots=2)
    for name in "abc":
        pool.add(name)
    assert pool.advance() == ["a", "b"]
    assert pool.advance() == []
    pool.scheduler.finish("a")
    assert pool.advance() == ["c"]


def test_a_batch_frees_its_slot_when_the_last_of_its_tickets_has_finished_in_any_order():
    pool = Pool(PoolRules(quantum=10, min_charge=0, batch=BatchRules(9, 3)), slots=1)
    for name in "abcd":
        pool.add(name)
    assert pool.advance() == ["a", "b", "c"]
    for name in "cab":
        assert pool.advance() == []
        pool.scheduler.finish(name)
    assert pool.advance() == ["d"]


def test_an_engine_that_lost_slots_takes_nothing_until_it_is_below_them():
    pool = Pool(slots=3)
    for name in "abcdef":
        pool.add(name)
    assert pool.advance() == ["a", "b", "c"]
    pool.scheduler.set_engine("engine", 1)
    pool.scheduler.finish("a")
    pool.scheduler.finish("b")
    assert pool.advance() == []
    pool.scheduler.finish("c")
    assert pool.advance() == ["d"]
    pool.scheduler.set_engine("engine", 3)
    assert pool.advance() == ["e", "f"]


def test_what_runs_on_a_removed_engine_goes_on_and_is_settled():
    pool = Pool(slots=2)
    pool.add("a")
    pool.add("b")
    pool.advance()
    pool.scheduler.remove_engine("engine")
    pool.scheduler.settle("a", 4)
    assert pool.scheduler.finish("a").engine == "engine"
    pool.add("c")
    assert pool.advance() == []
    assert pool.scheduler.running == 1
    assert pool.scheduler.snapshot().engines == ()


def test_work_from_before_frees_no_slot_of_an_engine_that_came_back_under_its_name():
    pool = Pool(slots=2)
    for name in "abcdef":
        pool.add(name)
    assert pool.advance() == ["a", "b"]
    pool.scheduler.remove_engine("engine")
    pool.scheduler.set_engine("engine", 1)
    assert pool.advance() == ["c"]
    pool.scheduler.finish("a")
    pool.scheduler.finish("b")
    assert pool.advance() == []
    pool.scheduler.finish("c")
    assert pool.advance() == ["d"]
    assert pool.scheduler.snapshot().engines[0].in_flight == 1


def test_a_tier_gives_its_slots_back_though_their_engine_is_gone():
    tiers = (Tier("best"), Tier("last", slot_share_percent=50))
    pool = Pool(tiers=tiers, slots=2)
    pool.add("a", tier="last")
    pool.add("b", tier="last")
    assert pool.advance() == ["a"]
    pool.scheduler.remove_engine("engine")
    pool.scheduler.set_engine("other", 2)
    assert pool.advance() == []
    pool.scheduler.finish("a")
    assert pool.advance() == ["b"]


# Caps


def test_a_tenant_at_its_cap_lets_others_go_and_comes_back_when_one_finishes():
    pool = Pool(tenants=[Tenant("a", cap=1)], slots=3)
    for number in range(3):
        pool.add(f"a{number}", "a")
    pool.add("b0", "b")
    assert pool.advance() == ["a0", "b0"]
    pool.add("a3", "a")
    assert pool.advance() == []
    pool.scheduler.finish("a0")
    assert pool.advance() == ["a1"]


def test_a_cancelled_ticket_of_a_capped_tenant_just_leaves():
    pool = Pool(tenants=[Tenant("a", cap=1)], slots=2)
    pool.add("a0", "a", priority=0)
    pool.add("a1", "a", deadline_us=5)
    pool.advance()
    assert pool.advance(5) == ["-a1"]
    assert pool.tenants()["a"].state == "idle"
    pool.scheduler.finish("a0")
    assert pool.scheduler.running == 0


def test_a_cap_can_be_raised_lowered_and_lifted_at_run_time():
    pool = Pool(slots=9)
    for number in range(9):
        pool.add(f"a{number}", "a")
    pool.scheduler.set_tenant(Tenant("a", cap=2))
    assert pool.advance() == ["a0", "a1"]
    pool.scheduler.set_tenant(Tenant("a", cap=3))
    assert pool.advance() == ["a2"]
    pool.scheduler.set_tenant(Tenant("a", cap=1))
    pool.scheduler.finish("a0")
    pool.scheduler.finish("a1")
    assert pool.advance() == []
    pool.scheduler.finish("a2")
    assert pool.advance() == ["a3"]
    pool.scheduler.set_tenant(Tenant("a"))
    assert pool.advance() == [f"a{number}" for number in range(4, 9)]


def test_a_tenant_capped_in_the_middle_of_its_turn_ends_it():
    pool = Pool(slots=1)
    for number in range(4):
        pool.add(f"a{number}", "a", cost=2)
    pool.advance()
    assert pool.tenants()["a"].state == "turn"
    pool.scheduler.set_tenant(Tenant("a", cap=1))
    assert pool.tenants()["a"].state == "capped"
    assert pool.tenants()["a"].balance == 0


def test_a_cap_holds_within_a_batch():
    rules = PoolRules(quantum=99, min_charge=0, batch=BatchRules(9, 9))
    pool = Pool(rules, tenants=[Tenant("a", cap=2)], slots=1)
    for number in range(4):
        pool.add(f"a{number}", "a")
    pool.add("b0", "b")
    assert pool.advance() == ["a0", "a1", "b0"]


# Settings at run time


def test_a_weight_set_at_run_time_holds_from_the_next_turn_on():
    pool = Pool(slots=1)
    for number in range(12):
        pool.add(f"a{number}", "a")
        pool.add(f"b{number}", "b")
    pool.scheduler.set_tenant(Tenant("b", weight=2))
    order = [name[0] for name in pool.drain()]
    assert "".join(order).startswith("abbabbabb")


def test_a_tenant_can_be_set_before_it_is_seen_and_in_all_its_tiers_after():
    tiers = (Tier("one"), Tier("two"))
    pool = Pool(tiers=tiers)
    pool.scheduler.set_tenant(Tenant("a", weight=5))
    pool.add("t1", "a", tier="one")
    pool.add("t2", "a", tier="two")
    weights = [t.weight for tier in pool.scheduler.snapshot().tiers for t in tier.tenants]
    assert weights == [5, 5]
    pool.scheduler.set_tenant(Tenant("a", weight=7))
    weights = [t.weight for tier in pool.scheduler.snapshot().tiers for t in tier.tenants]
    assert weights == [7, 7]


def test_a_quantum_set_at_run_time_holds_for_turns_and_for_the_least_charge():
    pool = Pool(PoolRules(quantum=8), slots=1)
    for number in range(12):
        pool.add(f"a{number}", "a", cost=8)
        pool.add(f"b{number}", "b", cost=8)
    pool.scheduler.set_quantum(24)
    order = "".join(name[0] for name in pool.drain())
    assert order.startswith("aaabbbaaabbb")
    pool.add("t", cost=1)
    pool.advance()
    assert pool.scheduler.finish("t").cost == 3


def test_a_least_charge_that_was_set_stays_with_a_new_quantum():
    pool = Pool(PoolRules(quantum=8, min_charge=5), slots=1)
    pool.scheduler.set_quantum(800)
    pool.add("t", cost=1)
    pool.advance()
    assert pool.scheduler.finish("t").cost == 5


def test_a_quantum_below_one_is_an_error():
    Pool().scheduler.set_quantum(1)
    with pytest.raises(ValueError, match="quantum must be at least 1, got 0"):
        Pool().scheduler.set_quantum(0)


def test_a_negative_number_of_slots_is_an_error():
    with pytest.raises(ValueError, match="slots must be at least 0, got -1"):
        Pool().scheduler.set_engine("engine", -1)


# Tiers


def test_a_floor_is_paid_in_charged_cost():
    tiers = (Tier("best"), Tier("last", floor_percent=25))
    pool = Pool(tiers=tiers, slots=1)
    for number in range(100):
        pool.add(f"a{number}", "a", tier="best")
        pool.add(f"b{number}", "b", tier="last")
    order = pool.drain()[:100]
    assert sum(name[0] == "b" for name in order) == pytest.approx(25, abs=1)


def test_a_floor_earns_nothing_while_its_tenants_are_all_capped():
    tiers = (Tier("best"), Tier("last", floor_percent=50))
    pool = Pool(tiers=tiers, tenants=[Tenant("b", cap=1)], slots=2)
    for number in range(20):
        pool.add(f"a{number}", "a", tier="best")
        pool.add(f"b{number}", "b", tier="last")
    assert pool.advance() == ["a0", "b0"]
    for number in range(10):
        pool.scheduler.finish(f"a{number}")
        assert pool.advance() == [f"a{number + 1}"]
    assert pool.scheduler.snapshot().tiers[1].floor_credit <= 0


# Batches


def test_a_ticket_passed_over_in_a_batch_may_expire_or_be_cancelled():
    pool = Pool(PoolRules(quantum=10, min_charge=0, batch=BatchRules(10, 9)), slots=1)
    pool.add("a", "a", size=6)
    pool.add("b", "b", size=7, deadline_us=5)
    pool.add("c", "c", size=8)
    pool.add("d", "d", size=1)
    assert pool.advance() == ["a", "d"]
    assert len(pool.scheduler._passed) == 2
    pool.scheduler.cancel("c")
    assert pool.advance(5) == ["-b"]
    pool.scheduler.finish("a")
    pool.scheduler.finish("d")
    assert pool.advance() == []
    left = sizes(pool.scheduler)
    assert (left["passed"], left["turns"], left["ring"], left["running"]) == (0, 0, 0, 0)


def test_a_tenant_with_more_behind_a_passed_head_that_left_keeps_its_turn():
    pool = Pool(PoolRules(quantum=10, min_charge=0, batch=BatchRules(10, 9)), slots=1)
    pool.add("a", "a", size=6)
    pool.add("b1", "b", size=7)
    pool.add("b2", "b", size=7)
    assert pool.advance() == ["a"]
    pool.scheduler.cancel("b1")
    assert pool.tenants()["b"].state == "turn"
    pool.scheduler.finish("a")
    assert pool.advance() == ["b2"]


def test_a_batch_counts_for_the_tier_of_its_first_ticket():
    rules = PoolRules(quantum=10, min_charge=0, batch=BatchRules(10, 2))
    pool = Pool(rules, (Tier("best"), Tier("last")), slots=1)
    pool.add("a", tier="best")
    pool.add("b", tier="last")
    assert pool.advance() == ["a", "b"]
    assert [tier.slots_held for tier in pool.scheduler.snapshot().tiers] == [1, 0]
    pool.scheduler.finish("a")
    assert [tier.slots_held for tier in pool.scheduler.snapshot().tiers] == [1, 0]
    pool.scheduler.finish("b")
    assert [tier.slots_held for tier in pool.scheduler.snapshot().tiers] == [0, 0]


# Explaining


def test_a_waiting_ticket_is_explained_and_no_other():
    pool = Pool(slots=1)
    pool.add("a", "a")
    pool.advance()
    pool.add("b", "b")
    pool.add("c", "c")
    assert pool.scheduler.explain("a") is None
    assert pool.scheduler.explain("c").tickets_ahead == 1


# One shared queue


def test_a_shared_queue_goes_by_priority_deadline_and_arrival_over_tenants_and_tiers():
    rules = PoolRules(quantum=1, min_charge=0, shared_queue=True)
    pool = Pool(rules, (Tier("best"), Tier("last")), slots=1)
    pool.add("late", "a", tier="best")
    pool.add("deadline", "b", tier="last", deadline_us=99)
    pool.add("urgent", "c", tier="last", priority=0)
    pool.add("later", "a", tier="best")
    assert pool.drain() == ["urgent", "deadline", "late", "later"]


def test_caps_weights_and_tenant_bounds_do_not_hold_in_a_shared_queue():
    rules = PoolRules(quantum=1, tenant_queue_max=1, queue_max=4, shared_queue=True)
    pool = Pool(rules, tenants=[Tenant("a", cap=1)], slots=4)
    pool.scheduler.set_tenant(Tenant("a", weight=9, cap=1))
    for number in range(4):
        assert pool.add(f"a{number}", "a") is None
    assert pool.add("a4", "a").reason == Refusal.POOL_QUEUE_FULL
    assert len(pool.advance()) == 4
    ((name, tenant),) = pool.tenants().items()
    assert (name, tenant.weight, tenant.cap) == ("*", 1, None)


def test_a_shared_queue_expires_cancels_changes_and_settles_like_any_other():
    rules = PoolRules(quantum=10, min_charge=0, shared_queue=True)
    pool = Pool(rules, (Tier("best"), Tier("last")), slots=1)
    pool.add("a", "a", tier="last", deadline_us=5)
    pool.add("b", "b", tier="best")
    pool.add("c", "c", tier="last")
    pool.scheduler.set_quantum(20)
    assert pool.scheduler.change("c", priority=0, deadline_us=None)
    assert pool.scheduler.cancel("b").tenant == "b"
    assert pool.advance(5) == ["-a", "c"]
    pool.scheduler.settle("c", 3)
    assert pool.scheduler.finish("c").cost == 3
    with pytest.raises(ValueError, match="no tier 'other'"):
        pool.add("d", tier="other")


def test_a_shared_queue_fills_batches_over_tenants():
    rules = PoolRules(quantum=1, min_charge=0, batch=BatchRules(9, 9), shared_queue=True)
    pool = Pool(rules, slots=1)
    for number, tenant in enumerate("aab"):
        pool.add(f"{tenant}{number}", tenant)
    assert pool.advance() == ["a0", "a1", "b2"]


# Memory


@pytest.mark.parametrize("tickets", [1, 50])
def test_memory_stays_bounded_over_10_000_cancels(tickets):
    pool = Pool()
    for number in range(tickets):
        pool.add(f"stays{number}", f"tenant{number % 7}", deadline_us=10**6 + number)
    bound = 2 * tickets + 70
    for number in range(10_000):
        pool.add("t", f"other{number % 5}", deadline_us=10**7, priority=999)
        pool.scheduler.cancel("t")
        if number % 100 == 0:
            assert all(size <= bound for size in sizes(pool.scheduler).values())
    assert pool.scheduler.queued == tickets


def test_tenants_whose_tickets_all_left_the_queue_are_forgotten():
    pool = Pool()
    for number in range(100):
        pool.add(f"cancelled{number}", f"tenant{number}")
        pool.scheduler.cancel(f"cancelled{number}")
        pool.add(f"expired{number}", f"tenant{number}", deadline_us=1)
        pool.advance(1)
    left = sizes(pool.scheduler)
    assert (left["flows"], left["idle"], left["queues"]) == (0, 0, 0)


def test_memory_stays_bounded_over_10_000_changes():
    pool = Pool()
    for name in "abc":
        pool.add(name, deadline_us=10)
    for number in range(10_000):
        pool.scheduler.change("abc"[number % 3], priority=number % 900, deadline_us=10 + number)
        if number % 100 == 0:
            assert all(size <= 75 for size in sizes(pool.scheduler).values())
    assert pool.scheduler.queued == 3


def test_memory_stays_bounded_over_10_000_settlements():
    pool = Pool(slots=3)
    for number in range(6):
        pool.add(f"t{number}", "ab"[number % 2])
    pool.advance()
    for number in range(10_000):
        pool.scheduler.settle(f"t{number % 3}", number * 37 % 900)
        if number % 100 == 0:
            assert all(size <= 75 for size in sizes(pool.scheduler).values())


@pytest.mark.slow
def test_memory_stays_bounded_over_10_000_tenants_that_come_and_go():
    pool = Pool(slots=1)
    for number in range(10_000):
        pool.add(f"t{number}", f"tenant{number}", cost=1 + number % 30)
        pool.advance()
        pool.scheduler.finish(f"t{number}")
        assert sizes(pool.scheduler)["flows"] <= 8
    assert sizes(pool.scheduler)["idle"] <= 8


@pytest.mark.parametrize("batch", [None, BatchRules(12, 4, misfits_max=2)])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_kept_of_tickets_that_ended(seed, batch):
    draw = random.Random(seed)
    tiers = (Tier("best"), Tier("last", floor_percent=20, slot_share_percent=50))
    tenants = [Tenant("a", weight=2), Tenant("b", cap=1)]
    pool = Pool(PoolRules(quantum=5, batch=batch), tiers, tenants, slots=3)
    scheduler, running = pool.scheduler, []
    for number in range(400):
        step = draw.random()
        if step < 0.5:
            fields = {
                "size": draw.randint(1, 9),
                "deadline_us": draw.choice([None, pool.now_us + draw.randint(1, 50)]),
                "priority": draw.choice([0, 500]),
                "group": draw.choice("xy"),
                "tier": draw.choice(["best", "last"]),
            }
            pool.add(f"t{number}", draw.choice("abcd"), draw.randint(1, 20), **fields)
        elif step < 0.6:
            scheduler.cancel(f"t{draw.randrange(number + 1)}")
        elif step < 0.7:
            scheduler.change(f"t{draw.randrange(number + 1)}", priority=1, deadline_us=None)
        elif step < 0.85 and running:
            name = running.pop(draw.randrange(len(running)))
            scheduler.settle(name, draw.randint(0, 40))
            scheduler.finish(name, executed=draw.random() < 0.8)
        else:
            pool.now_us += draw.randint(0, 9)
            running += [name for name in pool.advance() if name[0] != "-"]
    for name in running:
        scheduler.finish(name)
    while scheduler.queued:
        for name in [name for name in pool.advance() if name[0] != "-"]:
            scheduler.finish(name)
    assert scheduler.next_wake_us() is None
    left = dict(sizes(scheduler))
    # Tenants in debt are remembered, and so are a few dead entries of the rings.
    assert left.pop("flows") == left.pop("idle") <= 8
    assert left.pop("ring") <= 64 + 8
    assert set(left.values()) == {0}
    assert [tier.slots_held for tier in scheduler.snapshot().tiers] == [0, 0]
    assert scheduler.snapshot().slots_free == 3


# Watched


WATCHED = PoolRules(quantum=10, min_charge=0, throttle=True)


def watched_pool(**fields):
    """A pool that knows its rate: 20 tickets of 10 cost units, one a second."""
    pool = Pool(WATCHED, slots=1, **fields)
    for number in range(20):
        pool.add(f"warm{number}", "warm", tier=pool.tier)
    for number in range(20):
        assert pool.advance(number * 1_000_000) == [f"warm{number}"]
        pool.scheduler.finish(f"warm{number}")
    pool.advance(20_000_000)
    return pool


def asked(pool, tenant, **fields):
    ticket = Ticket("asked", tenant, pool.tier, 10)
    return pool.scheduler.predict(ticket, pool.now_us, **fields)


def test_a_watched_pool_predicts_by_what_is_in_front():
    pool = watched_pool()
    assert asked(pool, "acme").wait_us == 0
    for number in range(6):
        pool.add(f"t{number}")
        pool.advance()
    assert asked(pool, "acme").own == 50
    assert pool.scheduler.cancel("t5") is not None
    assert pool.scheduler.change("t4", priority=999, deadline_us=30_000_000)
    assert asked(pool, "acme").own == 30
    assert asked(pool, "acme", ahead=20).own == 50
    assert pool.advance(30_000_000) == ["-t4"]
    pool.scheduler.set_tenant(Tenant("acme", 2))
    prediction = asked(pool, "acme", target_us=1)
    assert prediction.own == 30
    assert prediction.wait_us == prediction.alone_us >= 3_000_000


def test_a_watched_pool_counts_grants_of_batches_by_their_slots():
    rules = PoolRules(quantum=10, throttle=True, batch=BatchRules(size_max=2, items_max=2))
    pool = Pool(rules, slots=1)
    for number in range(80):
        pool.add(f"t{number}")
    for second in range(20):
        for name in pool.advance(second * 1_000_000):
            pool.scheduler.finish(name)
    pool.advance(20_000_000)
    assert asked(pool, "acme").slot_us == pytest.approx(1_000_000, rel=0.06)


def test_a_shared_queue_is_watched_as_one():
    rules = PoolRules(quantum=10, shared_queue=True, throttle=True)
    pool = Pool(rules)
    pool.add("a", "acme")
    pool.scheduler.set_tenant(Tenant("acme", 2))
    assert asked(pool, "globex").wait_us is None


def test_only_a_watched_pool_predicts_and_only_for_its_tiers():
    with pytest.raises(ValueError, match="no throttle"):
        asked(Pool(), "acme")
    with pytest.raises(ValueError, match="no tier 'nope'"):
        Pool(WATCHED).scheduler.predict(Ticket("a", "acme", "nope"), 0)


# Looking ahead


def test_what_is_peeked_at_is_what_one_slot_more_would_start():
    pool = Pool()
    assert pool.scheduler.peek() is None
    for tenant in ("acme", "globex"):
        for number in range(3):
            pool.add(f"{tenant}{number}", tenant, cost=5)
    order = []
    for slots in range(1, 7):
        order.append(pool.scheduler.peek().id)
        assert pool.scheduler.peek().id == order[-1]
        pool.scheduler.set_engine("engine", slots)
        assert pool.advance() == order[-1:]
    assert pool.scheduler.peek() is None
    assert order == ["acme0", "acme1", "globex0", "globex1", "acme2", "globex2"]


def test_a_peek_passes_over_a_tier_that_holds_its_share_of_slots():
    tiers = (Tier("production"), Tier("trial", slot_share_percent=50))
    pool = Pool(tiers=tiers, slots=1)
    pool.add("a", tier="trial")
    pool.add("b", tier="trial")
    assert pool.advance() == ["a"]
    assert pool.scheduler.peek() is None


def test_it_is_settled_only_where_advancing_could_do_nothing():
    pool = Pool(slots=1)
    assert not pool.scheduler.settled
    pool.add("a")
    assert pool.advance() == ["a"]
    assert pool.scheduler.settled
    pool.add("b")
    assert pool.scheduler.settled
    pool.add("c", deadline_us=5)
    assert not pool.scheduler.settled
    assert pool.advance(5) == ["-c"]
    pool.scheduler.finish("a")
    assert not pool.scheduler.settled
