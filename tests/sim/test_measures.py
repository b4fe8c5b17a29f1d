# SPDX-License-Identifier: Apache-2.0
"""Measures say who was backlogged, how fair it was, who held what, and who was overtaken."""

import pytest
from sim.conftest import asks

from taketurns.sim.measures.bins import BINS
from taketurns.sim.measures.collect import Collected

SPAN = BINS * 1_000_000


def one(name, tenant, arrived, admitted, finished, tokens=(100, 50)):
    request = asks(name, round(arrived * 1e6), tenant=tenant, tokens=tokens)
    request.admitted_us = request.first_us = round(admitted * 1e6)
    request.finished_us = round(finished * 1e6)
    return request


def told(weights, requests):
    seen = Collected(SPAN, weights, SPAN)
    events = []
    for request in requests:
        events.append((request.arrived_us, 0, seen.arrived, request))
        events.append((request.admitted_us, 1, seen.admitted, request))
        events.append((request.finished_us, 2, seen.finished, request))
    for _, _, tell, request in sorted(events, key=lambda event: event[:2]):
        tell(request)
    seen.close(SPAN)
    return seen.bins, seen.timeline


def test_equal_service_among_the_backlogged_is_fair_whatever_the_others_got():
    rest = [one(f"{t}-waits", t, 0, 39.5, 39.6) for t in "ab"]
    bins, timeline = told({}, [one("a", "a", 0, 0, 30), one("b", "b", 0, 0, 30), *rest])
    assert bins.figures(timeline) == {
        "jain": pytest.approx(1),
        "misallocated": pytest.approx(0, abs=0.01),
    }


def test_service_for_one_of_two_backlogged_is_half_misallocated():
    rest = [one(f"{t}-waits", t, 0, 39.9, 39.95, (1, 1)) for t in "ab"]
    bins, timeline = told({}, [one("a", "a", 0, 0, 39), *rest])
    figures = bins.figures(timeline)
    assert figures["jain"] == pytest.approx(0.5, abs=0.02)
    assert figures["misallocated"] == pytest.approx(0.5, abs=0.02)


def test_weights_say_what_is_fair():
    rest = [one(f"{t}-waits", t, 0, 39.9, 39.95, (1, 1)) for t in "ab"]
    bins, timeline = told(
        {"a": 3}, [one("a", "a", 0, 0, 39, (300, 150)), one("b", "b", 0, 0, 39), *rest]
    )
    assert bins.figures(timeline)["jain"] == pytest.approx(1, abs=0.01)


def test_who_is_not_backlogged_throughout_is_not_held_against_the_others():
    bins, timeline = told({}, [one("a", "a", 0, 0, 39), one("b", "b", 0.5, 39.2, 39.3, (1, 1))])
    assert bins.figures(timeline) == {"jain": 1.0, "misallocated": 0.0}
    assert bins.served(timeline)[5]["a"] == pytest.approx(200 / 39)


def test_what_still_waits_at_the_end_counts_as_backlogged():
    seen = Collected(SPAN, {}, SPAN)
    for tenant in "ab":
        seen.arrived(asks(tenant, tenant=tenant))
    seen.close(100_000_000)
    assert set(map(frozenset, seen.timeline.full)) == {frozenset("ab")}
    assert seen.bins.figures(seen.timeline)["jain"] == 1.0


def test_tenants_figures_count_overtaking_holding_and_early_ones():
    seen = Collected(SPAN, {}, SPAN, early=1, held_from_us=2_000_000)
    late, quick = one("a", "a", 0, 3, 5, (2, 1)), one("b", "b", 1, 1, 4, (1, 1))
    late.number, quick.number = 0, 1
    for request in (late, quick):
        seen.arrived(request)
    seen.admitted(quick)
    seen.finished(quick)
    seen.admitted(late)
    seen.close(4_500_000)
    a, b = (seen.tenants[name].figures(seen.service) for name in "ab")
    assert (a["early"], b["early"]) == (0, 1)
    assert (a["held_s"], b["held_s"]) == (2 * 1.5, 2.0)
    assert (a["share"], b["share"]) == (0, 1)
    assert a["overtaken_p99"] == 1
    assert b["overtaken_p99"] == 0
    assert seen.figures()["served"] == 1


def test_slowdown_is_time_of_what_it_takes_alone():
    seen = Collected(SPAN, {}, SPAN)
    seen.solo = lambda request: 1_000_000.0
    for request in (one("a", "a", 0, 0, 1), one("b", "a", 0, 1, 4)):
        seen.arrived(request)
        seen.admitted(request)
        seen.finished(request)
    seen.close(SPAN)
    figures = seen.tenants["a"].figures(seen.service)
    assert figures["slowdown_p50"] == pytest.approx(1, rel=0.01)
    assert figures["slowdown_p99"] == pytest.approx(4, rel=0.01)


def test_tiers_are_looked_at_each_for_itself():
    seen = Collected(SPAN, {}, SPAN)
    plan = [
        ("a", "gold", 0, 0, 39),
        ("a", "gold", 0, 39.9, 39.95),
        ("b", "gold", 0, 0, 39),
        ("b", "gold", 0, 39.9, 39.95),
        ("c", "free", 0, 0, 39),
        ("c", "free", 0, 39.9, 39.95),
        ("d", "free", 0, 39.9, 39.95),
    ]
    made = []
    for number, (tenant, tier, *times) in enumerate(plan):
        request = one(f"{number}", tenant, *times)
        request.tier = tier
        seen.arrived(request)
        made.append(request)
    for request in sorted(made, key=lambda request: request.admitted_us):
        seen.admitted(request)
        seen.finished(request)
    seen.close(SPAN)
    figures = seen.figures()
    assert figures["misallocated:gold"] == pytest.approx(0, abs=0.02)
    assert figures["misallocated:free"] == pytest.approx(0.5, abs=0.02)
    assert figures["queued_p99_s:free"] == pytest.approx(39.9, rel=0.01)
    assert figures["slowdown_p99:free"] == 0
