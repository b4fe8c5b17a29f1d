# SPDX-License-Identifier: Apache-2.0
"""What no linter knows: licence, purpose and size of each module, and who stands beside whom."""

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "taketurns"
CORE = PACKAGE / "core"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PROGRAMS = sorted(
    path for folder in ("examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")
)
PROSE = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]

LINES_MAX_CORE = 300
LINES_MAX = 500
LINES_MAX_RAISED = {
    # Events and predictions read and write the same few counts.
    "core/forecast.py": 330,
    # One algorithm: each method leans on the rules that the others keep.
    "core/ring.py": 445,
    # The façade of the core: a method for each event, half of it their contracts.
    "core/scheduler.py": 510,
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def lines_max(path):
    name = path.relative_to(PACKAGE).as_posix()
    return LINES_MAX_RAISED.get(name, LINES_MAX_CORE if path.parent == CORE else LINES_MAX)


def layers(contract):
    """Names on all floors of a contract of `.importlinter`."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter", encoding="utf-8")
    return re.findall(r"\w+", settings[f"importlinter:contract:{contract}"]["layers"])


def children(package):
    """Modules and packages in a package, by name."""
    return sorted(
        path.stem
        for path in package.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    )


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_is_licensed_explained_and_short(path):
    lines = path.read_text("utf-8").splitlines()
    assert lines[0] == "# SPDX-License-Identifier: Apache-2.0"
    assert re.match(r'r?"""\S', lines[1]), "say in one sentence what the module is for"
    assert len(lines) <= lines_max(path), "split it, or raise its bound above with a reason"


@pytest.mark.parametrize("path", [*TESTS, *PROGRAMS], ids=name_of)
def test_a_file_beside_the_package_is_licensed_and_explained(path):
    text = path.read_text("utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text)), "say in one sentence what it is for"


def test_no_bound_is_raised_for_a_module_that_is_gone_or_short_enough():
    for name, raised in LINES_MAX_RAISED.items():
        usual = LINES_MAX_CORE if name.startswith("core/") else LINES_MAX
        assert usual < len((PACKAGE / name).read_text("utf-8").splitlines()) <= raised


def test_each_module_of_the_core_has_a_test_file_and_each_such_file_its_module():
    tests = sorted((ROOT / "tests" / "unit" / "core").glob("test_*.py"))
    assert [path.stem.removeprefix("test_") for path in tests] == children(CORE)


@pytest.mark.parametrize(("contract", "package"), [("floors", PACKAGE), ("core-floors", CORE)])
def test_each_module_stands_on_one_floor(contract, package):
    assert sorted(layers(contract)) == children(package)


def test_all_floors_are_watched_for_new_modules():
    settings = (ROOT / ".importlinter").read_text("utf-8")
    assert settings.count("exhaustive = True") == settings.count("type = layers") == 2


@pytest.mark.parametrize("path", [*MODULES, *TESTS, *PROGRAMS, *PROSE], ids=name_of)
def test_what_is_to_be_done_names_an_issue(path):
    if path == Path(__file__):
        return
    for line in path.read_text("utf-8").splitlines():
        for word in re.finditer(r"\b(TODO|FIXME|XXX)\b", line):
            assert re.match(r"\(#\d+\)", line[word.end() :]), line


@pytest.mark.parametrize("path", [*MODULES, *PROGRAMS, *PROSE], ids=name_of)
def test_no_file_names_a_path_of_one_machine(path):
    found = re.findall(
        r"(?<![\w./}])/(?:work|root|home/\w+|tmp)(?![\w-])\S*", path.read_text("utf-8")
    )
    assert found == []
