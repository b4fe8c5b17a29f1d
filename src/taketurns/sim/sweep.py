# SPDX-License-Identifier: Apache-2.0
"""Sweeps: the same scenario with other values at some paths of its file."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from taketurns.errors import ConfigError, ConfigFault

POINTS_MAX = 10_000
"""Most points of one sweep."""


def points(sweep: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Yield every combination of values, the last path changing fastest."""
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def read_sweep(value: object, source: str) -> dict[str, list[Any]]:
    """Read a scenario's own sweep: a mapping of paths to lists of values.

    Raises:
        ConfigError: It's something else.
    """
    sweep = value or {}
    if not isinstance(sweep, dict) or not all(
        isinstance(values, list) and values for values in sweep.values()
    ):
        raise _fault("sweep", "must be a mapping of paths to lists of values", source)
    size = 1
    for values in sweep.values():
        size *= len(values)
    if size > POINTS_MAX:
        raise _fault("sweep", f"has {size:,} points; {POINTS_MAX:,} are the most", source)
    return sweep


def parse_option(text: str, source: str) -> tuple[str, list[Any]]:
    """Read ``PATH=VALUE,VALUE`` of the command line.

    Raises:
        ConfigError: It's something else.
    """
    path, equals, values = text.partition("=")
    if not equals or not path or not values:
        hint = "Write PATH=VALUE, such as schedulers.ours.quantum=200,500."
        raise _fault(text, "is not a path and its values", source, hint)
    return path, [yaml.safe_load(part) for part in values.split(",")]


def with_point(value: Mapping[str, Any], point: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a scenario's mapping with other values at some paths.

    Raises:
        ConfigError: A path leads through something that is no mapping.
    """
    changed = copy.deepcopy(dict(value))
    for path, new in point.items():
        *parents, last = path.split(".")
        at: Any = changed
        for parent in parents:
            if not isinstance(at, dict) or parent not in at:
                raise _fault(path, f"there is no {parent!r} on the way", source)
            at = at[parent]
        if not isinstance(at, dict):
            raise _fault(path, "leads to no mapping", source)
        at[last] = new
    return changed


def _fault(path: str, problem: str, source: str, hint: str = "") -> ConfigError:
    return ConfigError([ConfigFault(path, problem, hint=hint)], source=source)
