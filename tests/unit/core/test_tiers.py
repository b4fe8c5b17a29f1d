# SPDX-License-Identifier: Apache-2.0
"""The best tier with work goes first, but for floors and slot shares; idle ones are forgotten."""

import pytest

from taketurns.core.flow import OUT, Flow
from taketurns.core.model import Ticket, Tier
from taketurns.core.queue import entry_of
from taketurns.core.ring import Ring
from taketurns.core.tiers import Tiers, TierState


def make(*tiers):
    return Tiers([TierState(tier, rank, Ring(10, 64)) for rank, tier in enumerate(tiers)])


def fill(state, tenant="acme", tickets=1):
    flow = state.flows.setdefault(tenant, Flow(tenant, 1, None, state.ring.round))
    for number in range(tickets):
        flow.queue.push(entry_of(Ticket(f"{tenant}{number}", tenant, "any"), number))
    state.place(flow)
    return flow


def drain(state, flow):
    while flow.queue.count:
        flow.queue.pop()
    state.place(flow)


def test_one_plain_tier_is_chosen_while_it_has_work():
    tiers = make(Tier("only"))
    (only,) = tiers.states
    assert tiers.choose(4) is None
    flow = fill(only)
    assert tiers.choose(4) is only
    assert tiers.choose(None, {only}) is None
    drain(only, flow)
    assert tiers.choose(4) is None


def test_the_best_tier_with_work_goes_first():
    tiers = make(Tier("best"), Tier("middle"), Tier("last"))
    best, middle, last = tiers.states
    fill(last)
    assert tiers.choose(4) is last
    fill(middle)
    assert tiers.choose(4) is middle
    fill(best)
    assert tiers.choose(4) is best
    assert tiers.choose(None, {best, middle}) is last
    assert tiers.choose(None, set(tiers.states)) is None


def test_floors_of_more_than_half_in_all_are_an_error():
    assert make(Tier("a"), Tier("b", floor_percent=20), Tier("c", floor_percent=30))
    with pytest.raises(ValueError, match="at most 50 % in all, got 51 %"):
        make(Tier("a"), Tier("b", floor_percent=20), Tier("c", floor_percent=31))


def test_a_floor_tier_goes_first_once_it_has_earned_and_pays_for_what_it_gets():
    tiers = make(Tier("best"), Tier("floor", floor_percent=25))
    best, floor = tiers.states
    fill(best)
    fill(floor)
    chosen = []
    for _ in range(400):
        state = tiers.choose(4)
        tiers.charged(state, 1)
        chosen.append(state)
    assert chosen.count(floor) == pytest.approx(100, abs=1)


def test_a_floor_earns_nothing_while_no_better_tier_competes():
    tiers = make(Tier("best", floor_percent=10), Tier("floor", floor_percent=25))
    best, floor = tiers.states
    fill(floor)
    assert tiers.choose(4) is floor
    tiers.charged(floor, 1_000)
    assert floor.floor_credit == 0
    fill(best)
    assert tiers.choose(4) is best
    tiers.charged(best, 1_000)
    assert (best.floor_credit, floor.floor_credit) == (0, 25_000)


def test_a_tier_without_a_floor_earns_nothing():
    tiers = make(Tier("best"), Tier("middle"), Tier("floor", floor_percent=5))
    best, middle, floor = tiers.states
    for state in tiers.states:
        fill(state)
    assert tiers.choose(4) is best
    tiers.charged(best, 10)
    assert (middle.floor_credit, floor.floor_credit) == (0, 50)


def test_of_two_floors_in_credit_the_better_ranked_goes_first():
    tiers = make(Tier("best"), Tier("one", floor_percent=1), Tier("two", floor_percent=49))
    for state in tiers.states:
        fill(state)
    best, one, _ = tiers.states
    assert tiers.choose(4) is best
    tiers.charged(best, 10)
    assert tiers.choose(4) is one


def test_a_floor_tier_without_work_loses_its_credit_and_keeps_its_debt():
    tiers = make(Tier("best"), Tier("rich", floor_percent=10), Tier("poor", floor_percent=10))
    best, rich, poor = tiers.states
    fill(best)
    rich.floor_credit, poor.floor_credit = 1, -70
    assert tiers.choose(4) is best
    assert (rich.floor_credit, poor.floor_credit) == (0, -70)


def test_a_floor_tier_passed_by_in_a_batch_competes_all_the_same():
    tiers = make(Tier("best"), Tier("floor", floor_percent=10))
    best, floor = tiers.states
    fill(best)
    fill(floor)
    floor.floor_credit = 5
    assert tiers.choose(None, {floor}) is best
    tiers.charged(best, 10)
    assert floor.floor_credit == 105
    assert tiers.choose(None, {best}) is floor


@pytest.mark.parametrize(
    ("share", "slots", "most"), [(50, 4, 2), (50, 5, 2), (1, 4, 1), (1, 0, 1), (99, 100, 99)]
)
def test_a_tier_starts_only_while_it_holds_less_than_its_share_and_may_always_hold_one(
    share, slots, most
):
    state = TierState(Tier("t", slot_share_percent=share), 0, Ring(1, 1))
    state.slots_held = most - 1
    assert state.may_start(slots)
    state.slots_held = most
    assert not state.may_start(slots)


def test_a_tier_without_a_slot_share_may_hold_every_slot_and_more():
    state = TierState(Tier("t"), 0, Ring(1, 1))
    state.slots_held = 10
    assert state.may_start(4)


def test_a_tier_at_its_slot_share_is_out_but_may_join_a_batch():
    tiers = make(Tier("best", slot_share_percent=50), Tier("last", floor_percent=10))
    best, last = tiers.states
    fill(best)
    best.slots_held = 2
    assert tiers.choose(4) is None
    assert tiers.choose(None) is best
    fill(last)
    assert tiers.choose(4) is last
    # No better tier is eligible: what the last is charged is no matter of floors.
    tiers.charged(last, 10)
    assert last.floor_credit == 0


def test_a_flow_stands_in_the_ring_while_it_has_tickets_and_is_below_its_cap():
    (state,) = make(Tier("only")).states
    flow = fill(state)
    assert flow.place != OUT
    state.place(flow)
    assert state.ring.count == 1
    flow.cap, flow.in_flight = 1, 1
    state.place(flow)
    assert (flow.place, state.ring.count) == (OUT, 0)
    state.place(flow)
    flow.in_flight = 0
    state.place(flow)
    assert state.ring.count == 1
    drain(state, flow)
    assert state.ring.count == 0


def test_an_idle_flow_that_equals_a_fresh_one_is_forgotten_at_once():
    (state,) = make(Tier("only")).states
    flow = fill(state)
    drain(state, flow)
    state.rest(flow)
    assert state.flows == {}
    assert not state._idle


def test_a_flow_in_debt_is_kept_until_rounds_have_repaid_it():
    (state,) = make(Tier("only")).states
    flow = fill(state)
    drain(state, flow)
    flow.balance = -25
    state.rest(flow)
    state.rest(flow)
    assert list(state.flows) == ["acme"]
    state.ring.round += 3
    other = fill(state, "other")
    drain(state, other)
    state.rest(other)
    assert state.flows == {}
    assert not state._idle


def test_a_flow_that_came_back_meanwhile_is_not_forgotten():
    (state,) = make(Tier("only")).states
    flow = fill(state)
    drain(state, flow)
    flow.balance = -25
    state.rest(flow)
    fill(state)
    other = fill(state, "other")
    drain(state, other)
    state.rest(other)
    assert list(state.flows) == ["acme"]
    assert not state._idle
