# SPDX-License-Identifier: Apache-2.0
"""Engines of slots and of batches take the time that their profile says."""

from functools import partial

import pytest
from sim.conftest import ROUND, asks

from taketurns.core.cost import TokensCost
from taketurns.core.model import BatchRules, PoolRules, Tier
from taketurns.errors import ConfigError
from taketurns.sim.engines.batches import BatchEngine, BatchProfile
from taketurns.sim.engines.continuous import ContinuousEngine
from taketurns.sim.engines.kinds import read_engine
from taketurns.sim.engines.slots import SlotsEngine, SlotsProfile
from taketurns.sim.reading import Section
from taketurns.sim.schedulers.fcfs import FirstCome
from taketurns.sim.schedulers.predictors import Learned
from taketurns.sim.schedulers.round_robin import RoundRobin


def first_come(_around):
    return FirstCome()


def slots(count, *, seats=False):
    return partial(SlotsEngine, SlotsProfile(count, 100, 10, 1_000, seats))


def batches(*, padded=False, tokens=100, items=4):
    return partial(BatchEngine, BatchProfile(1_000, 10, tokens, items, padded))


def test_a_slot_takes_a_requests_own_time_whatever_runs_beside_it(play):
    requests = [asks(str(n), 5) for n in range(3)]
    watched = play(first_come, requests, profile=slots(2), model=None)
    assert requests[0].first_us == requests[1].first_us == 5 + 100 + 10 * 10
    assert requests[0].finished_us == 205 + 5 * 1_000
    assert requests[2].admitted_us == requests[0].finished_us
    engine = watched.run.engines[0]
    assert (engine.idle, engine.busy_us) == (True, requests[2].finished_us - 5)


def test_a_wide_request_takes_as_many_seats_as_it_has_input(play):
    wide, narrow = asks("wide", tokens=(2, 1)), asks("narrow", tokens=(1, 1))
    too_wide = asks("too wide", tokens=(9, 1))
    play(first_come, [wide, narrow, too_wide], profile=slots(3, seats=True), model=None)
    assert wide.admitted_us == narrow.admitted_us == 0
    assert too_wide.admitted_us == wide.finished_us == 1_100


@pytest.mark.parametrize(("padded", "took"), [(False, 1_600), (True, 1_800)])
def test_a_batch_takes_the_time_of_its_tokens_padded_or_not(play, padded, took):
    requests = [asks("a", tokens=(40, 1)), asks("b", tokens=(20, 1))]
    play(first_come, requests, profile=batches(padded=padded), model=None)
    assert [one.finished_us for one in requests] == [took, took]


def test_what_is_there_goes_together_as_far_as_it_fits(play):
    lengths = [60, 40, 1, 200, 5, 5, 5, 5, 5]
    requests = [asks(str(n), tokens=(length, 1)) for n, length in enumerate(lengths)]
    watched = play(first_come, requests, profile=batches(), model=None)
    together = {}
    for one in requests:
        together.setdefault(one.admitted_us, []).append(one.input_tokens)
    # At most 100 tokens or four items; one that is longer than a batch goes alone.
    assert list(together.values()) == [[60, 40], [1], [200], [5, 5, 5, 5], [5]]
    assert watched.run.figures()["batch_fill"] == pytest.approx(326 / 500)


def test_the_production_scheduler_fills_batches_with_items_of_many_tenants(play):
    def make(around):
        rules = PoolRules(quantum=10, batch=BatchRules(100, 4))
        cost = TokensCost(1, 1)
        return RoundRobin(rules, (Tier("all"),), cost, Learned(1), around, slots=1)

    requests = [asks(f"{t}{n}", tokens=(10, 1), tenant=t) for t in "ab" for n in range(6)]
    play(make, requests, profile=batches(), model=None)
    together = {}
    for one in requests:
        together.setdefault(one.admitted_us, []).append(one.tenant)
    # The first goes alone: nothing else was there.
    assert [sorted(tenants) for tenants in list(together.values())][:3] == [
        ["a"],
        ["a", "a", "b", "b"],
        ["a", "a", "b", "b"],
    ]
    assert sum(len(tenants) for tenants in together.values()) == 12


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"kind": "slot"}, "Did you mean 'slots'"),
        ({"kind": "slots"}, "slots: is missing"),
        ({"kind": "batches", "base_ms": 1}, "token_ms: is missing"),
        ({"overhead_ms": [1]}, r"must be a number or \[least, most\]"),
        ({"profile": "h100"}, "'h100' is unknown"),
        ({"step_ms": -1}, "must be at least 0"),
    ],
)
def test_an_engine_that_makes_no_sense_is_a_fault_of_the_file(value, words):
    with pytest.raises(ConfigError, match=words):
        read_engine(Section(value))


@pytest.mark.parametrize(
    "engine",
    [
        slots(2),
        slots(20, seats=True),
        batches(),
        partial(ContinuousEngine, ROUND),
    ],
)
def test_a_request_that_is_alone_takes_its_time_alone(play, engine):
    request = asks("a", 7, tokens=(12, 9))
    watched = play(first_come, [request], profile=engine, model=None)
    solo_us = watched.run.engines[0].solo_us(request)
    assert request.finished_us - request.arrived_us == pytest.approx(solo_us, abs=5)
