# SPDX-License-Identifier: Apache-2.0
"""Limits and wait targets refuse in a simulation what they would refuse in production."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from sim.conftest import asks
from sim.test_replay import record, run

from taketurns.core.cost import RequestsCost
from taketurns.core.limit_rules import LimitRule, Span, Unit
from taketurns.core.model import PoolRules, Tier
from taketurns.errors import ConfigError
from taketurns.sim.engines.slots import SlotsEngine, SlotsProfile
from taketurns.sim.experiment import run_all, run_once
from taketurns.sim.measures.targets import Truth
from taketurns.sim.scenario import load, read
from taketurns.sim.schedulers.gate import GateRules
from taketurns.sim.schedulers.predictors import Nothing
from taketurns.sim.schedulers.round_robin import RoundRobin

S = 1_000_000
ONE = partial(SlotsEngine, SlotsProfile(slots=1, request_us=S, input_us=0, output_us=0))
"""An engine that takes a second for each request."""


def ours(*limits, targets=None, **rules):
    pool = PoolRules(quantum=1_000, throttle=bool(targets), **rules)
    gate = GateRules(targets or {}, limits, "chat", "chat")
    return lambda around: RoundRobin(
        pool, [Tier("all")], RequestsCost(), Nothing(), around, slots=1, gate=gate
    )


@pytest.fixture
def slots(play):
    return lambda scheduler, requests: play(scheduler, requests, profile=ONE, model=None)


def minute(limit, unit=Unit.REQUESTS, **fields):
    return LimitRule("a minute", unit, Span.SLIDING, limit, 60 * S, **fields)


def test_a_limit_refuses_what_is_over_it_until_its_window_has_passed(slots):
    seen = slots(ours(minute(2)), [asks(f"{at}", at * S) for at in (0, 10, 20, 30, 130)])
    assert seen.refusals == ["20", "30"]
    assert [one.refused_by for one in seen.all] == ["", "", "a minute", "a minute", ""]


def test_a_limit_for_another_tenant_or_model_holds_for_nobody_here(slots):
    other = minute(0, tenant="globex"), minute(0, model="other"), minute(0, endpoint="rerank")
    assert slots(ours(*other), [asks("a")]).done == ["a"]


def test_tokens_are_settled_to_what_was_used(slots):
    # Nothing is expected, so the output counts only once it's there: 15 of 20 then.
    rule = minute(20, Unit.TOKENS)
    seen = slots(ours(rule), [asks("a", 0), asks("b", 5 * S), asks("c", 6 * S, tokens=(5, 1))])
    assert seen.refusals == ["b"]


def test_who_is_refused_by_the_queue_or_expires_gives_back_what_it_took(slots):
    parallel = LimitRule("at once", Unit.REQUESTS, Span.PARALLEL, 2)
    requests = [
        asks("runs"),
        asks("expires", 1, deadline_us=S // 2),
        asks("third", 2),
        asks("runs too", S - 1),
    ]
    seen = slots(ours(parallel), requests)
    assert seen.late == ["expires"]
    assert seen.refusals == ["third"]
    seen = slots(ours(parallel, tenant_queue_max=1), requests[:1] + requests[3:])
    assert seen.done == ["runs", "runs too"]
    seen = slots(
        ours(LimitRule("at once", Unit.REQUESTS, Span.PARALLEL, 3), queue_max=1),
        [asks("runs"), asks("waits", 1), asks("full", 2), asks("full too", 3), asks("ok", 3 * S)],
    )
    assert [one.refused_by for one in seen.all] == [
        *("", "", "pool_queue_full", "pool_queue_full", "")
    ]


def test_the_throttle_refuses_who_would_start_too_late(slots):
    # Until the pool has a rate nobody is refused.
    calm = [asks(f"calm {n}", 2 * n * S) for n in range(30)]
    over = [asks(f"{n}", 60 * S + n * S // 4, tenant="ab"[n % 2]) for n in range(240)]
    seen = slots(ours(targets={"all": 5 * S}), calm + over)
    assert {one.refused_by for one in seen.all} == {"", "throttle (share)"}
    assert len(seen.refusals) > 150
    waits = [one.admitted_us - one.arrived_us for one in seen.all if one.admitted_us >= 0]
    assert sum(wait > 5 * S for wait in waits) < len(waits) / 5


def throttled(rate):
    name, value = load("throttle")
    value |= {"duration": 20, "seeds": 1}
    value["tenants"]["tenant"]["rate"] = rate
    del value["sweep"]
    return read(name, value, Path())


def test_a_throttle_is_judged_by_the_same_run_without_it():
    figures, seen = run_once(throttled(128), "ours", 0)
    assert figures["refused"] == len(seen.targets.turned_away) > 500
    assert figures["late_without"] > 0.5 > figures["false_admits"]
    assert figures["false_rejects"] < 0.05
    assert figures["in_time_tokens_per_s"] > 2 * figures["in_time_tokens_per_s_without"]
    (row,) = run_all(throttled(20), {}, 1)
    assert row.median("refused") == row.median("false_admits") == row.median("false_rejects") == 0


def test_a_refusal_is_false_where_it_would_have_been_in_time():
    truth = Truth({"wrong", "right"}, 10 * S)
    for name, began, target in (("wrong", 1, 2), ("right", 3, 2), ("let in", 1, 2)):
        one = asks(name)
        one.target_us, one.admitted_us, one.finished_us = target * S, began * S, 9 * S
        truth.arrived(one)
        truth.admitted(one)
        truth.finished(one)
    lost = asks("lost")
    lost.target_us = S
    truth.arrived(lost)
    truth.expired(lost, 5 * S)
    truth.refused(asks("by a limit"))
    assert truth.figures() == {
        "false_rejects": 0.25,
        "late_without": 0.5,
        "in_time_tokens_per_s_without": 2 * 15 / 10,
    }


def test_a_wait_target_needs_slots():
    name, value = load("throttle")
    value["schedulers"]["ours"]["slots"] = "fit"
    with pytest.raises(ConfigError, match="wait_target: goes with slots only"):
        read(name, value, Path())


CONFIG = """\
tiers:
  production: {{rank: 0, queue_timeout: 10m{target}}}
  trial: {{rank: 1, queue_timeout: 5s}}
models:
  chat: {{endpoints: [chat], cost: ema, engines: [{{url: "http://h:1", slots: 4}}]}}
tenants:
  acme: {{tier: production}}
  globex: {{tier: production}}
  initech: {{tier: trial}}
limits: [{limits}]
store: memory
"""


def test_a_replay_says_what_a_configuration_would_have_refused(tmp_path):
    log = tmp_path / "requests.jsonl"
    names = ("acme", "globex", "acme", "initech")
    log.write_text("".join(record(0.1 * n, tenant=names[n % 4]) for n in range(400)))
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    few = "{unit: requests, per: minute, max: 50, tenant: globex, name: few}"
    tried = "{unit: requests, per: minute, max: 1, tenant: acme, mode: shadow}"
    first.write_text(CONFIG.format(target="", limits=f"{few}, {tried}"))
    second.write_text(CONFIG.format(target=", wait_target: 10s", limits=""))
    done = run("replay", log, "--config", first, "--against", second)
    table, refusals = done.stdout.split("\n\n")
    assert table.splitlines()[0].count("against") == 6
    heads, *lines = [re.split(r"  +", line.strip()) for line in refusals.strip().splitlines()]
    assert heads == ["tenant", "refused by", "requests", "against"]
    found = {(tenant, by): (int(one), int(other)) for tenant, by, one, other in lines}
    assert found["globex", "few"] == (50, 0)
    ((before, after),) = (found[key] for key in found if key[0] == "acme")
    assert before == 0 < after
    (row,) = json.loads(run("replay", log, "--config", first, "--json").stdout)["schedulers"]
    globex = row["tenants"]["globex"]
    assert globex["refused_by:few"] == globex["refused"] == 50
    assert row["tenants"]["initech"]["expired"] > 0
    assert row["tenants"]["acme"]["refused"] == 0
