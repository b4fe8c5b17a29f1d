# SPDX-License-Identifier: Apache-2.0
"""A pool that is watched tells how long a ticket would wait, and learns from how long it did."""

import pytest

from taketurns.core.decision import Granted
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.core.regime import Correction
from taketurns.core.scheduler import Scheduler
from taketurns.core.throttle import ONE, Prediction, Why, judge

SECOND = 1_000_000
ONE_TIER = (Tier("only"),)
TWO_TIERS = (Tier("high"), Tier("low"))


class Pool:
    """A scheduler with a throttle, and an engine that takes a millisecond for each cost unit.

    It runs on a clock of its own: what runs ends when its time has come.
    """

    def __init__(self, *, slots=1, tiers=ONE_TIER, tenants=(), quantum=100, **rules):
        self.rules = PoolRules(quantum, min_charge=1, throttle=True, **rules)
        self.scheduler = Scheduler(self.rules, tiers, tenants)
        self.tier = tiers[0].name
        self.now_us = 0
        self.ends = []
        self.started = {}
        self.numbers = 0
        self.resize(slots)

    def resize(self, slots):
        self.scheduler.set_engine("engine", slots)
        self.advance()

    def ticket(self, tenant="a", cost=100, tier=None, **fields):
        self.numbers += 1
        return Ticket(f"t{self.numbers}", tenant, tier or self.tier, cost, **fields)

    def queue(self, tenant="a", cost=100, times=1, **fields):
        for _ in range(times):
            ticket = self.ticket(tenant, cost, **fields)
            assert self.scheduler.submit(ticket) is None
            self.advance()
        return ticket.id

    def advance(self):
        for decision in self.scheduler.advance(self.now_us):
            if isinstance(decision, Granted):
                took_us = 1_000 * sum(ticket.cost for ticket in decision.tickets)
                for ticket in decision.tickets:
                    self.started[ticket.id] = self.now_us
                    self.ends.append((self.now_us + took_us, ticket.id))

    def run(self, us):
        """Let time pass, and end what is done."""
        until_us = self.now_us + us
        while self.ends and min(self.ends)[0] <= until_us:
            end = min(self.ends)
            self.ends.remove(end)
            self.now_us = end[0]
            self.scheduler.finish(end[1])
            self.advance()
        self.now_us = until_us
        self.advance()

    def predict(self, tenant="a", cost=100, *, target_us=None, ahead=0, **fields):
        ticket = self.ticket(tenant, cost, **fields)
        return self.scheduler.predict(ticket, self.now_us, target_us=target_us, ahead=ahead)

    def warm(self, grants=40, tenant="warm"):
        """Let the pool work off a backlog, and be idle and forgotten for a long time."""
        self.queue(tenant, times=grants)
        self.run(grants * SECOND)
        self.run(1_000 * SECOND)
        for _ in range(200):
            self.now_us += SECOND
            self.predict("nobody", cost=1)
        self.advance()


@pytest.fixture
def pool():
    pool = Pool()
    pool.warm()
    return pool


def test_a_pool_without_a_measure_predicts_nothing():
    pool = Pool()
    pool.queue(times=9)
    assert pool.predict() == Prediction(None)


def test_with_a_slot_free_a_ticket_starts_at_once(pool):
    assert pool.predict() == Prediction(0)


def test_without_slots_nothing_is_known(pool):
    pool.resize(0)
    assert pool.predict().wait_us is None


def test_the_tenants_own_backlog_is_what_it_waits_for(pool):
    pool.queue(times=11)
    prediction = pool.predict()
    assert (prediction.own, prediction.better_tiers) == (1_000, 0)
    assert prediction.others <= 1
    assert prediction.cost_per_s == 999
    assert prediction.slot_us == 100_000
    # Ten tickets of a tenth of a second each, and half a slot's time at most for what runs.
    assert prediction.wait_us == pytest.approx(1_100_000, rel=0.01)
    assert prediction.newcomer_us == pytest.approx(200_000, rel=0.01)


def test_a_prediction_comes_true(pool):
    pool.queue("a", times=10)
    pool.queue("b", times=30)
    predicted_us = pool.predict("a").wait_us
    at_us = pool.now_us
    name = pool.queue("a")
    pool.run(10 * SECOND)
    assert pool.started[name] - at_us == pytest.approx(predicted_us, rel=0.15)


def test_only_what_has_its_priority_or_a_better_one_goes_before(pool):
    pool.queue(times=1)
    pool.queue(times=3, priority=5)
    pool.queue(times=4, priority=7)
    assert [pool.predict(priority=n).own for n in (4, 5, 6, 7)] == [0, 300, 300, 700]


def test_others_go_before_by_their_share(pool):
    pool.queue("a", times=6)
    pool.queue("b", times=40)
    pool.queue("c", times=1)
    others = pool.predict("a").others
    assert 500 <= others <= 1_000


def test_a_newcomer_waits_for_a_turn_or_two(pool):
    pool.queue("a", times=40)
    prediction = pool.predict("b")
    assert prediction.wait_us == prediction.newcomer_us == pytest.approx(200_000, rel=0.01)


def test_whoever_owes_is_no_newcomer(pool):
    pool.queue("b", cost=3_000)
    pool.queue("a", times=40)
    assert pool.predict("b").wait_us > 2 * SECOND
    assert pool.predict("c").wait_us < SECOND


def test_a_steady_sender_counts_though_it_has_nothing_queued(pool):
    quiet = Pool()
    quiet.warm()
    for _ in range(60):
        pool.predict("b", cost=30)
        for one in (pool, quiet):
            one.run(50_000)
    for one in (pool, quiet):
        one.queue("a", times=15)
    busy, alone = pool.predict("a"), quiet.predict("a")
    assert busy.others > alone.others == 0
    assert busy.wait_us > alone.wait_us


def test_what_comes_with_a_ticket_goes_before_it_and_is_offered_once(pool):
    pool.queue("z", times=20)
    ticket = pool.ticket("a")
    assert pool.scheduler.predict(ticket, pool.now_us, ahead=500).own == 500
    offered = pool.predict("nobody", cost=1).others
    for _ in range(5):
        pool.scheduler.predict(ticket, pool.now_us, ahead=500)
    first = pool.scheduler.predict(ticket, pool.now_us, ahead=200)
    for other in (pool.ticket("a"), pool.ticket("a"), ticket):
        pool.scheduler.submit(other)
    assert first.own == 200
    assert offered >= 0


def test_what_goes_before_starts_with_it_where_slots_are_free(pool):
    pool.resize(8)
    prediction = pool.predict(ahead=800)
    assert prediction.wait_us == pytest.approx(100_000, rel=0.01)
    assert prediction.newcomer_us == 0


def test_the_pace_is_that_of_the_time_in_which_tickets_waited(pool):
    pool.queue("a", times=40)
    pool.run(3 * SECOND)
    forecast = pool.scheduler._forecast
    assert forecast._pace() is forecast._busy


def test_a_look_predicts_the_same_and_counts_nothing(pool):
    pool.queue("a", times=11)
    pool.queue("b", times=5)
    demand = pool.scheduler._forecast._tiers[0].demand
    for tenant in ("a", "c"):
        before = demand.offered, demand.horizon_us, set(demand.own)
        ticket = pool.ticket(tenant)
        looked = pool.scheduler.predict(
            ticket, pool.now_us, target_us=9 * SECOND, ahead=50, counts=False
        )
        assert (demand.offered, demand.horizon_us, set(demand.own)) == before
        predicted = pool.scheduler.predict(ticket, pool.now_us, target_us=9 * SECOND, ahead=50)
        assert looked.own == predicted.own
        assert looked.wait_us == pytest.approx(predicted.wait_us, rel=0.02)
        assert demand.offered > before[0]


def test_a_look_at_a_free_slot_predicts_the_same(pool):
    ticket = pool.ticket("a")
    assert pool.scheduler.predict(ticket, pool.now_us, counts=False) == pool.predict("a")


def test_a_kept_slot_is_for_who_holds_none():
    pool = Pool(slots=4, headroom_percent=25)
    pool.warm()
    pool.queue("a", times=4)
    assert pool.scheduler.snapshot().slots_free == 1
    assert pool.predict("a").wait_us > 0
    assert pool.predict("b").wait_us == 0


def test_what_is_sent_while_everything_starts_at_once_is_expected_again(pool):
    for _ in range(20):
        pool.queue("b", cost=10)
        pool.run(100_000)
    pool.queue("a", times=5)
    others = pool.predict("a", target_us=9 * SECOND).others
    # 200 in two seconds, of which some goes before in the 400 ms of the wait.
    assert 0 < others <= 200


def test_without_slots_nothing_is_predicted(pool):
    pool.resize(0)
    assert pool.predict().wait_us is None


def test_better_tiers_go_first_and_take_their_part_of_the_rate():
    pool = Pool(tiers=TWO_TIERS)
    pool.warm()
    pool.queue("vip", times=11)
    low = pool.predict("a", tier="low")
    assert low.better_tiers == 1_000
    assert low.newcomer_us >= SECOND
    assert low.cost_per_s < pool.predict("vip", tier="high").cost_per_s
    late = judge(low, SECOND // 10)
    assert late is not None
    assert late.reason is Why.CAPACITY


def test_a_tier_is_taken_to_get_its_floor_at_least():
    rates = []
    for floor in (0, 40):
        pool = Pool(tiers=(Tier("high"), Tier("low", floor_percent=floor)))
        pool.warm()
        for _ in range(100):
            pool.predict("vip", cost=500)
            pool.run(100_000)
        pool.queue("vip", times=2)
        rates.append(pool.predict("a", tier="low").cost_per_s)
    assert rates == [49, 399]


def test_a_tier_that_holds_its_share_of_the_slots_waits_for_its_own():
    tiers = (Tier("high"), Tier("low", slot_share_percent=50))
    pool = Pool(tiers=tiers, slots=4)
    pool.warm()
    pool.queue("a", tier="low", times=12)
    prediction = pool.predict("a", tier="low")
    assert pool.predict("b").wait_us == 0
    assert prediction.cost_per_s == pytest.approx(2_000, rel=0.02)
    assert prediction.wait_us == pytest.approx(525_000, rel=0.02)


def test_a_capped_tenant_waits_for_its_own():
    pool = Pool(slots=4, tenants=[Tenant("a", cap=1)])
    pool.warm()
    pool.queue("a", times=6)
    assert pool.predict("a").wait_us == pytest.approx(600_000, rel=0.01)
    assert pool.predict("b").wait_us == 0
    pool.queue("b", times=30)
    assert pool.predict("a").wait_us >= 600_000
    assert pool.predict("c").wait_us < 600_000


@pytest.mark.parametrize("target_us", [0, 200_000, 2 * SECOND])
@pytest.mark.parametrize("others", [0, 1, 7])
def test_who_comes_back_when_told_is_in_time_and_earlier_is_not(pool, others, target_us):
    pool.queue("a", times=60)
    for number in range(others):
        pool.queue(f"other-{number}", times=30)
    late = judge(pool.predict("a", target_us=target_us), target_us)
    assert late is not None
    pool.run(late.retry_after_us // 4)
    assert judge(pool.predict("a", target_us=target_us), target_us) is not None
    pool.run(late.retry_after_us - late.retry_after_us // 4)
    assert judge(pool.predict("a", target_us=target_us), target_us) is None


def test_a_shared_queue_has_one_backlog():
    pool = Pool(shared_queue=True)
    pool.warm()
    pool.queue("a", times=11)
    pool.scheduler.set_tenant(Tenant("a", 5))
    prediction = pool.predict("b")
    assert (prediction.own, prediction.others) == (1_000, 0)


def test_a_new_weight_counts_at_once(pool):
    pool.queue("a", times=11)
    pool.queue("b", times=30)
    before = pool.predict("a").others
    pool.scheduler.set_tenant(Tenant("b", 4))
    assert pool.predict("a").others > before


def test_what_leaves_the_queue_leaves_the_prediction(pool):
    names = [pool.queue("a", deadline_us=pool.now_us + SECOND) for _ in range(5)]
    pool.scheduler.cancel(names[-1])
    assert pool.predict("a").own == 300
    pool.scheduler.change(names[-2], priority=900, deadline_us=None)
    assert pool.predict("a").own == 200
    pool.now_us += 2 * SECOND
    pool.advance()
    assert pool.predict("a").own == 0
    assert pool.predict("a", priority=900).own == 100


def test_a_ticket_that_was_not_executed_took_no_time(pool):
    rate = None
    for executed in (True, False):
        pool = Pool(slots=2)
        pool.warm()
        pool.queue("a", times=20)
        for _ in range(10):
            pool.scheduler.finish(pool.ends.pop()[1], executed=executed)
            pool.advance()
        rate, before = pool.predict("a").cost_per_s, rate
    assert rate < before


def test_the_rate_is_known_from_a_pool_that_never_had_a_backlog():
    pool = Pool()
    for _ in range(20):
        pool.queue()
        pool.run(200_000)
    pool.queue(times=11)
    assert pool.predict().wait_us == pytest.approx(1_100_000, rel=0.02)


def test_a_batch_is_one_grant_of_many_tickets():
    pool = Pool(batch=BatchRules(size_max=1_000, items_max=4))
    pool.warm(grants=80)
    pool.queue(times=41)
    prediction = pool.predict()
    assert prediction.slot_us == pytest.approx(400_000, rel=0.05)
    assert prediction.cost_per_s == pytest.approx(1_000, rel=0.05)


def corrections(pool):
    tier = pool.scheduler._forecast._tiers[0]
    return tier.calm, tier.overload


def test_a_calm_pool_errs_on_the_side_of_admitting_and_an_overloaded_one_does_not(pool):
    pool.queue("a", times=12)
    assert pool.predict("a", target_us=2 * SECOND).factor == Correction.LEAST
    pool.queue("a", times=30)
    assert pool.predict("a", target_us=2 * SECOND).factor == ONE * 3 // 2
    pool.run(60 * SECOND)
    pool.queue("a", times=2)
    for _ in range(200):
        pool.predict("b", cost=500, target_us=2 * SECOND)
    assert pool.predict("a", target_us=2 * SECOND).factor == ONE * 3 // 2


def admitted(pool, target_us, tenant="a", **fields):
    """Predict and queue a ticket, as the gateway does with those in time."""
    ticket = pool.ticket(tenant, **fields)
    pool.scheduler.predict(ticket, pool.now_us, target_us=target_us)
    pool.scheduler.submit(ticket)
    pool.advance()


def test_tickets_in_time_lower_the_correction_and_late_ones_raise_it(pool):
    calm, _ = corrections(pool)
    calm.factor = ONE
    admitted(pool, 3 * SECOND)
    assert calm.factor < ONE
    pool.queue("a", times=9)
    calm.factor = ONE
    admitted(pool, 3 * SECOND)
    pool.scheduler.submit(pool.ticket("b", cost=4_000))
    pool.run(6 * SECOND)
    assert calm.factor > ONE


def test_the_last_ticket_of_a_request_teaches_though_it_starts_at_once(pool):
    calm, _ = corrections(pool)
    calm.factor = ONE
    ticket = pool.ticket("a")
    assert pool.scheduler.predict(ticket, pool.now_us, target_us=SECOND, ahead=100).wait_us > 0
    assert calm.factor == ONE
    pool.scheduler.submit(ticket)
    pool.advance()
    assert calm.factor < ONE


def test_a_ticket_without_a_target_teaches_nothing(pool):
    calm, _ = corrections(pool)
    calm.factor = ONE
    admitted(pool, None)
    assert calm.factor == ONE


def test_a_ticket_that_expires_was_late(pool):
    calm, _ = corrections(pool)
    pool.queue("a", cost=1_500)
    calm.factor = ONE
    admitted(pool, None, deadline_us=pool.now_us + SECOND)
    pool.run(SECOND)
    assert calm.factor > ONE


def test_a_ticket_that_is_cancelled_or_changed_teaches_nothing(pool):
    calm, _ = corrections(pool)
    pool.queue("a", cost=1_500)
    calm.factor = ONE
    for _ in range(2):
        admitted(pool, SECOND)
    pool.scheduler.cancel(f"t{pool.numbers}")
    pool.scheduler.change(f"t{pool.numbers - 1}", priority=1, deadline_us=None)
    pool.run(5 * SECOND)
    assert calm.factor == ONE


def test_a_ticket_that_is_queued_though_predicted_late_teaches_nothing(pool):
    calm, _ = corrections(pool)
    pool.queue("a", cost=1_500)
    pool.queue("a", times=5)
    calm.factor = ONE
    admitted(pool, 100_000)
    pool.run(5 * SECOND)
    assert calm.factor == ONE


def test_who_was_admitted_in_one_regime_and_started_in_the_other_teaches_nothing(pool):
    calm, overload = corrections(pool)
    pool.queue("a", cost=1_500)
    before = calm.factor, overload.factor
    admitted(pool, SECOND, tenant="b")
    for _ in range(300):
        pool.predict("c", cost=500)
    pool.run(3 * SECOND)
    assert (calm.factor, overload.factor) == before


def test_only_so_many_tickets_are_followed(pool, monkeypatch):
    monkeypatch.setattr("taketurns.core.forecast.TRACKED_MAX", 2)
    pool.queue("a", cost=1_500)
    for _ in range(4):
        admitted(pool, 60 * SECOND)
    assert len(pool.scheduler._forecast._tracked) == 2


def test_nothing_is_kept_of_a_pool_that_came_to_rest(pool):
    for tenant in "abc":
        for _ in range(9):
            admitted(pool, 3 * SECOND, tenant=tenant)
    pool.run(60 * SECOND)
    pool.run(3_600 * SECOND)
    for _ in range(100):
        pool.now_us += SECOND
        pool.predict("nobody", cost=1)
    forecast = pool.scheduler._forecast
    demand = forecast._tiers[0].demand
    assert not forecast._tracked
    assert demand.backlogs.cost == 0
    assert not any(demand.backlogs._costs + demand.backlogs._weights)
    assert set(demand.own) <= {"nobody"}


def test_who_is_forgotten_between_prediction_and_queue_is_counted_all_the_same(pool):
    pool.queue("z", times=3)
    ticket = pool.ticket("a", cost=1)
    pool.scheduler.predict(ticket, pool.now_us)
    pool.scheduler._forecast._tiers[0].demand.own.pop("a")
    pool.scheduler.submit(ticket)
    assert pool.predict("a").own == 1
