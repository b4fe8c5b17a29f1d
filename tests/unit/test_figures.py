# SPDX-License-Identifier: Apache-2.0
"""Figures hold medians, spreads and unmoved targets, and reports say where they come from."""

import json
import subprocess

import pytest

from taketurns.figures import Figure, commit, cpu_model, figure, report


def test_a_figure_is_the_median_of_its_runs_with_their_spread():
    made = figure("wait", [0.3, 0.1, 0.2], "s", note="of 50 requests")
    assert made == Figure("wait", 0.2, "s", "", None, 3, (0.1, 0.3), "of 50 requests")


def test_a_target_is_reached_only_where_every_run_meets_its_own():
    met = figure("wait", [0.1, 0.2], "s", at_most=[0.1, 0.3])
    assert (met.target, met.reached, met.note) == ("<= 0.2", True, "")
    missed = figure("wait", [0.1, 0.31, 0.1], "s", at_most=[0.2, 0.3, 0.2], note="of 50")
    assert (missed.target, missed.reached) == ("<= 0.2", False)
    assert missed.note == "of 50; missed in 1 of 3 runs"


def test_a_single_run_that_misses_says_so_without_counting_runs():
    missed = figure("wait", [2.0], at_most=[1.0])
    assert (missed.reached, missed.note) == (False, "")


def test_a_target_needs_as_many_values_as_there_are_runs():
    with pytest.raises(ValueError, match="shorter"):
        figure("wait", [1.0, 2.0], at_most=[1.0])


@pytest.mark.parametrize(("target", "reached"), [("<= 1", None), ("", True)])
def test_target_and_reached_go_together(target, reached):
    with pytest.raises(ValueError, match="figure wait"):
        Figure("wait", 1.0, target=target, reached=reached)


def test_values_keep_four_significant_digits():
    made = figure("rate", [123456.789, 0.000123456789, 1.0])
    assert (made.value, made.spread) == (1.0, (0.0001235, 123500.0))


def test_a_report_is_json_and_tells_its_origin():
    told = report([figure("wait", [0.5], "s", at_most=[1.0])], 7, {"openai": "2.0"})
    assert set(told) == {"figures", "machine", "commit", "seed", "peers"}
    assert set(told["machine"]) == {"cpu", "cores", "python", "os"}
    assert told["machine"]["cores"] >= 1
    assert (told["seed"], told["peers"]) == (7, {"openai": "2.0"})
    assert json.loads(json.dumps(told))["figures"] == [
        {
            "name": "wait",
            "value": 0.5,
            "unit": "s",
            "target": "<= 1",
            "reached": True,
            "n": 1,
            "spread": [0.5, 0.5],
            "note": "",
        }
    ]


def test_the_processor_is_named_as_linux_names_it(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n")
    assert cpu_model(path) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "missing") != "Some CPU @ 2 GHz"


def test_the_commit_is_that_of_the_package_and_not_of_what_it_lies_in(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    assert commit(tmp_path) == ""
    git("init")
    (tmp_path / "other").write_text("a")
    git("add", "other")
    git("commit", "-m", "other")
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) == "", "its files aren't tracked"
    git("add", "__init__.py")
    git("commit", "-m", "package")
    short = commit(tmp_path)
    assert len(short) >= 7
    (tmp_path / "other").write_text("b")
    assert commit(tmp_path) == f"{short}-dirty"
