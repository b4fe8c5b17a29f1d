# SPDX-License-Identifier: Apache-2.0
"""Whatever is called in whatever order, the scheduler and the naive one decide the same."""

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from reference.side_by_side import SideBySide

from taketurns.core.decision import Outcome
from taketurns.core.model import BatchRules, PoolRules, Tenant, Tier

TIER_OF = {"a": "gold", "b": "gold", "c": "gold", "d": "silver", "e": "silver", "f": "bronze"}
TENANTS = st.sampled_from(sorted(TIER_OF))
WEIGHTS = st.integers(1, 3)
QUANTA = st.integers(1, 8) | st.sampled_from([16, 24])
CAPS = st.none() | st.integers(1, 3)
PICKS = st.integers(0, 30)
DEADLINES = st.none() | st.integers(0, 5)

TIERS = st.builds(
    lambda silver, bronze, share: (
        Tier("gold"),
        Tier("silver", floor_percent=silver, slot_share_percent=share),
        Tier("bronze", floor_percent=bronze),
    ),
    st.sampled_from([0, 10, 25]),
    st.sampled_from([0, 20]),
    st.sampled_from([100, 50]),
)
BATCHES = st.builds(
    BatchRules,
    size_max=st.integers(2, 8),
    items_max=st.integers(2, 6),
    padded=st.booleans(),
    misfits_max=st.integers(1, 3),
    linger_us=st.sampled_from([0, 0, 2, 5]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Slot mode: each ticket takes a slot of its own."""

    side_by_side = SideBySide
    batches: st.SearchStrategy[BatchRules | None] = st.none()
    headroom = st.just(0)
    groups = ("",)
    affinities = (0,)

    @initialize(
        data=st.data(),
        quantum=QUANTA,
        debt_rounds=st.integers(1, 3),
        min_charge=st.none() | st.integers(0, 2),
        queue_maxes=st.sampled_from([(10_000, 100_000), (4, 12)]),
        tiers=TIERS,
        weights=st.lists(WEIGHTS, min_size=6, max_size=6),
        caps=st.lists(CAPS, min_size=6, max_size=6),
        slots=st.integers(1, 4),
    )
    def start(  # noqa: PLR0917 - hypothesis passes them by name
        self, data, quantum, debt_rounds, min_charge, queue_maxes, tiers, weights, caps, slots
    ):
        rules = PoolRules(
            quantum,
            min_charge=min_charge,
            debt_rounds=debt_rounds,
            tenant_queue_max=queue_maxes[0],
            queue_max=queue_maxes[1],
            batch=data.draw(self.batches),
            headroom_percent=data.draw(self.headroom),
            sticky=self.affinities != (0,),
        )
        tenants = [
            Tenant(*row) for row in zip(sorted(TIER_OF)[1:], weights[1:], caps[1:], strict=True)
        ]
        self.both = self.side_by_side(rules, tiers, tenants)
        self.both.set_engine("one", slots)

    @rule(
        tenant=TENANTS,
        count=st.integers(1, 3),
        cost=st.integers(1, 12),
        size=st.integers(1, 5),
        priority=st.integers(0, 2),
        deadline=DEADLINES,
        group=PICKS,
    )
    def submit(self, tenant, count, cost, size, priority, deadline, group):
        for _ in range(count):
            self.both.submit(
                tenant,
                TIER_OF[tenant],
                cost=cost,
                size=size,
                priority=priority,
                deadline_us=None if deadline is None else self.both.now_us + deadline,
                group=self.groups[group % len(self.groups)],
                affinity=self.affinities[group % len(self.affinities)],
            )

    @rule(by_us=st.integers(0, 2))
    def advance(self, by_us):
        self.both.advance(by_us)

    @precondition(lambda self: self.both.waiting())
    @rule(pick=PICKS)
    def cancel(self, pick):
        waiting = self.both.waiting()
        self.both.cancel(waiting[pick % len(waiting)])

    @precondition(lambda self: self.both.running())
    @rule(pick=PICKS)
    def cancel_a_running_one(self, pick):
        running = self.both.running()
        self.both.cancel(running[pick % len(running)])

    @precondition(lambda self: self.both.waiting())
    @rule(pick=PICKS, priority=st.integers(0, 2), deadline=DEADLINES)
    def change(self, pick, priority, deadline):
        waiting = self.both.waiting()
        deadline_us = None if deadline is None else self.both.now_us + deadline
        self.both.change(waiting[pick % len(waiting)], priority, deadline_us)

    @precondition(lambda self: self.both.running())
    @rule(pick=PICKS, cost=st.integers(0, 20))
    def settle(self, pick, cost):
        running = self.both.running()
        self.both.settle(running[pick % len(running)], cost)

    @precondition(lambda self: self.both.running())
    @rule(
        pick=PICKS,
        outcome=st.sampled_from([Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED]),
        cost=st.none() | st.integers(0, 20),
        executed=st.sampled_from([True, True, True, False]),
        go_on=st.booleans(),
    )
    def finish(self, pick, outcome, cost, executed, go_on):
        running = self.both.running()
        self.both.finish(
            running[pick % len(running)], outcome=outcome, cost=cost, executed=executed
        )
        if go_on:
            self.both.advance()

    @rule(tenant=TENANTS, weight=WEIGHTS, cap=CAPS)
    def set_tenant(self, tenant, weight, cap):
        self.both.set_tenant(Tenant(tenant, weight, cap))

    @rule(quantum=QUANTA)
    def set_quantum(self, quantum):
        self.both.set_quantum(quantum)

    @rule(name=st.sampled_from(["one", "two"]), slots=st.integers(0, 4))
    def set_engine(self, name, slots):
        self.both.set_engine(name, slots)

    @invariant()
    def no_slot_is_free_after_advance_while_an_eligible_ticket_waits(self):
        if not hasattr(self, "both") or not self.both.calls[-1].startswith("advance"):
            return
        naive = self.both.naive
        if naive.view()["slots_free"] and naive.since is None:
            kept = naive.keeps_the_rest()
            assert not [t for t in naive.tiers if naive._eligible(t, first=True, kept=kept)]


class HeadroomMachine(SchedulerMachine):
    """Slot mode, with slots kept for tenants that hold none."""

    headroom = st.sampled_from([1, 25, 50, 90])


class StickyMachine(SchedulerMachine):
    """Slot mode, with tickets that belong together."""

    affinities = (0, 1, 2, 3, 2**48)


class BatchMachine(SchedulerMachine):
    """Batch mode: tickets of many tenants share a slot."""

    batches = BATCHES
    groups = ("x", "y")


TestSlotMode = SchedulerMachine.TestCase
TestHeadroom = HeadroomMachine.TestCase
TestSticky = StickyMachine.TestCase
TestBatchMode = BatchMachine.TestCase
