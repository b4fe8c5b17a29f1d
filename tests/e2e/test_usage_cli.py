# SPDX-License-Identifier: Apache-2.0
"""``taketurns usage`` adds up what the store holds."""

import csv
import io
import json
from contextlib import closing

import pytest
from typer.testing import CliRunner

from taketurns.cli.main import app
from taketurns.errors import StoreError
from taketurns.ports.stores import Usage, UsageKey
from taketurns.stores.sqlite_usage import SqliteUsageStore

ROWS = {
    UsageKey("2026-10-31", "acme", "qwen", "chat"): Usage(1, 0, 10, 20, 1000),
    UsageKey("2026-11-01", "acme", "qwen", "chat"): Usage(2, 1, 30, 40, 2000),
    UsageKey("2026-11-30", "acme", "minilm", "embeddings"): Usage(3, 0, 500, 0, 500),
    UsageKey("2026-11-30", "globex", "qwen", "chat"): Usage(1200, 34, 5600, 7800, 1_200_000),
}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taketurns.yaml").write_text('store: "sqlite://./taketurns.db"\n')
    with closing(SqliteUsageStore(tmp_path / "taketurns.db")) as store:
        store.add("gw", 1, ROWS)

    def ask(*options, code=0):
        done = CliRunner().invoke(app, ["usage", *options], prog_name="taketurns")
        assert done.exit_code == code, done.output
        return done.output

    return ask


def test_a_table_by_month_and_tenant(ask):
    assert ask() == (
        "MONTH    TENANT  REQUESTS  REFUSALS  INPUT TOKENS  OUTPUT TOKENS  COST\n"
        "2026-10  acme    1         0         10            20             1,000\n"
        "2026-11  acme    5         1         530           40             2,500\n"
        "2026-11  globex  1,200     34        5,600         7,800          1,200,000\n"
    )


def test_from_and_to_include_their_days_and_months(ask):
    def days(*options):
        return [row["day"] for row in json.loads(ask("--by", "day", "--json", *options))]

    assert days("--from", "2026-11") == ["2026-11-01", "2026-11-30"]
    assert days("--to", "2026-10") == ["2026-10-31"]
    assert days("--from", "2026-11-01", "--to", "2026-11-01") == ["2026-11-01"]
    assert days("--from", "2026-10-31", "--to", "2026-11") == [
        "2026-10-31",
        "2026-11-01",
        "2026-11-30",
    ]


def test_csv_and_one_tenant(ask):
    rows = list(csv.DictReader(io.StringIO(ask("--csv", "--by", "model, endpoint", "-t", "acme"))))
    assert [(row["model"], row["endpoint"], row["requests"]) for row in rows] == [
        ("minilm", "embeddings", "3"),
        ("qwen", "chat", "3"),
    ]


@pytest.mark.parametrize(
    "options",
    [["--by", "week"], ["--from", "yesterday"], ["--to", "2026-13"], ["--from", "20261101"]],
)
def test_what_it_does_not_understand_it_says(ask, options):
    ask(*options, code=2)


def test_memory_keeps_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taketurns.yaml").write_text("store: memory\n")
    done = CliRunner().invoke(app, ["usage"], prog_name="taketurns")
    assert isinstance(done.exception, StoreError)
