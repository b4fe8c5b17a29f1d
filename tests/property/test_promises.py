# SPDX-License-Identifier: Apache-2.0
"""What deficit round robin promises the tenants of one tier, each promise with its bound."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference.drive import Pool
from reference.max_min import max_min
from reference.side_by_side import SideBySide

from taketurns.core.decision import Outcome, Refused
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler

QUANTA = st.integers(1, 8)
COSTS = st.integers(1, 12)
WEIGHTS = st.integers(1, 4)
SLOTS = st.integers(1, 4)


def rules(quantum: int, **fields: object) -> PoolRules:
    """Rules under which a finished ticket costs what was charged."""
    return PoolRules(quantum, min_charge=0, **fields)  # type: ignore[arg-type]


# 1. Balance


@st.composite
def settled_traffic(draw):
    events = st.tuples(
        st.sampled_from(["submit", "submit", "advance", "settle", "finish", "finish"]),
        st.integers(0, 30),
        st.integers(1, 12),
    )
    return draw(st.lists(events, min_size=10, max_size=80))


@given(
    quantum=QUANTA,
    weights=st.lists(WEIGHTS, min_size=3, max_size=3),
    slots=SLOTS,
    events=settled_traffic(),
)
def test_1_a_balance_stays_within_its_bounds(quantum, weights, slots, events):
    names = ["a", "b", "c"]
    tenants = [Tenant(n, w) for n, w in zip(names, weights, strict=True)]
    pool = Pool(rules(quantum, debt_rounds=1_000), slots=slots, tenants=tenants)
    largest_charge: Counter[str] = Counter()
    largest_settlement: Counter[str] = Counter()
    # Tickets that were in flight at any time since the tenant's last turn began.
    since_turn: dict[str, set[str]] = {n: set() for n in names}
    standing: dict[str, int] = {}

    def settled(ticket: Ticket, cost: int) -> None:
        moved = abs(cost - standing[ticket.id])
        largest_settlement[ticket.tenant] = max(largest_settlement[ticket.tenant], moved)
        largest_charge[ticket.tenant] = max(largest_charge[ticket.tenant], cost)
        standing[ticket.id] = cost

    was = {}
    for what, pick, cost in events:
        if what == "submit":
            pool.submit(names[pick % 3], cost)
        elif what == "settle" and pool.in_flight:
            ticket = pool.in_flight[pick % len(pool.in_flight)]
            # Each ticket is settled once: `settlement` of a ticket is all that it's corrected by.
            if standing[ticket.id] == ticket.cost:
                pool.scheduler.settle(ticket.id, cost)
                settled(ticket, cost)
        elif what == "finish" and pool.in_flight:
            pool.finish(pick)
        was = {n: t.state for n, t in pool.tenants().items()}
        for ticket in pool.advance():
            name = ticket.tenant
            if was.get(name) != "turn":
                since_turn[name] = {t.id for t in pool.in_flight if t.tenant == name}
            since_turn[name].add(ticket.id)
            was[name] = "turn"
            standing[ticket.id] = ticket.cost
            largest_charge[name] = max(largest_charge[name], ticket.cost)
        for name, tenant in pool.tenants().items():
            if not largest_charge[name]:
                assert tenant.balance == 0
                continue
            k, e = len(since_turn[name]), largest_settlement[name]
            assert tenant.balance > -(largest_charge[name] + (k + 1) * e)
            assert tenant.balance <= quantum * tenant.weight + k * e


def test_1_debt_is_bounded_by_the_largest_charge_since_the_tenant_was_forgotten():
    pool = Pool(rules(1, debt_rounds=1), slots=2)
    pool.submit("a", 20)
    pool.advance()
    pool.finish()
    # Rounds go by until the debt is repaid and nothing tells "a" from a tenant never seen.
    for _ in range(60):
        pool.submit("b")
        pool.submit("b")
        pool.serve()
    while pool.in_flight:
        pool.finish()
    assert "a" not in pool.tenants()
    for _ in range(3):
        pool.submit("a")
    pool.scheduler.set_engine("engine", 30)
    pool.advance()
    for ticket in [t for t in pool.in_flight if t.tenant == "a"]:
        pool.scheduler.settle(ticket.id, 3)
    assert pool.tenants()["a"].balance == -3


def test_1_the_least_charge_follows_the_quantum():
    pool = Pool(PoolRules(80), slots=2)
    pool.submit("a")
    pool.submit("a")
    pool.advance()
    assert pool.finish().cost == 10
    pool.scheduler.set_quantum(160)
    assert pool.finish().cost == 20


# 2. Two backlogged tenants


@st.composite
def backlogs(draw):
    """Quantum, slots, weights of four tenants, their costs in turn, and who comes and goes."""
    costs = st.lists(COSTS, min_size=1, max_size=6)
    return (
        draw(QUANTA),
        draw(SLOTS),
        draw(st.lists(WEIGHTS, min_size=4, max_size=4)),
        draw(st.lists(costs, min_size=4, max_size=4)),
        draw(st.lists(st.sampled_from(["", "c", "d", "cd"]), min_size=10, max_size=80)),
    )


def greatest_lead(pool: Pool, one: str, other: str, weight: dict[str, int]) -> Fraction:
    """The most that charged cost per weight of one got ahead of the other's, over all intervals."""
    level = lowest = highest = Fraction(0)
    for ticket in pool.granted:
        if ticket.tenant == one:
            level += Fraction(ticket.cost, weight[one])
        elif ticket.tenant == other:
            level -= Fraction(ticket.cost, weight[other])
        lowest, highest = min(lowest, level), max(highest, level)
    return highest - lowest


@given(backlogs())
def test_2_two_backlogged_tenants_stay_within_two_quanta_and_a_ticket_each(backlog):
    quantum, slots, weights, costs, visits = backlog
    names = ["a", "b", "c", "d"]
    weight = dict(zip(names, weights, strict=True))
    pool = Pool(rules(quantum), slots=slots, tenants=[Tenant(n, w) for n, w in weight.items()])
    turn: Counter[str] = Counter()

    def submit(name: str) -> None:
        series = costs[names.index(name)]
        pool.submit(name, series[turn[name] % len(series)])
        turn[name] += 1

    for visitors in visits:
        for name in "ab":
            while pool.queued[name] < slots + 2:
                submit(name)
        for name in visitors:
            submit(name)
        pool.serve()
    largest = {n: max(costs[names.index(n)]) for n in "ab"}
    bound = 2 * quantum + sum(Fraction(largest[n], weight[n]) for n in "ab")
    assert greatest_lead(pool, "a", "b", weight) <= bound


def test_2_a_shared_queue_breaks_the_bound_for_backlogged_tenants():
    leads = {}
    for shared in (False, True):
        pool = Pool(rules(1, shared_queue=shared))
        for name in ("a", "b"):
            for _ in range(50):
                pool.submit(name)
        for _ in range(50):
            pool.serve()
        leads[shared] = greatest_lead(pool, "a", "b", {"a": 1, "b": 1})
    bound = 2 * 1 + 1 + 1
    assert leads[False] <= bound < leads[True]


def test_2_failing_fast_saves_up_no_credit_to_shut_others_out_with():
    pool = Pool(rules(10))
    for _ in range(1_000):
        for name in ("flaky", "steady"):
            while pool.queued[name] < 2:
                pool.submit(name)
        if pool.in_flight:
            pool.finish(executed=pool.in_flight[0].tenant == "steady")
        pool.advance()
    begin = len(pool.granted)
    for _ in range(400):
        for name in ("flaky", "steady"):
            while pool.queued[name] < 2:
                pool.submit(name)
        pool.serve()
    # From where its tickets are executed and cost what they were charged, the bound is as ever.
    del pool.granted[:begin]
    assert greatest_lead(pool, "flaky", "steady", {"flaky": 1, "steady": 1}) <= 2 * 10 + 1 + 1


# 3. Max-min


def shares(demands: dict[str, Fraction], weights: dict[str, int], *, quantum: int, shared: bool):
    """Serve for a time with one slot and steady demands; service and its max-min allocation.

    A unit of cost takes a unit of time; demands are cost per time.
    """
    tenants = [Tenant(n, w) for n, w in weights.items()]
    unbounded = {"tenant_queue_max": 10**9, "queue_max": 10**9, "shared_queue": shared}
    pool = Pool(rules(quantum, **unbounded), tenants=tenants)
    costs = {name: 1 + place for place, name in enumerate(sorted(demands))}
    owed = {name: Fraction(0) for name in demands}
    window = 1_000 * quantum * sum(weights.values())
    time = served = 0
    while served < window:
        for name, demand in demands.items():
            while owed[name] + costs[name] <= demand * time:
                owed[name] += costs[name]
                pool.submit(name, costs[name])
        if pool.in_flight:
            pool.finish()
        started = pool.advance()
        time += started[0].cost if started else 1
        served = time
    charged = pool.charged()
    return charged, max_min(
        Fraction(sum(charged.values())), {n: demands[n] * time for n in demands}, weights
    )


DEMANDS = st.lists(st.fractions(Fraction(1, 10), 2, max_denominator=10), min_size=3, max_size=4)


@pytest.mark.slow
@settings(max_examples=max(6, settings.default.max_examples // 100))
@given(DEMANDS, st.lists(WEIGHTS, min_size=4, max_size=4), st.integers(1, 4))
def test_3_service_is_within_three_per_cent_of_the_max_min_allocation(demands, weights, quantum):
    demand_by = dict(zip("abcd", demands, strict=False))
    weight_by = dict(zip(demand_by, weights, strict=False))
    charged, fair = shares(demand_by, weight_by, quantum=quantum, shared=False)
    for name in demand_by:
        assert abs(charged[name] - fair[name]) <= fair[name] * Fraction(3, 100)


@pytest.mark.slow
def test_3_a_shared_queue_serves_far_from_the_max_min_allocation():
    demands = {"a": Fraction(1, 4), "b": Fraction(4)}
    off = {}
    for shared in (False, True):
        charged, fair = shares(demands, {"a": 1, "b": 1}, quantum=1, shared=shared)
        off[shared] = abs(charged["a"] - fair["a"]) / fair["a"]
    assert off[False] <= Fraction(3, 100)
    assert off[True] > Fraction(1, 2)


# 5. Idle gaps


def service_after_a_gap(backlog, *, pauses: bool, gap: int, window: int, **fields) -> int:
    """What ``a`` is charged in a window that begins when its gap ends (or would have ended)."""
    quantum, slots, weights, costs, visits = backlog
    names = ["a", "b", "c", "d"]
    tenants = [Tenant(n, w) for n, w in zip(names, weights, strict=True)]
    pool = Pool(rules(quantum, **fields), slots=slots, tenants=tenants)
    waiting: list[Ticket] = []

    def keep_backlogged(who: str) -> None:
        for name in who:
            while pool.queued[name] < slots + 2:
                ticket = pool.submit(name, costs[names.index(name)][0])
                if name == "a":
                    waiting.append(ticket)

    def steps(count: int, who: str) -> None:
        for _ in range(count):
            keep_backlogged(who)
            pool.serve()

    steps(len(visits), "abcd")
    if pauses:
        for ticket in waiting:
            if pool.scheduler.cancel(ticket.id):
                pool.queued["a"] -= 1
    steps(gap, "bcd" if pauses else "abcd")
    begin = len(pool.granted)
    total = 0
    while total < window:
        keep_backlogged("abcd")
        total += pool.serve().cost
    return pool.charged(begin)["a"]


@given(backlogs(), st.integers(1, 40), st.integers(1, 100))
def test_5_an_idle_gap_raises_later_service_by_at_most_two_quanta_and_two_tickets(
    backlog, gap, window
):
    quantum, _, weights, costs, _ = backlog
    without = service_after_a_gap(backlog, pauses=False, gap=gap, window=window)
    after = service_after_a_gap(backlog, pauses=True, gap=gap, window=window)
    # One of each is for the turn that comes early. The other is where the two runs stand in
    # their rounds as the window begins and ends: one just before its turn, one just after.
    assert after <= without + 2 * (quantum * weights[0] + costs[0][0])


@example(quantum=3, extra=1, pause=3)
@given(quantum=st.integers(2, 10), extra=st.integers(0, 9), pause=st.integers(1, 40))
def test_5_pausing_after_each_overdraft_gains_nothing_in_the_long_run(quantum, extra, pause):
    # The pausing tenant is idle after each of its tickets, with a debt, while others go on.
    cost = quantum + min(extra, quantum - 1)
    pool = Pool(rules(quantum))

    def serve() -> Ticket:
        for name in ("steady", "other"):
            while pool.queued[name] < 3:
                pool.submit(name, 1)
        return pool.serve()

    for _ in range(30):
        pool.submit("pausing", cost)
        while serve().tenant != "pausing":
            pass
        for _ in range(pause):
            serve()
    charged = pool.charged()
    assert charged["pausing"] - charged["steady"] <= 2 * quantum + cost + 1


# Newcomers


def wait_of_a_newcomer(*, others: int, shared: bool) -> int:
    """Tickets that start before the first ticket of a tenant that was quiet."""
    pool = Pool(rules(1, shared_queue=shared))
    for number in range(others):
        for _ in range(5):
            pool.submit(f"busy{number}")
    for _ in range(others + others // 2):
        pool.serve()
    pool.submit("quiet")
    before = len(pool.granted)
    while pool.serve().tenant != "quiet":
        pass
    return len(pool.granted) - before - 1


@given(st.integers(1, 12))
def test_a_quiet_tenants_first_ticket_waits_for_a_turn_or_two_however_many_are_busy(others):
    assert wait_of_a_newcomer(others=others, shared=False) <= 2


def test_in_a_shared_queue_a_quiet_tenants_first_ticket_waits_for_the_whole_backlog():
    assert wait_of_a_newcomer(others=12, shared=True) == 12 * 5 - 18


@given(quantum=QUANTA, at_once=st.integers(1, 3))
def test_a_waiting_tenant_waits_only_for_the_newcomers_that_were_there_before(quantum, at_once):
    pool = Pool(rules(quantum))
    for _ in range(60):
        pool.submit("steady", quantum)
    pool.serve()
    # Two that come later may slip in: one whose round has begun, one by alternation.
    ahead = 2
    for step in range(60):
        for number in range(at_once):
            pool.submit(f"new{step}.{number}", quantum)
        if pool.serve().tenant == "steady":
            ahead = sum(pool.queued.values()) - pool.queued["steady"] + 2
        else:
            ahead -= 1
        assert ahead >= 0


# 6. Names, keys and calls


@st.composite
def traffic(draw):
    """Events of a pool with three tenants: submit, or end one that runs."""
    event = st.tuples(
        st.sampled_from(["submit", "submit", "end"]),
        st.integers(0, 30),
        COSTS,
        st.integers(0, 3),
    )
    return draw(st.lists(event, max_size=60))


def order(
    events,
    *,
    name=str,
    ticket_id=str,
    group="",
    calls=1,
    priority=lambda p: p,
    cost=lambda tenant, c: c,
    slots=2,
    **fields,
):
    """Ticket numbers in the order in which they were chosen."""
    tenants = [Tenant(name(i), 1 + i) for i in range(3)]
    pool = Pool(rules(5, **fields), slots=slots, tenants=tenants)
    number: dict[str, int] = {}
    for what, pick, units, urgency in events:
        if what == "submit":
            tenant = pick % 3
            one = ticket_id(len(number))
            number[one] = len(number)
            pool.submit(
                name(tenant), cost(tenant, units), id=one, group=group, priority=priority(urgency)
            )
        elif pool.in_flight:
            pool.finish(pick)
        for _ in range(calls):
            pool.advance()
    while pool.in_flight:
        pool.finish()
        for _ in range(calls):
            pool.advance()
    return [(number[t.id], t.tenant) for t in pool.granted]


def numbers(choices) -> list[int]:
    return [number for number, _ in choices]


@given(traffic())
def test_6_relabelling_tenants_and_tickets_changes_no_choice(events):
    relabelled = order(events, name=lambda i: "zyx"[i], ticket_id=lambda i: f"{-i:x}")
    assert numbers(relabelled) == numbers(order(events))


@given(traffic(), st.integers(2, 5))
def test_6_advancing_more_often_changes_no_choice(events, calls):
    assert order(events, calls=calls) == order(events)


@given(traffic())
def test_6_the_group_of_a_ticket_means_nothing_without_batches(events):
    assert order(events, group="other") == order(events)


def test_6_more_requests_at_once_buy_nothing_but_in_a_shared_queue():
    # A client that opens ten connections (or uses ten keys) beside one that opens one.
    share = {}
    for shared in (False, True):
        pool = Pool(rules(1, shared_queue=shared))
        for _ in range(100):
            for _ in range(10 - pool.queued["many"]):
                pool.submit("many")
            if not pool.queued["one"]:
                pool.submit("one")
            pool.serve()
        share[shared] = pool.charged()["one"]
    assert share[False] >= 48
    assert share[True] < 20


# 7. One end for each ticket


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["submit", "submit", "advance", "cancel", "finish", "finish"]),
            st.integers(0, 30),
            st.none() | st.integers(0, 4),
        ),
        max_size=60,
    ),
    SLOTS,
)
def test_7_each_ticket_ends_once_and_is_settled_once(events, slots):
    pool = rules(3, tenant_queue_max=3, queue_max=6)
    scheduler = Scheduler(pool, [Tier("only")])
    scheduler.set_engine("engine", slots)
    ends: dict[str, list[Outcome]] = {}
    running: list[str] = []
    now_us = 0

    def advance() -> None:
        for decision in scheduler.advance(now_us):
            if hasattr(decision, "tickets"):
                running.extend(t.id for t in decision.tickets)
            else:
                ends[decision.ticket.id].append(Outcome.EXPIRED)

    def finish(ticket_id: str) -> None:
        running.remove(ticket_id)
        ends[ticket_id].append(scheduler.finish(ticket_id).outcome)
        with pytest.raises(KeyError):
            scheduler.finish(ticket_id)
        with pytest.raises(KeyError):
            scheduler.settle(ticket_id, 1)

    for what, pick, deadline in events:
        if what == "submit":
            one = f"t{len(ends)}"
            ends[one] = []
            deadline_us = None if deadline is None else now_us + deadline
            ticket = Ticket(one, "abc"[pick % 3], "only", 1 + pick % 5, deadline_us=deadline_us)
            if isinstance(scheduler.submit(ticket), Refused):
                ends[one].append(Outcome.REFUSED)
        elif what == "cancel" and ends:
            one = f"t{pick % len(ends)}"
            if scheduler.cancel(one):
                ends[one].append(Outcome.CANCELLED)
            assert scheduler.cancel(one) is None
        elif what == "finish" and running:
            finish(running[pick % len(running)])
        else:
            now_us += pick % 3
            advance()
    while running:
        finish(running[0])
        advance()
    advance()
    while running:
        finish(running[0])
        advance()
    assert all(len(outcomes) == 1 for outcomes in ends.values()), ends


# 8. Refusing is monotonic


@given(
    extra=st.lists(st.sampled_from("abc"), max_size=8),
    traffic=st.lists(st.sampled_from("abc"), max_size=20),
    own=st.integers(1, 5),
    everyone=st.integers(1, 10),
)
def test_8_a_longer_backlog_admits_nothing_that_a_shorter_one_refused(
    extra, traffic, own, everyone
):
    bounded = rules(1, tenant_queue_max=own, queue_max=everyone)
    shorter, longer = Scheduler(bounded, [Tier("only")]), Scheduler(bounded, [Tier("only")])
    for number, tenant in enumerate(extra):
        longer.submit(Ticket(f"extra{number}", tenant, "only"))
    for number, tenant in enumerate(traffic):
        ticket = Ticket(f"t{number}", tenant, "only")
        # What one of them takes, the other is given too: the longer one stays longer.
        if longer.submit(ticket) is None:
            assert shorter.submit(ticket) is None
        elif shorter.submit(ticket) is None:
            assert shorter.cancel(ticket.id)


# 9. Heap and naive ring


@given(
    quantum=QUANTA,
    slots=SLOTS,
    weights=st.lists(WEIGHTS, min_size=3, max_size=3),
    events=settled_traffic(),
)
def test_9_the_heap_chooses_as_rounds_walked_one_by_one_do(quantum, slots, weights, events):
    tenants = [Tenant(n, w) for n, w in zip("abc", weights, strict=True)]
    both = SideBySide(rules(quantum), [Tier("only")], tenants)
    both.set_engine("engine", slots)
    for what, pick, cost in events:
        running = both.running()
        if what == "submit":
            both.submit("abc"[pick % 3], "only", cost=cost)
        elif what == "advance":
            both.advance(1)
        elif what == "settle" and running:
            both.settle(running[pick % len(running)], cost)
        elif what == "finish" and running:
            both.finish(running[pick % len(running)])
    while both.waiting() or both.running():
        both.advance()
        for ticket_id in both.running():
            both.finish(ticket_id)


# 11. Inside a tenant


@given(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 5)), min_size=1, max_size=20)
)
def test_11_a_tenants_tickets_go_by_priority_then_deadline_then_arrival(tickets):
    pool = Pool(rules(2))
    expected = []
    for number, (priority, deadline) in enumerate(tickets):
        ticket = pool.submit("a", priority=priority, deadline_us=deadline)
        expected.append((priority, deadline is None, deadline or 0, number, ticket))
    while pool.queued["a"]:
        pool.serve()
    assert pool.granted == [row[-1] for row in sorted(expected, key=lambda row: row[:4])]


@given(traffic())
def test_11_no_tenants_priorities_change_another_tenants_choice(events):
    def flat(tenant: int, _: int) -> int:
        return 1 + 2 * tenant

    plain = order(events, cost=flat, priority=lambda _: 500)
    mixed = order(events, cost=flat)
    assert [tenant for _, tenant in mixed] == [tenant for _, tenant in plain]


def test_11_marking_everything_urgent_gains_nothing_but_in_a_shared_queue():
    share = {}
    for shared in (False, True):
        pool = Pool(rules(1, shared_queue=shared))
        for _ in range(40):
            pool.submit("modest")
            pool.submit("urgent", priority=0)
        for _ in range(40):
            pool.serve()
        share[shared] = pool.charged()["urgent"]
    assert share == {False: 20, True: 40}
