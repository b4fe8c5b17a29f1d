# SPDX-License-Identifier: Apache-2.0
"""What is promised between tiers, and that no slot stays free while an eligible ticket waits."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from reference.drive import Pool

from taketurns.core.model import PoolRules, Tenant, Tier

NAMES = ("gold", "silver", "bronze")
COSTS = st.integers(1, 12)


def tiers(floors=(0, 0, 0), shares=(100, 100, 100)) -> tuple[Tier, ...]:
    """Three tiers, best first."""
    return tuple(Tier(*row) for row in zip(NAMES, floors, shares, strict=True))


@st.composite
def traffic(draw):
    """Events of a pool with three tiers of two tenants each."""
    event = st.tuples(
        st.sampled_from(["submit", "submit", "finish", "settle", "cancel", "resize"]),
        st.integers(0, 30),
        COSTS,
    )
    return draw(st.lists(event, min_size=10, max_size=60))


def play(pool: Pool, events):
    """Play the events, and advance after each; yields before each start what is backlogged."""
    submitted = []
    for what, pick, cost in events:
        if what == "submit":
            tier = NAMES[pick % 3]
            submitted.append(pool.submit(f"{tier}{pick % 2}", cost, tier=tier))
        elif what == "finish" and pool.in_flight:
            pool.finish(pick)
        elif what == "settle" and pool.in_flight:
            pool.scheduler.settle(pool.in_flight[pick % len(pool.in_flight)].id, cost)
        elif what == "cancel" and submitted:
            gone = pool.scheduler.cancel(submitted[pick % len(submitted)].id)
            if gone:
                pool.queued[gone.tenant] -= 1
        elif what == "resize":
            pool.scheduler.set_engine("engine", pick % 4)
        before = Counter(pool.queued)
        yield before, pool.advance()


# 4. Work conservation


@given(
    events=traffic(),
    caps=st.lists(st.none() | st.integers(1, 2), min_size=6, max_size=6),
    shares=st.lists(st.sampled_from([100, 70, 40, 1]), min_size=3, max_size=3),
    floors=st.sampled_from([(0, 0, 0), (0, 20, 30)]),
    quantum=st.integers(1, 8),
)
def test_4_no_slot_stays_free_while_an_eligible_ticket_waits(events, caps, shares, floors, quantum):
    names = [f"{tier}{number}" for tier in NAMES for number in (0, 1)]
    cap_by = dict(zip(names, caps, strict=True))
    pool = Pool(
        PoolRules(quantum),
        slots=3,
        tiers=tiers(floors, shares),
        tenants=[Tenant(n, 1, cap) for n, cap in cap_by.items()],
    )
    for _ in play(pool, events):
        snapshot = pool.scheduler.snapshot()
        running = Counter(t.tenant for t in pool.in_flight)
        held = Counter(t.tier for t in pool.in_flight)
        assert snapshot.slots_free == max(0, snapshot.slots - len(pool.in_flight))
        if not snapshot.slots_free:
            continue
        for tier, share in zip(NAMES, shares, strict=True):
            if share != 100 and held[tier] >= max(1, share * snapshot.slots // 100):
                continue
            for name in (f"{tier}0", f"{tier}1"):
                below = cap_by[name] is None or running[name] < cap_by[name]
                assert not (pool.queued[name] and below), (tier, name)


# 10. Tiers


@given(events=traffic(), quantum=st.integers(1, 8))
def test_10_nothing_of_a_lower_tier_is_chosen_while_a_better_one_is_eligible(events, quantum):
    pool = Pool(PoolRules(quantum), slots=3, tiers=tiers())
    for queued, started in play(pool, events):
        for ticket in started:
            better = NAMES[: NAMES.index(ticket.tier)]
            assert not any(queued[f"{tier}{n}"] for tier in better for n in (0, 1))
            queued[ticket.tenant] -= 1


def test_10_a_shared_queue_lets_a_lower_tier_go_before_a_better_one():
    chosen = {}
    for shared in (False, True):
        pool = Pool(PoolRules(1, shared_queue=shared), tiers=tiers())
        pool.submit("bronze0", tier="bronze")
        pool.submit("gold0", tier="gold")
        chosen[shared] = pool.serve().tier
    assert chosen == {False: "gold", True: "bronze"}


@given(
    floors=st.sampled_from([(0, 5, 0), (0, 0, 50), (0, 20, 30), (0, 1, 49), (0, 25, 25)]),
    costs=st.lists(st.lists(COSTS, min_size=1, max_size=5), min_size=3, max_size=3),
    slots=st.integers(1, 3),
    quantum=st.integers(1, 8),
)
def test_10_a_backlogged_floor_tier_gets_its_share_to_within_one_ticket(
    floors, costs, slots, quantum
):
    pool = Pool(PoolRules(quantum, min_charge=0), slots=slots, tiers=tiers(floors))
    turn: Counter[str] = Counter()
    for _ in range(120):
        for tier, series in zip(NAMES, costs, strict=True):
            while pool.queued[tier] < slots + 2:
                pool.submit(tier, series[turn[tier] % len(series)], tier=tier)
                turn[tier] += 1
        pool.serve()
    charged: Counter[str] = Counter()
    total = 0
    for ticket in pool.granted:
        charged[ticket.tier] += ticket.cost
        total += ticket.cost
        for tier, floor, series in zip(NAMES, floors, costs, strict=True):
            if not floor:
                assert tier == "gold" or not charged[tier]
                continue
            # Several floor tiers may be owed at once: then the best-ranked of them goes first.
            ahead = 100 * charged[tier] - floor * total
            assert ahead <= 100 * max(series)
            assert ahead >= -100 * max(map(max, costs))
