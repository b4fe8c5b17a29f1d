# SPDX-License-Identifier: Apache-2.0
"""The published figures come out, and ours are where the documentation says.

A few runs of each here; more of them, and the whole page, with TAKETURNS_PROOF=1.
"""

import os
from functools import cache
from pathlib import Path

import pytest

from taketurns.sim.experiment import run_all
from taketurns.sim.scenario import load, read

SEEDS = 20 if os.environ.get("TAKETURNS_PROOF") else 1
BOUND = 2 * max(1_024, 2 * 10_000)
"""VTC's bound 2U on accumulated difference: longest input, or the pool's tokens as output."""

NEEDED = {
    "vtc-table2": (
        "FCFS",
        "LCF",
        "VTC",
        "VTC predict",
        "VTC oracle",
        *(f"RPM {n}" for n in (5, 10, 15, 20, 30)),
        "ours",
        "quantum 20000",
    ),
    "vtc-overload": ("FCFS", "VTC", "VTC 50 %", "VTC oracle", "ours", "reserved whole"),
    "vtc-short-long": ("FCFS", "VTC", "ours", "requests", "reserved whole"),
    "vtc-in-out-short": ("FCFS",),
}
"""What a quick run looks at: schedulers of the fast scenarios."""

pytestmark = pytest.mark.slow


@cache
def rows(name):
    scenario_name, value = load(name)
    if SEEDS == 1:
        value["schedulers"] = {key: value["schedulers"][key] for key in NEEDED[name]}
    scenario = read(scenario_name, value, Path())
    return scenario, {row.scheduler: row for row in run_all(scenario, {}, SEEDS)}


def average(name, scheduler):
    return rows(name)[1][scheduler].median("average_difference")


def published(name):
    return rows(name)[0].published.items()


def test_served_counts_and_throughput_of_the_real_trace_are_as_published():
    for scheduler, figures in published("vtc-table2"):
        row = rows("vtc-table2")[1][scheduler]
        assert abs(row.median("served") - figures["served"]) <= 2, scheduler
        assert row.median("tokens_per_s") == pytest.approx(figures["tokens_per_s"], rel=0.03)


def test_average_differences_of_the_real_trace_are_as_published():
    for scheduler, figures in published("vtc-table2"):
        near = 0.25 if scheduler.startswith("RPM") else 0.1
        expected = pytest.approx(figures["average_difference"], rel=near)
        assert average("vtc-table2", scheduler) == expected, scheduler


@pytest.mark.parametrize(
    ("name", "scheduler", "near"),
    [
        ("vtc-overload", "FCFS", 0.1),
        ("vtc-overload", "VTC", 0.25),
        ("vtc-short-long", "VTC", 0.3),
        ("vtc-in-out-short", "FCFS", 0.1),
    ],
)
def test_average_differences_of_the_suites_are_near_the_published_ones(name, scheduler, near):
    expected = dict(published(name))[scheduler]["average_difference"]
    assert average(name, scheduler) == pytest.approx(expected, rel=near)


def test_the_order_of_the_rules_is_the_published_one():
    real = "vtc-table2"
    assert average(real, "FCFS") > average(real, "LCF") > average(real, "VTC")
    assert average(real, "RPM 5") < average(real, "RPM 15") < average(real, "RPM 30")
    oracle, half, plain = (average("vtc-overload", f"VTC{x}") for x in (" oracle", " 50 %", ""))
    assert oracle < half < plain < average("vtc-overload", "FCFS")


@pytest.mark.parametrize("name", ["vtc-overload", "vtc-short-long"])
def test_backlogged_tenants_stay_within_twice_the_bound_and_by_arrival_they_do_not(name):
    found = rows(name)[1]
    for scheduler in ("VTC", "ours", "reserved whole"):
        assert found[scheduler].spread("accumulated_difference")[1] < BOUND, scheduler
    assert found["FCFS"].median("accumulated_difference") > BOUND


@pytest.mark.parametrize("name", ["vtc-table2", "vtc-overload", "vtc-short-long"])
def test_ours_differs_less_on_average_than_vtc(name):
    assert average(name, "ours") <= average(name, "VTC")


def test_counting_requests_and_large_quanta_lose():
    assert average("vtc-short-long", "requests") > 5 * average("vtc-short-long", "ours")
    assert average("vtc-table2", "quantum 20000") > 1.3 * average("vtc-table2", "ours")


def test_the_same_seed_gives_the_same_figures():
    name, value = load("vtc-in-out-short")
    value["duration"] = 30
    scenario = read(name, value, Path())
    first, second = (run_all(scenario, {}, 2) for _ in range(2))
    assert [row.runs for row in first] == [row.runs for row in second]
    assert first[0].runs[0] != first[0].runs[1]
