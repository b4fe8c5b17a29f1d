# SPDX-License-Identifier: Apache-2.0
"""Batches are filled round robin within a group; a misfit is overtaken in one batch at most."""

import pytest

from taketurns.core.filling import fill
from taketurns.core.flow import OUT, TURN, Flow
from taketurns.core.model import BatchRules, Ticket, Tier
from taketurns.core.queue import entry_of
from taketurns.core.ring import Ring
from taketurns.core.tiers import Tiers, TierState


class Bakery:
    """Tiers from which batches are filled, with sizes as costs."""

    def __init__(self, *tiers, quantum=1):
        tiers = tiers or (Tier("only"),)
        self.tiers = Tiers([TierState(t, rank, Ring(quantum, 64)) for rank, t in enumerate(tiers)])
        self.passed = set()
        self.arrivals = 0

    def add(self, tenant, *sizes, rank=0, group=""):
        state = self.tiers.states[rank]
        flow = state.flows.setdefault(tenant, Flow(tenant, 1, None, state.ring.round))
        for size in sizes:
            self.arrivals += 1
            ticket = Ticket(f"{tenant}{size}", tenant, state.tier.name, size, size, group=group)
            flow.queue.push(entry_of(ticket, self.arrivals))
        if flow.place == OUT:
            state.ring.enter(flow)
        return flow

    def dispatch(self, state, flow, group):
        entry = flow.queue.pop(group)
        self.passed.discard(entry[2])
        state.ring.charge(flow, entry[3].cost, goes_on=flow.queue.count > 0)
        return entry[3]

    def bake(self, size_max=10, items_max=99, misfits_max=8):
        """Fill one batch as the scheduler does, and return the ids of its tickets."""
        rules = BatchRules(size_max, items_max, misfits_max=misfits_max)
        state = self.tiers.choose(4)
        flow = state.ring.turns[0] if state.ring.turns else state.ring.begin()
        seed = self.dispatch(state, flow, None)
        tickets = fill(rules, self.tiers, seed, self.passed, self.dispatch)
        return [ticket.id for ticket in tickets]


@pytest.fixture
def bakery():
    return Bakery()


def test_items_of_many_tenants_share_a_batch_in_the_order_of_their_turns(bakery):
    bakery.add("a", 2, 2)
    bakery.add("b", 2, 2)
    assert bakery.bake() == ["a2", "b2", "a2", "b2"]


def test_a_batch_that_is_full_asks_for_no_more(bakery):
    bakery.add("a", 5, 5, 5)
    assert bakery.bake() == ["a5", "a5"]
    assert bakery.bake() == ["a5"]


def test_a_batch_stops_at_its_item_limit(bakery):
    bakery.add("a", 1, 1, 1)
    assert len(bakery.bake(items_max=2)) == 2


def test_what_is_there_goes_without_waiting_for_more(bakery):
    bakery.add("a", 1)
    assert bakery.bake() == ["a1"]


def test_a_turn_cut_by_a_full_batch_goes_on_first_in_the_next():
    bakery = Bakery(quantum=100)
    a = bakery.add("a", 5, 5, 5)
    bakery.add("b", 5)
    assert bakery.bake() == ["a5", "a5"]
    assert a.place == TURN
    assert bakery.bake() == ["a5", "b5"]


def test_a_head_that_does_not_fit_is_passed_over_and_goes_first_in_the_next_batch(bakery):
    bakery.add("a", 6)
    b = bakery.add("b", 7)
    bakery.add("c", 3)
    assert bakery.bake() == ["a6", "c3"]
    assert b.place == TURN
    assert len(bakery.passed) == 1
    bakery.add("d", 1)
    assert bakery.bake() == ["b7", "d1"]
    assert not bakery.passed


def test_smaller_tickets_do_not_overtake_a_misfit_of_their_own_tenant(bakery):
    bakery.add("a", 6)
    bakery.add("b", 7, 1)
    assert bakery.bake() == ["a6"]


def test_a_head_that_was_passed_over_before_closes_the_batch():
    bakery = Bakery(quantum=6)
    bakery.add("a", 6)
    bakery.add("b", 8)
    bakery.add("c", 7)
    bakery.add("d", 1)
    assert bakery.bake() == ["a6", "d1"]
    bakery.add("d", 1)
    # c doesn't fit beside b either: the small one must not go before it once more.
    assert bakery.bake() == ["b8"]
    assert bakery.bake() == ["c7", "d1"]


def test_a_batch_closes_after_so_many_misfits(bakery):
    bakery.add("a", 6)
    for name in "bcd":
        bakery.add(name, 7)
    bakery.add("e", 1)
    assert bakery.bake(misfits_max=3) == ["a6"]
    assert len(bakery.passed) == 3


def test_a_batch_is_filled_within_its_first_tickets_group(bakery):
    bakery.add("a", 1, group="x")
    bakery.add("b", 1, group="y")
    bakery.add("c", 1, group="x")
    assert bakery.bake() == ["a1", "c1"]
    assert bakery.bake() == ["b1"]


def test_open_turns_of_another_group_stay_open():
    bakery = Bakery(quantum=100)
    bakery.add("a", 4, group="x")
    b = bakery.add("b", 9, group="x")
    bakery.add("c", 6, group="y")
    assert bakery.bake() == ["a4"]
    assert b.place == TURN
    # The turn of b is open, and the only ticket of y is in nobody's way.
    bakery.add("b", 1, group="y")
    assert bakery.bake() == ["b9"]
    assert b.place == TURN
    assert bakery.bake() == ["b1", "c6"]


def test_an_open_turn_without_a_ticket_of_the_group_is_passed_by():
    bakery = Bakery(quantum=100)
    bakery.add("a", 6, group="x")
    bakery.add("b", 7, group="x")
    bakery.add("c", 8, 2, group="x")
    assert bakery.bake() == ["a6"]
    b, c = (bakery.tiers.states[0].flows[name] for name in "bc")
    assert bakery.tiers.states[0].ring.turns == [b, c]
    # The first ticket of c is withdrawn for one of another group.
    c.queue.remove(c.queue.head())
    c.queue.remove(c.queue.head())
    bakery.add("c", 1, group="y")
    bakery.add("d", 3, group="x")
    assert bakery.bake() == ["b7", "d3"]
    assert c.place == TURN
    assert bakery.bake() == ["c1"]


def test_lower_tiers_fill_what_space_is_left():
    bakery = Bakery(Tier("best"), Tier("last"))
    bakery.add("a", 4)
    bakery.add("b", 4, 4, rank=1)
    assert bakery.bake() == ["a4", "b4"]


def test_a_tier_without_a_ticket_of_the_group_leaves_the_room_to_the_next():
    bakery = Bakery(Tier("best"), Tier("last"))
    bakery.add("a", 4, group="x")
    other = bakery.add("b", 4, group="y")
    bakery.add("c", 4, rank=1, group="x")
    assert bakery.bake() == ["a4", "c4"]
    assert other.entry is not None
    assert bakery.bake() == ["b4"]
