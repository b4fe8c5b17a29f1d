# SPDX-License-Identifier: Apache-2.0
"""The pages say what the code says: names, help texts, links, and what the examples print."""

import ast
import contextlib
import dataclasses
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import taketurns
from taketurns.cli.main import app
from taketurns.config.faults import SECTIONS
from taketurns.core.decision import Outcome, Refusal
from taketurns.gateway.problems import INVALID
from taketurns.gateway.routes import ROUTES
from taketurns.telemetry.metrics import Metrics
from taketurns.telemetry.records import RequestRecord

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
SOURCES = sorted((ROOT / "src" / "taketurns").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
EXAMPLES = [
    ROOT / "README.md",
    *sorted((DOCS / "tutorial").glob("*.md")),
    *sorted((DOCS / "howto").glob("*.md")),
]

GENERATE = runpy.run_path(str(DOCS / "generate.py"))


def page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


def in_code(text: str) -> set[str]:
    """Everything that stands between backticks."""
    return set(re.findall(r"`([^`\n]+)`", text))


# Names


def commands() -> Iterator[str]:
    """Every command, its words joined by blanks; the root is ""."""

    def walk(command, words):
        yield " ".join(words)
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, [*words, name])

    yield from walk(typer.main.get_command(app), [])


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_has_its_help_on_the_page(command):
    assert f"<!-- help: {command} -->".replace("  ", " ") in page("cli.md")


def test_every_option_is_on_the_page():
    def options(command):
        for parameter in command.params:
            yield from parameter.opts if parameter.param_type_name == "option" else ()
        for child in getattr(command, "commands", {}).values():
            yield from options(child)

    text = page("cli.md")
    assert [name for name in options(typer.main.get_command(app)) if name not in text] == []


def test_every_configuration_key_is_on_the_page():
    text = page("configuration.md")
    keys = {key for section in SECTIONS.values() for key in section.model_fields}
    assert {key for key in keys if f"| `{key}`" not in text} == set()
    undescribed = [
        f"{section.__name__}.{key}"
        for section in SECTIONS.values()
        for key, field in section.model_fields.items()
        if not field.description
    ]
    assert undescribed == []


def test_every_metric_is_on_the_page_with_its_type_and_labels():
    metrics = Metrics(["acme"], dict, "0")
    metrics.watch_engines(dict)
    exposed = metrics.exposition().decode()
    types = re.findall(r"^# TYPE (\w+) (\w+)$", exposed, re.MULTILINE)
    wanted = {(name, kind) for name, kind in types if not name.endswith("_created")}
    rows = set(re.findall(r"^\| `(\w+)` \| (\w+) \|", page("metrics.md"), re.MULTILINE))
    assert rows == wanted


@pytest.mark.parametrize("name", ["log.md", "metrics.md"])
def test_every_outcome_is_on_the_page(name):
    assert {*map(str, Outcome), INVALID} <= in_code(page(name))


def test_every_reason_for_a_refusal_is_on_the_pages():
    for name in ("log.md", "errors.md", "python.md"):
        assert set(map(str, Refusal)) <= in_code(page(name))


def test_every_log_field_is_on_the_page_in_its_order():
    rows = re.findall(r"^\| `(\w+)` \|", page("log.md"), re.MULTILINE)
    fields = [field.name for field in dataclasses.fields(RequestRecord)]
    assert rows[: len(fields)] == fields


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Codes of errors: class attributes, and the second argument after a status."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                if re.match(r"code(: [\w\[\]]+)? = '\w", ast.unparse(item)):
                    yield ast.literal_eval(item.value)
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            called, second = ast.unparse(node.func), ast.unparse(node.args[1])
            raised = called in {"RequestError", "Problem", "super().__init__"}
            if raised and re.fullmatch(r"'[a-z0-9_]+'", second):
                yield ast.literal_eval(second)


def test_every_error_code_is_on_the_page_and_no_other():
    found = set(map(str, Refusal))
    for source in SOURCES:
        if "testing" not in source.parts:
            found.update(codes_in(ast.parse(source.read_text("utf-8"))))
    rows = set(re.findall(r"^\| `(\w+)` \|", page("errors.md"), re.MULTILINE))
    assert len(found) > 30, "the search finds codes"
    assert rows == found


def test_every_python_name_on_the_page_exists():
    names = re.findall(r"^\| `(taketurns[\w.]+)` \|", page("python.md"), re.MULTILINE)
    assert len(names) > 30
    assert {f"taketurns.{name}" for name in taketurns.__all__} <= set(names)
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_pages_name_only_configuration_keys_that_exist():
    keys = {key for section in SECTIONS.values() for key in section.model_fields}
    for path in PAGES:
        for section, key in re.findall(r"`(server|batch|engine_limits)\.(\w+)`", path.read_text()):
            assert key in keys, f"{path.name}: {section}.{key}"


@pytest.mark.parametrize("name", ["taketurns-priority", "taketurns-deadline-ms"])
def test_every_header_of_our_own_is_on_the_page(name):
    assert f"`{name}`" in page("http.md")


def test_every_route_is_on_the_page():
    sources = "".join(
        (ROOT / "src/taketurns/gateway" / name).read_text() for name in ("gateway.py", "admin.py")
    )
    routes = {*ROUTES, *re.findall(r'^ +"(/[\w/]+)": ', sources, re.MULTILINE)}
    assert len(routes) >= 16
    assert {route for route in routes if route not in page("http.md")} == set()


# Generated parts


def test_tables_of_simulated_results_are_what_was_recorded():
    for path, text in runpy.run_path(str(DOCS / "simulations.py"))["pages"]().items():
        current = path.read_text("utf-8")
        assert current == text, f"{path.name} is out of date: python docs/simulations.py"


def test_generated_pages_are_current():
    for path, text in GENERATE["pages"]().items():
        current = path.read_text("utf-8")
        assert current == text, f"{path.name} is out of date: python docs/generate.py"


@pytest.mark.slow
def test_help_is_what_the_installed_command_prints():
    done = subprocess.run(
        [sys.executable, "-m", "taketurns", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.stdout == GENERATE["help_of"]([])


# Links


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "").lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_resolves(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("folder", ["tutorial", "howto", "reference", "explanation", "decisions"])
def test_the_index_leads_to_every_page(folder):
    index = (DOCS / "index.md").read_text("utf-8")
    unlinked = [
        path.name for path in (DOCS / folder).glob("*.md") if f"({folder}/{path.name})" not in index
    ]
    assert unlinked == []


# Examples

BLOCK = re.compile(r"(<!-- runs -->\n)?```python\n(.*?)```\n(?:\s*```text\n(.*?)```)?", re.DOTALL)


def blocks() -> Iterator[object]:
    for path in EXAMPLES:
        for number, match in enumerate(BLOCK.finditer(path.read_text("utf-8")), 1):
            name = f"{path.stem}-{number}"
            yield pytest.param(bool(match[1]), match[2], match[3], name, id=name)


@pytest.mark.parametrize(("runs", "code", "printed", "name"), list(blocks()))
def test_every_python_block_compiles_and_prints_what_stands_below_it(runs, code, printed, name):
    compiled = compile(code, name, "exec")
    if runs:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compiled, {"__name__": "__main__"})
        assert output.getvalue() == printed


def test_configurations_in_the_pages_are_valid():
    """A block that has all three sections that a file needs is a whole file."""
    from taketurns.config.load import parse

    whole = 0
    for path in EXAMPLES:
        for text in re.findall(r"```yaml\n(.*?)```", path.read_text("utf-8"), re.DOTALL):
            if {"tiers", "models", "tenants"} <= set(re.findall(r"^(\w+):", text, re.MULTILINE)):
                parse(text, path.name, env={"VLLM_KEY": "k"})
                whole += 1
    assert whole >= 3
