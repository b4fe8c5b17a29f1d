# SPDX-License-Identifier: Apache-2.0
"""The public names are these, each is explained, and importing the package loads nothing else."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import taketurns

PACKAGE = Path(taketurns.__file__).parent

# Whoever adds a name here promises to keep it.
NAMES = [
    "BatchRules",
    "Clock",
    "ConfigError",
    "Dispatcher",
    "Ended",
    "Expired",
    "Explanation",
    "Granted",
    "Outcome",
    "PoolRules",
    "PoolSnapshot",
    "Refusal",
    "Refused",
    "Scheduler",
    "SystemClock",
    "TaketurnsError",
    "Tenant",
    "Ticket",
    "Tier",
    "Turn",
    "TurnExpiredError",
    "TurnRefusedError",
    "Turns",
    "VirtualClock",
    "jain_index",
    "max_min_shares",
]

EXPLAINED = [
    *sorted((PACKAGE / "core").glob("*.py")),
    *sorted((PACKAGE / "ports").glob("*.py")),
    PACKAGE / "aio.py",
    PACKAGE / "dispatch.py",
    PACKAGE / "errors.py",
]


def in_a_fresh_interpreter(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_public_names_are_listed_in_order():
    assert taketurns.__all__ == NAMES == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_can_be_had_and_is_explained(name):
    value = getattr(taketurns, name)
    assert value.__name__ == name
    assert inspect.cleandoc(value.__doc__)
    assert not value.__doc__.startswith(f"{name}("), "this docstring was generated"


def test_a_public_name_is_the_same_each_time():
    namespace: dict[str, object] = {}
    exec("from taketurns import *", namespace)
    assert all(namespace[name] is getattr(taketurns, name) for name in NAMES)
    assert set(NAMES) <= set(dir(taketurns))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'taketurns' has no attribute 'Nothing'"):
        taketurns.Nothing  # noqa: B018


def test_type_checkers_find_each_name_where_it_is_loaded_from():
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    seen_by_checkers = {
        alias.name: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_checkers == taketurns._MODULE_BY_NAME
    assert sorted(seen_by_checkers) == NAMES


def test_importing_the_package_loads_none_of_its_modules():
    code = """
import sys, taketurns
print(*(name for name in sys.modules if name.startswith("taketurns.")))
"""
    assert in_a_fresh_interpreter(code) == set()


@pytest.mark.slow
def test_no_public_name_loads_a_third_partys_package():
    code = """
import sys
before = set(sys.modules)
import taketurns
from taketurns import *
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*(tops - set(sys.stdlib_module_names)))
"""
    assert in_a_fresh_interpreter(code) == {"taketurns"}


def public_definitions(body, where=""):
    """Public classes, functions and methods, but for those that a port explains."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        yield where + node.name, node
        if isinstance(node, ast.ClassDef):
            explained = (ast.get_docstring(node) or "").startswith("Implements :class:")
            if not explained:
                yield from public_definitions(node.body, f"{where}{node.name}.")


@pytest.mark.parametrize("path", EXPLAINED, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_what_is_public_in_a_module_is_explained(path):
    tree = ast.parse(path.read_text("utf-8"))
    unexplained = [
        name for name, node in public_definitions(tree.body) if not ast.get_docstring(node)
    ]
    assert unexplained == []
