# SPDX-License-Identifier: Apache-2.0
"""The demo's figures: what B is promised, what is compared, and what is told where it can't run."""

import importlib.util

import pytest

from taketurns.errors import StartError

pytest.importorskip("openai")

from taketurns.cli import demo
from taketurns.demo.records import BatchPace, Served
from taketurns.demo.report import Run, allowed, figures, seconds, shown, tables, tier_shares
from taketurns.demo.scenes import Burst, Tiers
from taketurns.figures import median


def burst(beside_s, *, b_wait_s):
    """Return a scene 1 in which A waits ten seconds from 0 on, and B comes at 5 s."""
    log = [Served("a", 0.0, 0.5 * at, 0.5 * at, 10) for at in range(1, 21)]
    log += [Served("b", 4.9, b_wait_s, 1.0, 10) for _ in range(5)]
    return Burst([0.1, 0.2, 0.3], beside_s, BatchPace(0.05, 5, 100), log)


def tiers(floor_percent, trial_waits_s):
    log = [Served("enterprise", 0.0, wait, wait, 10) for wait in (1, 2, 3, 4)]
    log += [Served("trial", 0.0, wait, wait, 10) for wait in trial_waits_s]
    return Tiers(floor_percent, 0.1, log)


def run(beside_s=(0.2, 0.4)):
    return Run(
        burst(list(beside_s), b_wait_s=0.1),
        burst([4.0, 9.0], b_wait_s=4.0),
        tiers(0, (5, 6, 7)),
        tiers(20, (2, 6, 7)),
    )


def by_name(*runs):
    return {item.name: item for item in figures(runs)}


def test_b_is_allowed_twice_its_latency_alone_and_one_batch():
    seen = run().fair
    assert allowed(seen, median) == pytest.approx(0.45)
    assert allowed(seen, max) == pytest.approx(0.65)


def test_the_scheduler_has_targets_and_the_shared_queue_only_a_ratio():
    found = by_name(run())
    assert (found["b_latency_median"].target, found["b_latency_median"].reached) == (
        "<= 0.45",
        True,
    )
    assert (found["b_latency_worst"].target, found["b_latency_worst"].reached) == ("<= 0.65", True)
    assert found["shared_queue_b_latency_worst"].target == ""
    assert found["shared_queue_b_latency_worst_of_allowed"].value == pytest.approx(13.85)


def test_a_missed_target_is_told_and_not_moved():
    found = by_name(run(beside_s=(0.2, 0.7)))
    assert (found["b_latency_worst"].target, found["b_latency_worst"].reached) == ("<= 0.65", False)
    text = str(tables(figures([run(beside_s=(0.2, 0.7))]))[0].rows)
    assert "650 ms: MISSED" in text


def test_tiers_are_compared_while_both_have_work():
    assert tier_shares(run().strict) == {"enterprise": 1.0, "trial": 0.0}
    assert tier_shares(run().floor) == {"enterprise": 0.8, "trial": 0.2}
    assert by_name(run())["strict_jain"].value == 0.5


def test_b_is_served_more_of_what_runs_while_it_waits_than_in_one_queue():
    found = by_name(run())
    assert found["b_share"].value > found["shared_queue_b_share"].value


def test_several_runs_are_shown_with_their_spread():
    found = by_name(run(), run(beside_s=(0.3, 0.3)), run())
    assert found["b_latency_worst"].n == 3
    assert shown(found["b_latency_worst"]) == "400 ms (300 ms to 400 ms)"
    assert shown(by_name(run())["b_latency_worst"]) == "400 ms"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0214, "21 ms"), (0.9, "900 ms"), (1.0, "1.0 s"), (12.34, "12.3 s")]
)
def test_times_are_told_in_a_unit_that_fits(value, text):
    assert seconds(value) == text


def test_every_row_of_a_table_has_a_cell_for_each_head():
    for table in tables(figures([run()])):
        assert {len(row) for row in table.rows} == {len(table.heads)}


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "openai" else find(name)
    )
    with pytest.raises(StartError, match="needs openai, which is not installed") as caught:
        demo.demo()
    assert "pip install 'taketurns[embedded,sim,dev]'" in caught.value.hint


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="--png: can't write"):
        demo.demo(png=tmp_path / "file" / "demo.png")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
