# SPDX-License-Identifier: Apache-2.0
"""What the page on limits shows is what the command prints, and its rules are valid."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from taketurns.cli.main import app
from taketurns.config.load import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "limits.md").read_text("utf-8")

REST = {
    "tiers": "tiers: {production: {rank: 0}, trial: {rank: 1}}\n",
    "models": (
        "models:\n"
        '  qwen: {endpoints: [chat], engines: [{url: "http://h:1"}]}\n'
        '  minilm: {endpoints: [embeddings], engines: [{url: "http://h:2"}]}\n'
    ),
    "tenants": "tenants: {acme: {tier: production}}\n",
}


def test_explain_prints_what_the_page_shows(monkeypatch):
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"```console\n\$ taketurns (.*?)\n(.*?)```", PAGE, re.DOTALL)
    shown = [(command, printed) for command, printed in shown if "--admin" not in printed]
    assert len(shown) == 1
    for command, printed in shown:
        done = CliRunner().invoke(app, shlex.split(command), prog_name="taketurns")
        assert (done.exit_code, done.output) == (0, printed)


def test_every_part_of_a_configuration_on_the_page_is_valid():
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        own = set(re.findall(r"^(\w+):", block, re.MULTILINE))
        rest = "".join(text for key, text in REST.items() if key not in own)
        assert parse(block + rest, "limits.md", env={"DB_PASSWORD": "secret"})
