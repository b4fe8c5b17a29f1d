# SPDX-License-Identifier: Apache-2.0
"""What others published of fairness, beside VTC, comes out of our scenarios."""

from fractions import Fraction
from pathlib import Path

import pytest

from taketurns.core.fairness import max_min_shares
from taketurns.sim.experiment import run_all
from taketurns.sim.scenario import load, read


def runs(name, *schedulers, **changes):
    _, value = load(name)
    value |= changes
    value["schedulers"] = {key: value["schedulers"][key] for key in schedulers}
    value.pop("sweep", None)
    scenario = read(name, value, Path())
    return scenario, {row.scheduler: row.runs[0] for row in run_all(scenario, {}, 1)}


@pytest.mark.parametrize(
    ("name", "demands", "margin"),
    [
        # Seats wanted: clients x seats x the share of time in which one of them asks.
        ("apf-equal", {"one": 8, "two": 7 * Fraction(1, 2) / Fraction(3, 4)}, 0.01),
        ("apf-unequal", {"one": 2, "two": 1}, 0.01),
        ("apf-widths", {"wide": 2 * 13, "narrow": 13}, 0.155),
    ],
)
def test_seats_are_shared_as_kubernetes_wants_it(name, demands, margin):
    """Margins are those of the tests of its API priority and fairness."""
    scenario, found = runs(name, "ours")
    seats = {"apf-equal": 4, "apf-unequal": 3, "apf-widths": 6}[name]
    scaled = {tenant: round(100 * wanted) for tenant, wanted in demands.items()}
    fair = max_min_shares(100 * seats, scaled, dict.fromkeys(demands, 1))
    took = scenario.duration_s - scenario.held_from_s
    for tenant, share in fair.items():
        got = found["ours"][f"{tenant}.held_s"] / took
        assert got == pytest.approx(float(share) / 100, rel=margin), tenant


def test_first_come_first_served_shares_seats_by_what_is_asked():
    _, found = runs("apf-widths", "ours", "FCFS")
    ratios = {key: run["wide.held_s"] / run["narrow.held_s"] for key, run in found.items()}
    assert ratios["FCFS"] > 1.8
    assert ratios["ours"] == pytest.approx(1, abs=0.02)


def test_who_was_held_back_has_saved_up_nothing():
    _, found = runs("apf-windup", "ours")
    run = found["ours"]
    assert run["late.held_s"] == pytest.approx(run["greedy.held_s"], rel=0.05)


def test_a_burst_of_ten_thousand_keeps_first_come_first_served_waiting_and_ours_not():
    """Cohere tells of 553 s behind a burst of 10,000 requests."""
    _, found = runs("noisy-neighbour", "FCFS", "ours")
    assert found["FCFS"]["quiet.queued_max_s"] == pytest.approx(553, rel=0.03)
    assert found["ours"]["quiet.queued_max_s"] < 4
    same = pytest.approx(found["FCFS"]["tokens_per_s"], rel=0.01)
    assert found["ours"]["tokens_per_s"] == same


def test_turns_alone_leave_the_residual_time_of_a_full_engine():
    _, found = runs("isolation", "FCFS", "ours", "RPM 60")
    assert found["FCFS"]["quiet.first_token_p99_s"] > 200
    assert 3 < found["ours"]["quiet.first_token_p99_s"] < 15
    assert found["ours"]["refused"] == 0 < found["RPM 60"]["refused"]


@pytest.mark.parametrize("scheduler", ["VTC", "ours"])
def test_service_is_shared_by_weight_though_all_ask_for_the_same(scheduler):
    _, found = runs("weighted", scheduler, "FCFS")
    shares = [found[scheduler][f"client-{number}.share"] for number in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)
    assert found["FCFS"]["client-1.share"] == pytest.approx(0.25, abs=0.02)
