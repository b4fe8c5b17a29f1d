# SPDX-License-Identifier: Apache-2.0
"""Scenario files are read whole or not at all; every one of ours runs; output is reproducible."""

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from taketurns.cli.main import app
from taketurns.errors import ConfigError
from taketurns.sim.experiment import run_all
from taketurns.sim.scenario import load, names, read
from taketurns.sim.sweep import parse_option, points, read_sweep, with_point

SMALL = """\
about: Two tenants.
duration: 20
engines: {kind: slots, slots: 1, request_ms: 300}
seeds: 2
show: [served, a.first_token_p99_s]
tenants:
  a: {rate: 2, input: 10, output: 5}
  b: {rate: 2, input: 10, output: 5}
schedulers:
  ours: {kind: round-robin, cost: requests, quantum: 1000}
  FCFS: {kind: fcfs}
published:
  FCFS: {served: 80}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def simulate(*args):
    return CliRunner().invoke(app, ["simulate", *map(str, args)], catch_exceptions=False)


@pytest.mark.parametrize("name", names())
def test_every_scenario_of_ours_runs(name):
    _, value = load(name)
    value["duration"] = min(value["duration"], 3)
    value["measured"] = value["duration"]
    if value.get("until") not in (None, "served"):
        value["until"] = 3
    first = next(iter(value["schedulers"]))
    value["schedulers"] = {first: value["schedulers"][first]}
    (row,) = run_all(read(name, value, Path()), {}, 1)
    assert row.median("arrived") > 0


def test_the_same_seed_gives_the_same_bytes(scenario, tmp_path):
    outputs = []
    for name in ("one.csv", "two.csv"):
        done = simulate(scenario, "--json", "--tenants", "--csv", tmp_path / name)
        assert done.exit_code == 0
        outputs.append((done.stdout, (tmp_path / name).read_bytes()))
    assert outputs[0] == outputs[1]
    result = json.loads(outputs[0][0])
    ours, first_come = result["schedulers"]
    assert (ours["scheduler"], ours["seeds"]) == ("ours", 2)
    assert first_come["figures"]["served"]["published"] == 80
    assert set(ours["tenants"]) == {"a", "b"}
    rows = list(csv.DictReader(io.StringIO(outputs[0][1].decode())))
    assert [(row["scheduler"], row["seed"]) for row in rows] == [
        ("ours", "0"),
        ("ours", "1"),
        ("FCFS", "0"),
        ("FCFS", "1"),
    ]


def test_the_table_shows_what_the_file_asks_for_and_what_was_published(scenario):
    done = simulate(scenario, "--seeds", 1, "--tenants", "--only", "FCFS")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "small: Two tenants."
    heads = lines[3].split()
    assert heads == [
        "scheduler",
        "served",
        "published",
        "ratio",
        "a:",
        "first",
        "token",
        "p99",
        "s",
    ]
    assert "what each tenant got" in done.stdout
    assert "ours" not in done.stdout


def test_without_a_name_the_scenarios_are_listed():
    done = simulate()
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == names()


def test_a_sweep_tries_every_combination(scenario):
    done = simulate(
        scenario,
        *("--only", "ours", "--seeds", 1, "--json"),
        *("--sweep", "engines.slots=1,2", "--sweep", "schedulers.ours.quantum=10,1000"),
    )
    rows = json.loads(done.stdout)["schedulers"]
    assert [list(row["point"].values()) for row in rows] == [[1, 10], [1, 1000], [2, 10], [2, 1000]]
    assert rows[0]["figures"]["last_s"]["median"] > rows[2]["figures"]["last_s"]["median"]


def test_sweeps_are_checked():
    with pytest.raises(ConfigError, match="is not a path and its values"):
        parse_option("quantum", "x")
    with pytest.raises(ConfigError, match="must be a mapping of paths"):
        read_sweep({"a.b": []}, "x")
    with pytest.raises(ConfigError, match="are the most"):
        read_sweep({"a": [0] * 200, "b": [0] * 200}, "x")
    with pytest.raises(ConfigError, match="there is no 'nowhere' on the way"):
        with_point({"a": 1}, {"nowhere.b": 2}, "x")
    with pytest.raises(ConfigError, match="leads to no mapping"):
        with_point({"a": 1}, {"a.b": 2}, "x")
    assert list(points({"a": [1, 2]})) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("duration: 20", "duration: -1", "duration: must be at least 0.001"),
        ("duration: 20", "durations: 20", "duration: is missing"),
        ("seeds: 2", "sedes: 2", "Did you mean 'seeds'"),
        ("rate: 2,", "rate: two,", "tenants.a.rate: must be a number"),
        ("kind: fcfs", "kind: fifo", "schedulers.FCFS.kind: 'fifo' is unknown"),
        ("  a: {rate: 2, input: 10, output: 5}", "  a: 5", "tenants.a: must be a mapping"),
        ("slots: 1,", "slots: 1.5,", "engines.slots: must be a whole number"),
    ],
)
def test_a_faulty_file_says_what_and_where(scenario, old, new, words):
    text = SMALL.replace(old, new, 1)
    scenario.write_text(text)
    name, value = load(str(scenario))
    with pytest.raises(ConfigError, match=words):
        read(name, value, scenario.parent)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "x: \x00"])
def test_a_file_that_is_no_mapping_is_a_fault(scenario, text):
    scenario.write_text(text)
    with pytest.raises(ConfigError):
        load(str(scenario))


def test_a_name_that_is_nowhere_names_those_there_are():
    with pytest.raises(ConfigError, match="vtc-table2"):
        load("vtc-table")


@pytest.mark.parametrize("name", ["vtc-on-off", "apf-equal", "throttle"])
def test_a_run_tells_how_far_it_is_and_in_the_end_that_it_is_over(name):
    _, value = load(name)
    value["duration"] = value["measured"] = 20
    value["schedulers"] = {"ours": value["schedulers"]["ours"]}
    value.pop("until", None) if name != "apf-equal" else value.update(until=20)
    shares = []
    run_all(read(name, value, Path()), {}, 2, shares.append)
    assert sum(shares) == pytest.approx(2)
    assert len(shares) > 90 or name == "apf-equal"
