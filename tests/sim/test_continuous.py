# SPDX-License-Identifier: Apache-2.0
"""A continuously batching engine takes the time that its profile says, and fills its pool."""

from dataclasses import replace

import pytest
from sim.conftest import ROUND, asks

from taketurns.core.cost import RequestsCost
from taketurns.core.model import PoolRules, Tier
from taketurns.sim.engines.continuous import ContinuousEngine
from taketurns.sim.schedulers.fcfs import FirstCome
from taketurns.sim.schedulers.predictors import Nothing
from taketurns.sim.schedulers.round_robin import RoundRobin


def first_come(_around):
    return FirstCome()


def test_one_request_takes_its_prefill_and_a_step_for_each_further_token(play):
    request = asks("a", 7)
    play(first_come, [request])
    # Prefill 10 x 10 us; then four steps of 1000 + 100 + 11, 12, 13 and 14 resident tokens.
    assert (request.admitted_us, request.first_us) == (7, 107)
    assert request.finished_us == 107 + 4 * 1_100 + 11 + 12 + 13 + 14


def test_requests_that_are_there_together_are_prefilled_together(play):
    first, second = asks("a"), asks("b", tokens=(10, 1))
    play(first_come, [first, second])
    assert first.first_us == second.first_us == second.finished_us == 200


def test_no_more_input_is_admitted_together_than_allowed_but_a_long_one_goes_alone(play):
    profile = replace(ROUND, pool_tokens=1_000)
    requests = [asks("a", tokens=(60, 30)), asks("b", tokens=(30, 30)), asks("c", tokens=(30, 30))]
    play(first_come, requests, profile=profile)
    times = [request.admitted_us for request in requests]
    assert times[0] < times[1] < times[2]


def test_a_request_waits_until_the_pool_holds_all_to_their_ends(play):
    # Each takes 60 tokens in the end: two are too much for 100 at once.
    first, second = asks("a", tokens=(30, 30)), asks("b", tokens=(30, 30))
    watched = play(first_come, [first, second])
    assert watched.done == ["a", "b"]
    assert second.admitted_us < first.finished_us
    # When a has its last token, b holds 31 tokens and more, but not 40.
    left = first.finished_us - second.admitted_us
    assert left == pytest.approx(10 * 1_100, rel=0.3)


@pytest.mark.parametrize("pool", [61, 75, 90, 119])
def test_the_pool_never_holds_more_than_it_can(play, pool):
    held = []

    class Weighed(ContinuousEngine):
        def _finish(self):
            held.append(self._resident)
            super()._finish()

    requests = [asks(str(n), n * 900, tokens=(10 + n % 7, 5 + 11 * n % 40)) for n in range(40)]
    profile = replace(ROUND, pool_tokens=pool)
    watched = play(first_come, requests, profile=profile, model=Weighed)
    assert sorted(watched.done) == sorted(one.id for one in requests)
    assert pool * 0.7 < max(held) < pool
    assert watched.run.engines[0]._resident == 0


def test_one_that_arrives_while_steps_are_made_is_taken_at_the_end_of_a_step(play):
    long, late = asks("a", tokens=(10, 60)), asks("b", 20_500, tokens=(10, 2))
    profile = replace(ROUND, step_token_us=0, step_request_us=0)
    play(first_come, [long, late], profile=profile)
    # Prefill until 100; steps end at 1100, 2100, ...
    assert late.admitted_us == 21_100


def test_one_that_arrives_just_after_an_admission_waits_for_the_steps_between(play):
    long, late = asks("a", tokens=(10, 60)), asks("b", 150, tokens=(10, 2))
    profile = replace(ROUND, step_token_us=0, step_request_us=0)
    play(first_come, [long, late], profile=profile)
    assert late.admitted_us == 100 + 10 * 1_000


def test_an_engine_takes_no_more_requests_than_it_may(play):
    requests = [asks(str(n), tokens=(1, 20)) for n in range(3)]
    play(first_come, requests, profile=replace(ROUND, requests_max=2))
    assert requests[2].admitted_us >= requests[0].finished_us


def test_several_engines_share_what_waits(play):
    requests = [asks(str(n), tokens=(30, 30)) for n in range(4)]
    watched = play(first_come, requests, engines=4)
    assert sorted(request.engine for request in requests) == [0, 1, 2, 3]
    assert len({request.finished_us for request in requests}) == 1
    assert [engine.idle for engine in watched.run.engines] == [True] * 4


def test_what_is_granted_while_others_wait_is_taken_at_the_end_of_a_step(play):
    """Slots are kept for the quiet tenant: it starts though the noisy one has a backlog."""

    def make(around):
        rules = PoolRules(quantum=1_000, headroom_percent=50)
        return RoundRobin(rules, (Tier("all"),), RequestsCost(), Nothing(), around, slots=2)

    noisy = [asks(f"n{at}", tokens=(5, 60), tenant="noisy") for at in range(3)]
    quiet = asks("q", 30_500, tokens=(5, 2), tenant="quiet")
    profile = replace(ROUND, step_token_us=0, step_request_us=0)
    play(make, [*noisy, quiet], profile=profile)
    # Prefill until 50; steps end at 1050, 2050, ...
    assert quiet.admitted_us == 31_050
    assert noisy[1].admitted_us > quiet.admitted_us
