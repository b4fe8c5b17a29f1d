# SPDX-License-Identifier: Apache-2.0
"""Slots that are kept for tenants that hold none."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.drive import Pool

from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier


def pool(slots, headroom, *, quantum=1, **more):
    rules = PoolRules(quantum, min_charge=0, headroom_percent=headroom)
    return Pool(rules, slots=slots, **more)


def holders(pool):
    return sorted(ticket.tenant for ticket in pool.in_flight)


@pytest.mark.parametrize(
    ("percent", "slots", "kept"),
    [
        (0, 8, 0),
        (10, 8, 1),
        (10, 10, 1),
        (11, 10, 2),
        (90, 2, 1),
        (90, 1, 0),
        (1, 100, 1),
        (5, 0, 0),
    ],
)
def test_the_share_is_rounded_up_and_leaves_one_slot(percent, slots, kept):
    assert PoolRules(1, headroom_percent=percent).kept_slots(slots) == kept


@pytest.mark.parametrize(
    "more",
    [
        {"headroom_percent": 91},
        {"headroom_percent": -1},
        {"headroom_percent": 1, "batch": BatchRules(8, 8)},
        {"headroom_percent": 1, "shared_queue": True},
    ],
)
def test_what_cannot_be_kept_is_refused(more):
    with pytest.raises(ValueError, match="headroom_percent"):
        PoolRules(1, **more)


def test_the_last_slots_go_to_tenants_that_hold_none():
    room = pool(4, 50)
    for _ in range(9):
        room.submit("flood")
    room.advance()
    assert holders(room) == ["flood"] * 2
    for name in ("quiet", "calm", "late"):
        room.submit(name)
        room.submit(name)
    room.advance()
    # Each once: from then on each holds a slot.
    assert holders(room) == ["calm", "flood", "flood", "quiet"]
    room.finish()
    room.advance()
    assert holders(room) == ["calm", "flood", "late", "quiet"]


def test_a_new_weight_moves_a_waiting_tenant_that_holds_nothing_in_the_kept_slots_order_too():
    room = pool(2, 50, quantum=10)
    room.submit("deep", cost=100)
    room.submit("deep", cost=10)
    room.advance()
    assert holders(room) == ["deep"]
    room.finish()
    # It has a debt of nine rounds and nothing in flight; with five times the weight it's two.
    room.scheduler.set_tenant(Tenant("deep", weight=5))
    room.submit("late", cost=200)
    room.submit("late", cost=10)
    room.advance()
    assert holders(room) == ["deep", "late"]


def test_a_slot_is_not_kept_once_more_are_free_than_that():
    room = pool(3, 34)
    for _ in range(3):
        room.submit("flood")
    room.advance()
    assert holders(room) == ["flood"]
    room.scheduler.set_engine("engine", 6)
    room.advance()
    assert holders(room) == ["flood"] * 3


def test_an_open_turn_goes_on_though_others_wait():
    # Five quanta a turn: "a" has had one ticket of its turn when the slots run out.
    room = pool(2, 50, tenants=[Tenant("a", weight=5)])
    for _ in range(4):
        room.submit("a")
    room.advance()
    room.submit("b")
    room.finish()
    # It holds nothing now, and its turn isn't over.
    assert [ticket.tenant for ticket in room.advance()] == ["a", "b"]


def test_rounds_that_pass_for_the_kept_slots_do_not_pass_for_holders():
    room = pool(4, 50)
    for _ in range(8):
        room.submit("cheap")
        room.submit("dear", 10)
    room.advance()
    assert holders(room) == ["cheap", "dear"]
    before = room.tenants()["dear"].balance
    assert before == -9
    # A quiet tenant in debt: its turn moves the rounds by as many as repay it.
    for _ in range(5):
        room.submit("quiet", 7)
    rounds = []
    for _ in range(4):
        room.advance()
        rounds.append(room.scheduler.snapshot().tiers[0].round)
        quiet = next(i for i, t in enumerate(room.in_flight) if t.tenant == "quiet")
        room.finish(quiet)
    assert rounds[-1] - rounds[0] >= 7
    assert room.tenants()["dear"].balance == before
    assert room.tenants()["cheap"].balance == 0
    # With all slots theirs, "dear" still has to wait for nine rounds of "cheap".
    while room.queued["quiet"]:
        room.scheduler.cancel(f"t{16 + 5 - room.queued['quiet']}")
        room.queued["quiet"] -= 1
    room.scheduler.set_engine("engine", 40)
    assert [t.tenant for t in room.advance()] == ["cheap"] * 7 + ["dear"] * 7


def test_a_holder_that_is_new_again_is_passed_over_too():
    room = pool(4, 50)
    room.submit("back")
    for _ in range(9):
        room.submit("other")
    room.advance()
    for _ in range(3):
        # Rounds pass, and repay what "back" was charged.
        room.finish(next(i for i, t in enumerate(room.in_flight) if t.tenant == "other"))
        room.advance()
    room.submit("back")
    for _ in range(3):
        room.submit("quiet", 5)
    for _ in range(3):
        room.advance()
        assert room.tenants()["back"].state == "new"
        room.finish(next(i for i, t in enumerate(room.in_flight) if t.tenant == "quiet"))
    room.finish(next(i for i, t in enumerate(room.in_flight) if t.tenant == "back"))
    # It holds none now.
    assert room.advance()[0].tenant == "back"


def test_a_tier_whose_tenants_all_hold_slots_keeps_its_floors_credit():
    tiers = (Tier("gold"), Tier("silver", floor_percent=40))
    room = pool(6, 50, tiers=tiers)
    for _ in range(9):
        room.submit("g", tier="gold")
        room.submit("s", tier="silver")
    room.advance()
    credit = room.scheduler.snapshot().tiers[1].floor_credit
    assert credit != 0
    room.advance()
    room.advance()
    assert room.scheduler.snapshot().tiers[1].floor_credit == credit
    room.submit("quiet", tier="gold")
    assert [t.tenant for t in room.advance()] == ["quiet"]


def test_a_throttle_foresees_that_kept_slots_are_not_for_holders():
    rules = PoolRules(1, min_charge=0, headroom_percent=50, throttle=True)
    room = Pool(rules, slots=4)
    for _ in range(6):
        room.submit("flood")
    room.advance()
    predict = room.scheduler.predict
    assert predict(Ticket("quiet", "quiet", "only"), 0).wait_us == 0
    # Nothing was measured yet: its wait is unknown, and not none.
    assert predict(Ticket("flood", "flood", "only"), 0).wait_us is None
    for number in range(60):
        room.submit("flood")
        room.advance(by_us=1_000)
        room.finish()
        room.advance()
        if number % 7 == 0:
            room.submit("late")
    waits = [predict(Ticket(name, name, "only"), room.now_us).wait_us for name in ("flood", "new")]
    assert waits[0] > 0
    assert waits[1] == 0


def test_memory_stays_bounded_however_often_tenants_come_and_go():
    room = pool(20, 5)
    for number in range(2_000):
        room.submit(f"quiet{number % 7}")
        room.advance()
        room.finish(number)
    ring = room.scheduler._tiers.states[0].ring
    assert len(ring._quiet_waiting) + len(ring._quiet_new) < 200


def test_memory_stays_bounded_however_often_a_kept_slot_is_used():
    room = pool(2, 50)
    for _ in range(3):
        room.submit("flood")
    room.advance()
    for number in range(2_000):
        for _ in range(2):
            room.submit(f"quiet{number % 7}")
        room.advance()
        room.finish(next(i for i, t in enumerate(room.in_flight) if t.tenant != "flood"))
    ring = room.scheduler._tiers.states[0].ring
    assert len(ring._waiting) + len(ring._new) < 200


COSTS = st.lists(st.integers(1, 12), min_size=3, max_size=12)


@given(
    quantum=st.integers(1, 6),
    weights=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    costs=COSTS,
    quiet_costs=COSTS,
    picks=st.lists(st.integers(0, 30), min_size=20, max_size=80),
)
def test_the_order_among_holders_is_the_same_with_and_without_quiet_tenants(
    quantum, weights, costs, quiet_costs, picks
):
    names = ("a", "b", "c")
    tenants = [Tenant(name, weight) for name, weight in zip(names, weights, strict=True)]

    def order(*, quiet):
        room = pool(12, 25, quantum=quantum, tenants=tenants)
        for number in range(60):
            for place, name in enumerate(names):
                room.submit(name, costs[(number + place) % len(costs)])
        room.advance()
        for number, pick in enumerate(picks):
            if quiet:
                # They come into the kept slots only, and have more than they can run.
                for _ in range(2):
                    room.submit(f"quiet{pick % 2}", quiet_costs[number % len(quiet_costs)])
                room.advance()
            # One that runs of a holder of several, so that all of them remain holders.
            several = [
                place
                for place, ticket in enumerate(room.in_flight)
                if ticket.tenant in names and holders(room).count(ticket.tenant) > 1
            ]
            if several:
                room.finish(several[pick % len(several)])
            room.advance()
            for place in reversed(range(len(room.in_flight))):
                if room.in_flight[place].tenant not in names:
                    room.finish(place)
            room.advance()
        return [ticket.id for ticket in room.granted if ticket.tenant in names]

    alone, beside = order(quiet=False), order(quiet=True)
    shorter = min(len(alone), len(beside))
    assert shorter >= 9 + len(picks) // 4
    assert alone[:shorter] == beside[:shorter]


@pytest.mark.parametrize("headroom", [0, 30, 60])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_peeked_at_is_what_one_slot_more_would_start(headroom, seed):
    random = Random(seed)
    room = pool(2, headroom, quantum=2, tiers=(Tier("gold", slot_share_percent=70), Tier("free")))
    peeked = []
    for slots in range(3, 40):
        for _ in range(random.randrange(5)):
            room.submit(random.choice("aabcd"), tier=random.choice(["gold", "free"]))
        room.advance()
        if room.in_flight and random.random() < 0.5:
            room.finish(random.randrange(99))
            room.advance()
        peek = room.scheduler.peek()
        room.scheduler.set_engine("engine", slots)
        started = room.advance()
        assert peek == (started[0] if started else None)
        peeked.append(peek)
    assert any(peeked)


def test_a_peek_sees_an_open_turn_of_a_tenant_that_holds_nothing():
    room = pool(2, 50, quantum=9)
    for _ in range(3):
        room.submit("flood")
    room.advance()
    assert room.scheduler.peek() is None
    room.scheduler.set_engine("engine", 1)
    room.finish()
    assert room.scheduler.peek().tenant == "flood"


def explained(room, ticket):
    found = room.scheduler.explain(ticket.id)
    assert found.complete
    return found.tickets_ahead, {(one.tenant, one.why): one.tickets for one in found.ahead}


@pytest.mark.parametrize("quantum", [1, 9])
def test_an_explanation_knows_of_slots_that_are_kept(quantum):
    room = pool(4, 50, quantum=quantum)
    flood = [room.submit("flood") for _ in range(9)]
    room.advance()
    room.submit("a")
    b = room.submit("b")
    room.advance()
    assert holders(room) == ["a", "b", "flood", "flood"]
    again = room.submit("a")
    late, later = room.submit("late"), room.submit("later")
    second = room.submit("later")
    assert explained(room, late) == (0, {})
    assert explained(room, later) == (1, {("late", "kept slot"): 1})
    ahead = explained(room, flood[2])[1]
    assert ahead["late", "kept slot"] == ahead["later", "kept slot"] == 1
    # That's what comes: freed slots go to those two, and then on in turn.
    expected = explained(room, second)[0]
    for ended in (b, late):
        room.finish(room.in_flight.index(ended))
        room.advance()
    assert room.granted[-2:] == [late, later]
    assert explained(room, second)[0] == expected - 2
    assert room.scheduler.is_waiting(again.id)


def test_an_explanation_passes_over_kept_slots_while_others_are_free():
    room = pool(4, 25)
    flood = [room.submit("flood") for _ in range(3)]
    room.submit("quiet")
    # Nothing has been granted yet.
    assert explained(room, flood[0])[1] == {}


def test_kept_slots_of_a_lower_tier_go_before_what_waits_for_others():
    room = pool(2, 50, tiers=(Tier("gold"), Tier("free")))
    gold = [room.submit("flood", tier="gold") for _ in range(3)]
    room.submit("a", tier="free")
    room.advance()
    assert holders(room) == ["a", "flood"]
    room.submit("b", tier="free")
    assert explained(room, gold[1]) == (1, {("b", "kept slot"): 1})
