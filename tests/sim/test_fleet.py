# SPDX-License-Identifier: Apache-2.0
"""Several gateways share fairly with shared state, and not without; and outlive each other."""

from functools import partial
from pathlib import Path

import pytest
from sim.conftest import asks

from taketurns.sim.engines.slots import SlotsEngine, SlotsProfile
from taketurns.sim.experiment import run_all
from taketurns.sim.reading import Section
from taketurns.sim.scenario import load, read
from taketurns.sim.schedulers.kinds import read_scheduler

SLOTS = partial(SlotsEngine, SlotsProfile(4, 100_000, 0, 0))


def fleet(**value):
    base = {"kind": "fleet", "gateways": 2, "slots": 4, "cost": "requests", "quantum": 1_000}
    return read_scheduler(Section(base | value))


def test_weights_hold_over_two_gateways_with_shared_state_only():
    name, value = load("dynamo-skew")
    value["duration"] = 10
    rows = {row.scheduler: row.runs[0] for row in run_all(read(name, value, Path()), {}, 1)}
    premium = {name: run["premium.early"] for name, run in rows.items()}
    for name in ("one gateway", "two skewed, shared", "two swapped, shared"):
        assert 250 <= premium[name] <= 257, name
    assert premium["two skewed"] == pytest.approx(160, abs=3)


def test_a_ticket_takes_its_time_to_the_shared_state_and_back(play):
    requests = [asks(str(n)) for n in range(5)]
    play(fleet(delay_ms=7), requests, profile=SLOTS, model=None)
    assert [one.admitted_us for one in requests] == [7_000] * 4 + [7_000 + 100_000 + 7_000]


def test_what_waits_at_a_gateway_that_dies_is_lost_and_the_rest_is_served(play):
    requests = [asks(str(n), n * 1_000, tenant="ab"[n % 2]) for n in range(200)]
    scheduler = fleet(ingress={"a": [1, 0], "b": [0, 1]}, gateway_dies=0.15)
    watched = play(scheduler, requests, profile=SLOTS, model=None)
    assert len(watched.done) + len(watched.late) == 200
    assert {name for name in watched.late if int(name) % 2 == 0} == set()
    assert len(watched.late) > 50
    assert watched.run.scheduler.waiting == 0


def test_the_others_take_over_the_slots_of_a_dead_gateway_when_they_notice(play):
    def done(notice):
        requests = [asks(str(n), tenant="a") for n in range(100)]
        scheduler = fleet(state="local", ingress={"a": [1, 0]}, gateway_dies=0.1, notice=notice)
        return max(
            one.finished_us for one in play(scheduler, requests, profile=SLOTS, model=None).all
        )

    assert done(0.2) < 0.6 * done(60)


def test_while_the_store_is_lost_gateways_go_on_alone(play):
    early = [asks(str(n), n * 10_000, tenant="ab"[n % 2]) for n in range(100)]
    watched = play(fleet(store_lost=[0.3, 0.6]), early, profile=SLOTS, model=None)
    assert len(watched.done) == 100
    during = [one for one in early if 0.3e6 <= one.arrived_us < 0.6e6]
    assert any(one.admitted_us < 0.6e6 for one in during)
