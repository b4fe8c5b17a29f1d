# SPDX-License-Identifier: Apache-2.0
"""Deficit round robin gives each tenant its quantum per round, and keeps debts, not credit."""

import random

import pytest

from taketurns.core.flow import NEW, OUT, TURN, WAITING, Flow
from taketurns.core.model import Ticket
from taketurns.core.queue import entry_of
from taketurns.core.ring import Ring


class Table:
    """A ring, its flows, and what was served."""

    def __init__(self, quantum=10, debt_rounds=64):
        self.ring = Ring(quantum, debt_rounds)
        self.flows = {}
        self.arrivals = 0

    def add(self, name, *costs, weight=1, group=""):
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, weight, None, self.ring.round)
        for cost in costs:
            self.arrivals += 1
            ticket = Ticket(f"{name}{self.arrivals}", name, "only", cost, group=group)
            flow.queue.push(entry_of(ticket, self.arrivals))
        if flow.place == OUT:
            self.ring.enter(flow)
        return flow

    def serve_one(self, group=None):
        ring = self.ring
        flow = ring.turns[0] if ring.turns else ring.begin(group)
        assert flow is not None
        cost = flow.queue.pop()[3].cost
        ring.charge(flow, cost, goes_on=flow.queue.count > 0)
        return flow.tenant

    def serve(self, times):
        return "".join(self.serve_one() for _ in range(times))

    def empty(self, flow):
        while flow.queue.count:
            flow.queue.pop()
        self.ring.leave(flow)


@pytest.fixture
def table():
    return Table()


def held(ring):
    """Return how many entries the heaps hold, but for dead ones on top, which go next."""
    ring._next()
    return len(ring._waiting) + len(ring._new)


def test_an_empty_ring_begins_no_turn_and_no_round(table):
    assert table.ring.begin() is None
    assert table.ring.begin("group") is None
    assert (table.ring.round, table.ring.count) == (0, 0)


def test_backlogged_tenants_take_turns(table):
    for name in "abc":
        table.add(name, *[10] * 9)
    assert table.serve(9) == "abcabcabc"


def test_a_turn_goes_on_while_the_balance_is_positive_and_ends_on_overdraft(table):
    a = table.add("a", 4, 4, 4, 4)
    table.add("b", 10, 10)
    assert table.serve(3) == "aaa"
    assert a.balance == -2
    assert (a.place, table.flows["b"].place) == (WAITING, NEW)
    assert table.serve(1) == "b"


def test_a_turn_goes_on_for_the_last_unit_of_its_balance(table):
    a = table.add("a", 9, 5, 5)
    assert table.serve(1) == "a"
    assert (a.place, a.balance) == (TURN, 1)
    assert table.serve(1) == "a"
    assert (a.place, a.balance) == (WAITING, -4)


def test_a_tenant_of_weight_two_gets_two_quanta_a_round(table):
    table.add("a", *[10] * 9)
    table.add("b", *[10] * 9, weight=2)
    assert table.serve(9) == "abbabbabb"


def test_a_large_ticket_is_repaid_by_waiting_as_many_rounds_as_it_had_quanta(table):
    table.add("a", 100, 10)
    table.add("b", *[10] * 20)
    assert table.serve(12) == "a" + "b" * 10 + "a"


def test_a_long_debt_costs_one_heap_operation_and_the_rounds_jump(table):
    a = table.add("a", 10_000, 1)
    assert table.serve(1) == "a"
    begun = table.ring.round
    assert table.serve(1) == "a"
    assert table.ring.round == begun + 1_000
    assert held(table.ring) == 0
    assert a.place == OUT


def test_a_newcomer_waits_for_a_turn_or_two_however_many_wait(table):
    for number in range(20):
        table.add(f"{number:02} ", 10, 10, 10)
    table.serve(25)
    table.add("new", 10)
    assert "new" in table.serve(2)


def test_newcomers_alternate_with_those_who_wait(table):
    table.add("a", *[10] * 9)
    table.add("b", *[10] * 9)
    table.serve(2)
    for name in "vwxyz":
        table.add(name, 10)
    served = table.serve(8)
    assert "a" in served[:3]
    assert "b" in served[:5]


def test_an_entry_that_leaves_again_moves_no_round_and_wipes_no_debt(table):
    debtor = table.add("a", 50, 10)
    table.add("b", *[10] * 9)
    table.serve(2)
    before = (table.ring.round, debtor.balance, debtor.entry)
    for _ in range(100):
        table.empty(table.add("c", 1))
    assert (table.ring.round, debtor.balance, debtor.entry) == before


def test_who_leaves_loses_credit_and_keeps_debt(table):
    rich, poor = table.add("a", 1, 1), table.add("b", 25, 1)
    table.serve(1)
    assert rich.balance == 9
    table.empty(rich)
    assert (rich.balance, rich.place) == (0, OUT)
    table.serve(1)
    table.empty(poor)
    assert poor.balance == -15


def test_a_flow_can_leave_before_its_turn(table):
    a = table.add("a", 1)
    table.add("b", 1)
    table.empty(a)
    assert (table.ring.count, a.entry) == (1, None)
    assert table.serve(1) == "b"


def test_the_last_ticket_takes_the_flow_out(table):
    a = table.add("a", 3)
    table.serve(1)
    assert (a.place, a.balance, table.ring.count) == (OUT, 0, 0)


def test_idle_rounds_repay_debt_and_give_no_credit(table):
    debtor = table.add("a", 45)
    table.add("b", *[10] * 40)
    table.serve(1)
    assert debtor.balance == -35
    assert not table.ring.is_fresh(debtor)
    table.serve(4)
    table.add("a", 1)
    # The turn that is to come brings its own quantum; the rounds between repaid 20.
    assert debtor.balance == -15
    table.empty(debtor)
    table.serve(10)
    assert table.ring.is_fresh(debtor)
    table.add("a", 1)
    assert debtor.balance == 0


def test_a_flow_that_stands_or_runs_or_waits_is_not_fresh(table):
    a = table.add("a", 1, 1)
    assert not table.ring.is_fresh(a)
    fresh = Flow("f", 1, None, table.ring.round)
    assert table.ring.is_fresh(fresh)
    fresh.in_flight = 1
    assert not table.ring.is_fresh(fresh)
    fresh.in_flight = 0
    fresh.queue.push(entry_of(Ticket("t", "f", "only"), 99))
    assert not table.ring.is_fresh(fresh)


def test_a_flow_that_had_its_turn_in_this_round_is_not_fresh(table):
    a = table.add("a", 1)
    table.serve(1)
    assert not table.ring.is_fresh(a)


def test_a_top_up_sets_a_waiting_flow_back_at_once(table):
    a = table.add("a", *[10] * 5)
    table.add("b", *[10] * 9)
    table.serve(2)
    table.ring.settle(a, 30, 40)
    assert a.balance == -30
    assert table.serve(4) == "bbba"


def test_a_refund_lets_a_waiting_flow_go_earlier(table):
    a = table.add("a", 50, 10)
    table.add("b", *[10] * 9)
    table.serve(2)
    table.ring.settle(a, -45, 5)
    assert a.balance == 5
    assert table.serve(1) == "a"


def test_a_settlement_that_changes_no_due_round_leaves_the_entry_as_it_is(table):
    a = table.add("a", 15, 10)
    table.serve(1)
    entry = a.entry
    table.ring.settle(a, 1, 16)
    assert a.entry is entry


def test_refunds_make_no_credit_for_an_idle_flow(table):
    a = table.add("a", 30)
    table.serve(1)
    table.ring.settle(a, -30, 0)
    assert a.balance == 0


def test_refunds_make_no_credit_for_a_new_flow(table):
    a = table.add("a", 25)
    table.add("b", *[10] * 9)
    table.serve(4)
    table.add("a", 1)
    assert (a.place, a.balance) == (NEW, -5)
    table.ring.settle(a, -25, 0)
    assert a.balance == 0


def test_a_new_flow_whose_debt_grows_becomes_waiting(table):
    a = table.add("a", 1)
    assert a.place == NEW
    table.ring.settle(a, 25, 26)
    assert (a.place, a.balance) == (WAITING, -25)
    table.add("b", *[10] * 9)
    assert table.serve(2) == "ba"


def test_a_new_flow_in_debt_that_one_quantum_repays_stays_new(table):
    a = table.add("a", 1)
    table.ring.settle(a, 0, 1)
    assert a.place == NEW


def test_a_settlement_in_a_turn_ends_it_when_it_uses_the_balance_up(table):
    a = table.add("a", 1, 1, 1)
    table.serve(1)
    assert a.place == TURN
    table.ring.settle(a, 3, 4)
    assert a.place == TURN
    table.ring.settle(a, 5, 9)
    assert (a.place, a.balance) == (TURN, 1)
    table.ring.settle(a, 1, 10)
    assert (a.place, a.balance, table.ring.turns) == (WAITING, 0, [])


def test_refunds_in_a_turn_count_from_the_next_one(table):
    a = table.add("a", *[5] * 9)
    table.add("b", *[10] * 9)
    assert table.serve(1) == "a"
    table.ring.settle(a, -5, 0)
    assert table.serve(1) == "a"
    table.ring.settle(a, -5, 0)
    assert (a.place, a.balance) == (WAITING, 10)
    assert table.serve(1) == "b"


def test_what_was_not_executed_cancels_debt_and_makes_no_credit(table):
    a = table.add("a", 30, 1)
    table.add("b", 10, 10)
    table.serve(1)
    table.ring.refund(a, 12)
    assert a.balance == -8
    table.ring.refund(a, 30)
    assert a.balance == 0
    table.ring.refund(a, 30)
    assert a.balance == 0
    assert table.serve(2) == "ba"


def test_what_was_not_executed_gives_nothing_back_in_a_turn(table):
    a = table.add("a", 4, 4)
    table.serve(1)
    table.ring.refund(a, 4)
    assert (a.place, a.balance) == (TURN, 6)


def test_debt_is_bounded_by_rounds_and_what_that_forgives_is_counted():
    table = Table(quantum=10, debt_rounds=3)
    a = table.add("a", 10, 10)
    table.serve(1)
    table.ring.settle(a, 100, 20)
    assert a.balance == -30
    assert table.ring.debt_forgiven == 70


def test_the_bound_on_debt_is_never_less_than_the_largest_charge():
    table = Table(quantum=10, debt_rounds=3)
    a = table.add("a", 500, 10)
    table.serve(1)
    table.ring.settle(a, 200, 700)
    assert a.balance == -690
    assert table.ring.debt_forgiven == 0
    table.ring.settle(a, 50, 50)
    assert (a.balance, table.ring.debt_forgiven) == (-700, 40)


def test_a_new_weight_counts_from_then_on(table):
    a = table.add("a", 100, *[10] * 9)
    table.add("b", *[10] * 30)
    table.serve(4)
    # One round has passed since its turn, at the old weight; the next brings it above zero.
    table.ring.weigh(a, 9)
    assert a.balance == -80
    assert table.serve(1) == "a"


def test_a_new_weight_may_hold_in_the_middle_of_a_turn(table):
    a = table.add("a", 4, 4, 4)
    table.serve(1)
    table.ring.weigh(a, 2)
    assert (a.place, a.balance, a.weight) == (TURN, 6, 2)


def test_a_new_quantum_re_keys_everybody_in_the_order_in_which_they_stood(table):
    for name in "abc":
        table.add(name, 40, 10)
    turn = table.add("d", 1, 1)
    assert table.serve(4) == "abcd"
    idle = Flow("idle", 1, None, table.ring.round)
    idle.balance = -25
    table.ring.resize(100, [*reversed(table.flows.values()), idle])
    assert table.ring.quantum == 100
    assert turn.place == TURN
    assert idle.balance == -25
    assert table.serve(4) == "dabc"


def test_a_copy_serves_the_same_and_changes_nothing_here(table):
    for name in "abc":
        table.add(name, *[7] * 6)
    table.serve(4)
    table.add("n", 7, 7)
    table.empty(table.flows["b"])
    before = (table.ring.round, table.ring.count, [f.balance for f in table.flows.values()])
    twin, twins = table.ring.copy()
    assert set(twins) == {id(table.flows[name]) for name in "acn"}
    copied = []
    while twin.count:
        flow = twin.turns[0] if twin.turns else twin.begin()
        twin.charge(flow, flow.queue.pop()[3].cost, goes_on=flow.queue.count > 0)
        copied.append(flow.tenant)
    after = (table.ring.round, table.ring.count, [f.balance for f in table.flows.values()])
    assert after == before
    assert table.serve(len(copied)) == "".join(copied)


def test_a_copy_goes_on_with_an_open_turn(table):
    a = table.add("a", 3, 3, 3)
    table.add("b", 10)
    table.serve(1)
    twin, twins = table.ring.copy()
    assert twin.turns == [twins[id(a)]]
    assert (twin.turns[0].balance, twin.turns[0].turn_left) == (7, 7)
    twin.charge(twin.turns[0], 7, goes_on=True)
    assert twin.turns == []
    assert (a.place, a.balance) == (TURN, 7)


def test_a_turn_for_a_group_passes_the_others_by_and_they_keep_their_keys(table):
    table.add("a", 10, group="x")
    table.add("b", 10, group="y")
    table.add("c", 10, group="y")
    entries = {name: table.flows[name].entry for name in "abc"}
    flow = table.ring.begin("y")
    assert flow is table.flows["b"]
    assert table.ring.count == 3
    table.ring.restore()
    assert table.flows["a"].entry is entries["a"]
    table.ring.charge(flow, 10, goes_on=False)
    assert table.serve(1) == "a"
    assert table.serve(1) == "c"


def test_where_nobody_has_a_ticket_of_a_group_nothing_begins_and_nothing_is_lost(table):
    table.add("a", 10, 10)
    table.serve(1)
    table.add("b", 10)
    before = table.ring.round
    assert table.ring.begin("other") is None
    assert table.ring.begin("other") is None
    table.ring.restore()
    table.ring.restore()
    assert table.ring.round == before
    assert sorted(table.serve(2)) == ["a", "b"]


def test_an_overdue_flow_that_was_passed_by_goes_first_of_those_who_wait(table):
    table.add("a", 10, 10, group="x")
    table.add("b", *[10] * 9, group="y")
    table.serve(2)
    for _ in range(3):
        flow = table.ring.begin("y")
        table.ring.charge(flow, flow.queue.pop()[3].cost, goes_on=True)
    table.ring.restore()
    assert table.serve(1) == "a"


@pytest.mark.parametrize("standing", [1, 100])
def test_memory_stays_bounded_over_10_000_entries_and_exits(table, standing):
    for number in range(standing):
        table.add(f"s{number}", 10)
    churn = table.add("churn", 10)
    for _ in range(10_000):
        table.empty(churn)
        table.add("churn", 10)
        assert held(table.ring) <= 2 * table.ring.count + 66
    assert table.ring.count == standing + 1


def test_memory_stays_bounded_over_10_000_settlements(table):
    a = table.add("a", 10, 10)
    table.add("b", 10, 10)
    table.serve(1)
    for number in range(10_000):
        table.ring.settle(a, 50 if number % 2 else -50, 50)
        assert held(table.ring) <= 2 * table.ring.count + 66


def test_clearing_dead_entries_keeps_the_order_of_the_living(table):
    draw = random.Random(1)
    flows = [table.add(f"s{number}", draw.randint(100, 9_000), 1) for number in range(100)]
    table.serve(100)
    for number in range(1_000):
        flow = draw.choice(flows)
        table.ring.settle(flow, 70 if number % 2 else -70, 70)
    order = [flow.tenant for flow in sorted(flows, key=lambda flow: flow.entry[:2])]
    assert [table.serve_one() for _ in order] == order


def test_dead_entries_are_cleared_when_they_come_to_the_top(table):
    flows = [table.add(f"s{number}", 10) for number in range(10)]
    for flow in flows:
        table.empty(flow)
    assert table.ring.begin() is None
    assert held(table.ring) == 0


def test_newcomers_are_those_whose_first_turn_is_to_come():
    table = Table()
    table.add("a", 10, 10)
    assert table.ring.newcomers == 1
    table.serve_one()
    table.add("b", 10)
    table.add("c", 10)
    assert table.ring.newcomers == 2
