# SPDX-License-Identifier: Apache-2.0
"""Each scheduler admits in the order that its rule says."""

from dataclasses import replace
from random import Random

import pytest
from sim.conftest import ROUND, asks

from taketurns.config.model import Config
from taketurns.config.pools import cost_model, pool
from taketurns.core.cost import EmaCost, RequestsCost
from taketurns.core.model import PoolRules, Tier
from taketurns.errors import ConfigError
from taketurns.ports.clock import VirtualClock
from taketurns.sim.reading import Section
from taketurns.sim.schedulers.base import Surroundings, TenantFacts
from taketurns.sim.schedulers.counters import LeastCounter
from taketurns.sim.schedulers.kinds import KINDS, read_scheduler
from taketurns.sim.schedulers.predictors import LastFive, Learned, Nothing, Oracle
from taketurns.sim.schedulers.round_robin import RoundRobin
from taketurns.sim.schedulers.rpm import PerMinute
from taketurns.sim.schedulers.weighted_turns import WeightedTurns

ONE_AT_A_TIME = replace(ROUND, requests_max=1)


def order(requests):
    """Ids in the order of their admission."""
    return [one.id for one in sorted(requests, key=lambda one: one.admitted_us)]


def backlog(**tenants):
    """So many requests of each tenant, all there at the start."""
    return [
        asks(f"{name}{number}", tenant=name) for name, n in tenants.items() for number in range(n)
    ]


@pytest.mark.parametrize("cost", ["requests", "tokens", "ema"])
def test_by_default_ours_is_what_a_gateway_is_by_default(cost):
    model = {"engines": [{"url": "http://127.0.0.1:1"}], "endpoints": ["chat"], "cost": cost}
    file = {
        "tiers": {"all": {"rank": 0}},
        "tenants": {"a": {"tier": "all"}},
        "models": {"m": model},
    }
    config = Config.model_validate(file)
    around = Surroundings(VirtualClock(), Random(0), {}, 1, print, print)
    made = read_scheduler(Section({"kind": "round-robin", "cost": cost}))(around)
    rules, theirs = pool(config, "m").rules, made.core._rules
    assert (theirs.quantum, theirs.debt_rounds) == (rules.quantum, rules.debt_rounds)
    assert theirs.min_charge_or_default == rules.min_charge_or_default
    assert made._cost == cost_model(config.models["m"])


def test_per_minute_refuses_what_goes_beyond_and_counts_a_sliding_minute(play):
    requests = [asks(str(n), n * 20_000_000) for n in range(7)]
    watched = play(lambda _around: PerMinute(3), requests)
    # A minute holds the request that is exactly a minute old, so every fourth is refused.
    assert watched.refusals == ["3"]
    assert watched.done == ["0", "1", "2", "4", "5", "6"]


def test_weighted_turns_give_each_tenant_as_many_requests_as_its_weight(play):
    requests = backlog(a=4, b=4)
    play(
        lambda around: WeightedTurns(around.tenants),
        requests,
        profile=ONE_AT_A_TIME,
        tenants={"b": TenantFacts(2)},
    )
    assert order(requests) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "a3"]


def counters(*, lift, predictor=None, horizon=0):
    def make(around):
        return LeastCounter(
            EmaCost(horizon=horizon), predictor or Nothing(), around.tenants, lift=lift
        )

    return make


def test_the_least_counter_goes_first_by_weight(play):
    requests = backlog(a=3, b=6)
    tenants = {"b": TenantFacts(2)}
    play(counters(lift=True), requests, profile=ONE_AT_A_TIME, tenants=tenants)
    assert order(requests) == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "b4", "b5"]


@pytest.mark.parametrize(("lift", "served"), [(True, 2), (False, 4)])
def test_who_comes_back_has_saved_up_nothing_where_counters_are_lifted(play, lift, served):
    early = [asks(f"a{n}", tenant="a") for n in range(20)]
    late = [asks(f"b{n}", 25_000, tenant="b") for n in range(8)]
    requests = early + late
    play(counters(lift=lift), requests, profile=ONE_AT_A_TIME)
    begun = next(one for one in order(requests) if one.startswith("b"))
    after = order(requests)[order(requests).index(begun) :]
    assert sum(one.startswith("b") for one in after[:4]) == served


def test_after_all_were_idle_a_counter_is_lifted_to_that_of_the_last_to_leave(play):
    early = [asks(f"a{n}", tenant="a") for n in range(4)]
    late = [asks(f"{t}{n}", 10**8, tenant=t) for n in range(4, 8) for t in "ab"]
    requests = early + late
    play(counters(lift=True), requests, profile=ONE_AT_A_TIME)
    assert sorted(order(requests)[4:6]) == ["a4", "b4"]


def test_predictors_foresee_what_they_say():
    request = asks("x", tokens=(10, 100))
    assert Nothing().expected(request) == 0
    assert Oracle(0, Random(1)).expected(request) == 100
    errors = Oracle(0.5, Random(1))
    guesses = [errors.expected(request) for _ in range(200)]
    assert 50 <= min(guesses) < 60
    assert 140 < max(guesses) <= 150
    last_five = LastFive()
    assert last_five.expected(request) == 0
    last_five.seen(request)
    last_five.seen(asks("y", tokens=(10, 50)))
    assert last_five.expected(request) == 90
    learned = Learned(40)
    assert learned.expected(request) == 40
    learned.seen(request)
    assert learned.expected(request) == 48


def ours(quantum=1_000, *, cost=None, slots=None, shared_queue=False):
    def make(around):
        rules = PoolRules(quantum=quantum, min_charge=0, shared_queue=shared_queue)
        tiers = (Tier("all"),)
        return RoundRobin(rules, tiers, cost or RequestsCost(), Learned(5), around, slots=slots)

    return make


def test_the_production_scheduler_takes_turns(play):
    requests = backlog(a=4, b=2)
    play(ours(), requests, profile=ONE_AT_A_TIME)
    assert order(requests) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_with_slots_what_comes_first_has_one_before_the_others_are_there(play):
    requests = backlog(a=4, b=2)
    play(ours(slots=1), requests)
    # Nobody stood against the first; then a, which waits, and b, which is new, alternate.
    assert order(requests) == ["a0", "a1", "b0", "a2", "b1", "a3"]


def test_its_tickets_are_settled_as_tokens_come_and_to_what_they_were(play):
    request = asks("a", tokens=(10, 40))
    standing, final = [], []

    class Watching(RoundRobin):
        def decoded(self, engine, step):
            super().decoded(engine, step)
            standing.append(request.standing)

    def make(around):
        rules = PoolRules(quantum=10, min_charge=0)
        made = Watching(rules, (Tier("all"),), EmaCost(horizon=8), Learned(20), around)
        settle, finish = made.core.settle, made.core.finish
        made.core.settle = lambda name, cost: (
            name == "a" and final.append(cost),
            settle(name, cost),
        )

        def finish_and_note(name, outcome, **given):
            ended = finish(name, outcome, **given)
            final.append((name, ended.cost))
            return ended

        made.core.finish = finish_and_note
        return made

    others = [asks(f"b{n}", n * 3_000, tokens=(10, 1), tenant="b") for n in range(1, 14)]
    play(make, [request, *others])
    settled = [cost for cost in final if isinstance(cost, int)]
    # With 11 tokens eight more are reserved; with 21 and 31 it has more than was expected.
    assert settled == [10 + 2 * 19, 10 + 2 * 21, 10 + 2 * 31]
    assert ("a", 10 + 2 * 40) in final


def test_more_slots_than_memory_let_granted_tickets_wait_inside_the_engine(play):
    requests = backlog(a=1, b=3)
    watched = play(ours(slots=8), requests, profile=ONE_AT_A_TIME)
    assert watched.done == ["a0", "b0", "b1", "b2"]
    assert watched.run.scheduler.core.running == 0


def test_a_ticket_that_waits_too_long_expires(play):
    first = asks("a", tokens=(10, 60))
    late = asks("b", deadline_us=5_000, priority=900)
    watched = play(ours(), [first, late], profile=ONE_AT_A_TIME)
    assert watched.late == ["b"]
    assert watched.done == ["a"]


def test_what_its_queue_does_not_take_is_refused(play):
    def make(around):
        rules = PoolRules(quantum=10, tenant_queue_max=2)
        return RoundRobin(rules, (Tier("all"),), RequestsCost(), Learned(5), around)

    watched = play(make, backlog(a=4), profile=ONE_AT_A_TIME)
    assert watched.refusals == ["a2", "a3"]


def test_one_shared_queue_goes_by_priority_then_deadline(play):
    requests = [
        asks("low", priority=9),
        asks("late", priority=1, deadline_us=10**9),
        asks("soon", priority=1, deadline_us=10**8, tenant="b"),
    ]
    play(ours(shared_queue=True), requests, profile=ONE_AT_A_TIME)
    assert order(requests) == ["soon", "late", "low"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_serves_everything_or_refuses_it(play, kind):
    value = {"kind": kind} | {"rpm": {"limit": 2}, "fleet": {"gateways": 2, "slots": 4}}.get(
        kind, {}
    )
    requests = backlog(a=5, b=3, c=1)
    watched = play(read_scheduler(Section(value)), requests)
    assert sorted(watched.done + watched.refusals) == sorted(one.id for one in requests)
    assert watched.run.scheduler.waiting == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"kind": "round-robbin"}, "Did you mean 'round-robin'"),
        ({"kind": "round-robin", "quantum": 0}, "quantum: must be at least 1"),
        ({"kind": "round-robin", "quantun": 5}, "Did you mean 'quantum'"),
        ({"kind": "rpm"}, "limit: is missing"),
        ({"kind": "vtc", "predict": "magic"}, "'magic' is unknown"),
        ({"kind": "vtc", "error": 2}, "error: must be 0 to 1"),
        ({"kind": "round-robin", "headroom": 5}, "headroom: goes with slots only"),
        ({"kind": "fleet", "gateways": 3, "slots": 2}, "slots: must be at least 3"),
    ],
)
def test_a_scheduler_that_makes_no_sense_is_a_fault_of_the_file(value, words):
    with pytest.raises(ConfigError, match=words):
        read_scheduler(Section(value))
