# SPDX-License-Identifier: Apache-2.0
"""What is promised of batches: their bounds, their group, and that no head is overtaken twice."""

from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.decision import Granted
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler

BATCHES = st.builds(
    BatchRules,
    size_max=st.integers(2, 12),
    items_max=st.integers(1, 6),
    padded=st.booleans(),
    misfits_max=st.integers(1, 8),
)
ITEMS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 14), st.sampled_from("xy")),
    min_size=1,
    max_size=30,
)


def scheduler(batch: BatchRules, quantum: int, tenants=()) -> Scheduler:
    pool = Scheduler(PoolRules(quantum, min_charge=0, batch=batch), [Tier("only")], tenants)
    pool.set_engine("engine", 1)
    return pool


def batches(pool: Scheduler):
    """Let the pool work until it's empty, one batch at a time."""
    while decisions := pool.advance(0):
        (granted,) = decisions
        assert isinstance(granted, Granted)
        yield granted.tickets
        for ticket in granted.tickets:
            pool.finish(ticket.id)


def submit(pool: Scheduler, items) -> None:
    for number, (tenant, size, group) in enumerate(items):
        pool.submit(Ticket(f"t{number}", tenant, "only", cost=size, size=size, group=group))


@given(batch=BATCHES, items=ITEMS, quantum=st.integers(1, 20))
def test_a_batch_keeps_its_bounds_and_its_group_and_nothing_is_lost(batch, items, quantum):
    pool = scheduler(batch, quantum)
    submit(pool, items)
    seen: list[str] = []
    for tickets in batches(pool):
        sizes = [t.size for t in tickets]
        total = len(sizes) * max(sizes) if batch.padded else sum(sizes)
        assert len({t.group for t in tickets}) == 1
        assert len(sizes) <= batch.items_max
        assert total <= batch.size_max or len(sizes) == 1
        seen += [t.id for t in tickets]
    assert sorted(seen) == sorted(f"t{n}" for n in range(len(items)))
    assert pool.snapshot().queued == pool.snapshot().running == 0


@given(
    batch=st.builds(BatchRules, size_max=st.integers(2, 12), items_max=st.just(100)),
    items=ITEMS,
    weights=st.lists(st.integers(1, 3), min_size=4, max_size=4),
)
def test_what_was_left_out_of_a_batch_did_not_fit_it(batch, items, weights):
    pool = scheduler(batch, 3, [Tenant(*row) for row in zip("abcd", weights, strict=True)])
    submit(pool, [(tenant, 1, "x") for tenant, _, _ in items])
    left = len(items)
    for tickets in batches(pool):
        assert len(tickets) == min(left, batch.size_max)
        left -= len(tickets)


@given(items=ITEMS, size_max=st.integers(4, 14))
def test_a_turn_kept_open_by_a_large_head_is_next_after_those_begun_before_it(items, size_max):
    # With a quantum of 1 each turn is one ticket, so an open turn is one whose head didn't fit.
    pool = scheduler(BatchRules(size_max, items_max=100), 1)
    submit(pool, [(tenant, min(size, size_max), "x") for tenant, size, _ in items])
    within: dict[str, int] = {}
    for tickets in batches(pool):
        for name in {t.tenant for t in tickets}:
            within.pop(name, None)
        within = {name: left - 1 for name, left in within.items()}
        assert all(left > 0 for left in within.values()), within
        (tier,) = pool.snapshot().tiers
        open_turns = [t.tenant for t in tier.tenants if t.state == "turn"]
        for name in open_turns:
            within.setdefault(name, len(open_turns) + 1)


def test_a_head_passed_over_once_closes_the_batch_that_it_does_not_fit_again():
    pool = scheduler(BatchRules(4, items_max=4, padded=True), 20)
    for ticket_id, tenant, size, group in (
        ("first", "a", 1, "y"),
        ("wide", "b", 3, "y"),
        ("other", "b", 1, "x"),
        ("again", "a", 1, "y"),
        ("last", "c", 1, "y"),
    ):
        pool.submit(Ticket(ticket_id, tenant, "only", cost=1, size=size, group=group))
    (granted,) = pool.advance(0)
    # "wide" is passed over: two items of width 3 are more than 4.
    assert "wide" not in [t.id for t in granted.tickets]
    for ticket in granted.tickets:
        pool.finish(ticket.id)
    (granted,) = pool.advance(0)
    assert [t.id for t in granted.tickets] == ["wide"]


def test_a_head_stays_passed_over_when_another_ticket_of_its_tenant_goes_first():
    pool = scheduler(BatchRules(4, items_max=4), 20)

    def put(ticket_id: str, tenant: str, size: int, priority: int = 500) -> None:
        pool.submit(Ticket(ticket_id, tenant, "only", cost=1, size=size, priority=priority))

    put("a1", "a", 2)
    put("wide", "b", 3)
    put("c1", "c", 2)
    chosen = []
    for tickets in batches(pool):
        chosen.append([t.id for t in tickets])
        if len(chosen) == 1:
            put("urgent", "b", 2, priority=0)
            put("c2", "c", 2)
    # "c2" would have fitted beside "urgent", but then "wide" were overtaken a second time.
    assert chosen == [["a1", "c1"], ["urgent"], ["wide"], ["c2"]]


def test_after_the_permitted_misfits_the_batch_closes():
    for permitted, expected in ((1, ["fits"]), (2, ["fits"]), (3, ["fits", "late"])):
        pool = scheduler(BatchRules(4, items_max=4, misfits_max=permitted), 1)
        for ticket_id, tenant, size in (
            ("fits", "a", 2),
            ("wide1", "b", 3),
            ("wide2", "c", 3),
            ("late", "d", 2),
        ):
            pool.submit(Ticket(ticket_id, tenant, "only", cost=1, size=size))
        (granted,) = pool.advance(0)
        assert [t.id for t in granted.tickets] == expected
