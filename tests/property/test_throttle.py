# SPDX-License-Identifier: Apache-2.0
"""Promise 8 for predicted waits, and that watching a pool changes nothing in it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.decision import Granted
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.core.throttle import ONE, Backlogs, judge

TENANTS = st.sampled_from("abc")
TIERS = (Tier("high"), Tier("low", floor_percent=10, slot_share_percent=60))
STEP_US = 50_000


@st.composite
def pools(draw):
    """What two equal pools are made with, and what happens in both."""
    tickets = st.tuples(TENANTS, st.sampled_from(["high", "low"]), st.integers(1, 40))
    return (
        draw(st.integers(1, 30)),
        [
            Tenant(name, draw(st.integers(1, 4)), draw(st.none() | st.integers(1, 3)))
            for name in "ab"
        ],
        draw(st.integers(1, 3)),
        draw(st.lists(tickets, min_size=20, max_size=40)),
    )


def worked(quantum, tenants, slots, traffic):
    """A pool that has served some of the traffic, and the time."""
    pool = Scheduler(PoolRules(quantum, min_charge=1, throttle=True), TIERS, tenants)
    pool.set_engine("engine", slots)
    now_us, running = 0, []
    for number, (tenant, tier, cost) in enumerate(traffic):
        pool.submit(Ticket(f"t{number}", tenant, tier, cost))
        if number % 4 != 3 and len(running) == slots:
            now_us += STEP_US
            pool.finish(running.pop(0))
        running += [
            ticket.id
            for decision in pool.advance(now_us)
            if isinstance(decision, Granted)
            for ticket in decision.tickets
        ]
    return pool, now_us


@given(
    setting=pools(),
    extra=st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from(["high", "low"]),
            st.integers(1, 200),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
    who=st.sampled_from("abcd"),
    tier=st.sampled_from(["high", "low"]),
    ahead=st.sampled_from([0, 0, 50]),
    target_us=st.integers(0, 5_000_000),
    factor=st.sampled_from([ONE // 4, ONE, 2 * ONE]),
)
def test_8_a_longer_backlog_admits_nothing_that_a_shorter_one_refused(
    setting, extra, who, tier, ahead, target_us, factor
):
    shorter, now_us = worked(*setting)
    longer, _ = worked(*setting)
    for number, (tenant, other_tier, cost, priority) in enumerate(extra):
        more = Ticket(f"extra{number}", tenant, other_tier, cost, priority=priority)
        # The same is offered to both, so that what is measured is the same.
        for pool in (shorter, longer):
            pool.submit(more)
        shorter.cancel(more.id)
    ticket = Ticket("asked", who, tier, 10, priority=1)
    short, long = (
        pool.predict(ticket, now_us, ahead=ahead)._replace(factor=factor)
        for pool in (shorter, longer)
    )
    assert (short.wait_us is None) <= (long.wait_us is None)
    if short.wait_us is None or long.wait_us is None:
        return
    assert short.wait_us <= long.wait_us
    if judge(short, target_us) is not None:
        assert judge(long, target_us) is not None


@given(
    tenants=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), min_size=1, max_size=12),
    grown=st.lists(st.integers(0, 10**6), min_size=12, max_size=12),
    levels=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    unit=st.integers(1, 500),
)
def test_sums_in_buckets_are_monotone_and_near_the_exact_ones(tenants, grown, levels, unit):
    low, high = sorted(levels)
    found = Backlogs(unit)
    for cost, weight in tenants:
        found.change(0, cost, weight)
    first, own_weight = tenants[0]
    exact = sum(min(cost, low * weight) for cost, weight in tenants)
    before = found.served(low, 0, 1)
    # Below the first edge there's nothing to tell tenants apart by.
    slack = sum(unit * weight for _, weight in tenants)
    assert exact * 7 // 8 - slack <= before <= exact
    assert before <= found.served(high, 0, 1)
    others = found.served(low, first, own_weight)
    assert others <= exact
    for (cost, weight), more in zip(tenants, grown, strict=False):
        found.change(cost, cost + more, weight)
    assert before <= found.served(low, 0, 1)
    assert others <= found.served(low, first + grown[0], own_weight)


@given(
    setting=pools(),
    events=st.lists(
        st.tuples(
            st.sampled_from(
                ["submit", "predict", "cancel", "change", "finish", "weigh", "advance"]
            ),
            st.integers(0, 50),
        ),
        min_size=10,
        max_size=80,
    ),
)
def test_watching_a_pool_changes_no_decision_and_counts_what_waits(setting, events):
    quantum, tenants, slots, _ = setting
    plain, watched = (
        Scheduler(PoolRules(quantum, throttle=throttle), TIERS, tenants)
        for throttle in (False, True)
    )
    for pool in (plain, watched):
        pool.set_engine("engine", slots)
    waiting, running = {}, []
    now_us = 0
    for number, (what, pick) in enumerate(events):
        ticket = Ticket(
            f"t{number}",
            "abc"[pick % 3],
            ("high", "low")[pick % 2],
            pick + 1,
            priority=pick % 4,
            deadline_us=now_us + STEP_US * 3 if pick % 5 == 0 else None,
        )
        chosen = list(waiting)[pick % len(waiting)] if waiting else "none"
        if what == "submit":
            assert plain.submit(ticket) == watched.submit(ticket)
            waiting[ticket.id] = ticket
        elif what == "predict":
            watched.predict(ticket, now_us)
        elif what == "cancel":
            assert plain.cancel(chosen) == watched.cancel(chosen)
            waiting.pop(chosen, None)
        elif what == "change" and waiting:
            changed = waiting[chosen]._replace(priority=pick % 3, deadline_us=None)
            for pool in (plain, watched):
                assert pool.change(chosen, priority=pick % 3, deadline_us=None)
            waiting[chosen] = changed
        elif what == "finish" and running:
            name = running.pop(pick % len(running))
            assert plain.finish(name) == watched.finish(name)
        elif what == "weigh":
            for pool in (plain, watched):
                pool.set_tenant(Tenant("abc"[pick % 3], pick % 5 + 1))
        else:
            now_us += STEP_US
            decisions = watched.advance(now_us)
            assert plain.advance(now_us) == decisions
            for decision in decisions:
                ended = decision.tickets if isinstance(decision, Granted) else [decision.ticket]
                for one in ended:
                    del waiting[one.id]
                if isinstance(decision, Granted):
                    running += [one.id for one in ended]
        _counts_what_waits(watched, waiting)
    assert plain.snapshot() == watched.snapshot()


def _counts_what_waits(pool, waiting):
    for tier in pool._forecast._tiers:
        mine = [one for one in waiting.values() if one.tier == tier.state.tier.name]
        cost: Counter[tuple[str, int]] = Counter()
        for one in mine:
            cost[one.tenant, one.priority] += one.cost
        if (fresh := pool._forecast._fresh) is not None and fresh[1] is tier.demand:
            # Counted once it's known that it doesn't start at once.
            cost[fresh[0].tenant, fresh[0].priority] -= fresh[0].cost
            cost += Counter()
        counted = {
            (name, priority): there
            for name, own in tier.demand.own.items()
            for priority, there in own.by_priority.items()
        }
        assert counted == cost
        assert tier.demand.backlogs.cost == sum(cost.values())
        assert sum(tier.demand.backlogs._costs) == tier.demand.backlogs.cost
        assert sum(tier.demand.soon._costs) == tier.demand.soon.cost
        assert all(value >= 0 for value in tier.demand.soon._weights)
