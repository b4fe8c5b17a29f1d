# SPDX-License-Identifier: Apache-2.0
"""Finds the values that a field of a body may have, to tell those who sent another one."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

_NAME = re.compile(r"\.(\w+)")


def choices(kind: Any, path: str) -> list[str]:
    """Return the values of a field that has few, in their order; none where it isn't such a one.

    Args:
        kind: The type that the body is read as.
        path: Of the field, such as ``.inputs[0].type``.
    """
    kinds = [kind]
    for name in _NAME.findall(path):
        found = [part for each in kinds for part in _parts(each)]
        kinds = [
            get_type_hints(part)[name]
            for part in found
            if name in getattr(part, "__struct_fields__", ())
        ]
    literals = [part for each in kinds for part in _parts(each) if get_origin(part) is Literal]
    return [str(value) for part in literals for value in get_args(part)]


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a type and all that it's made of."""
    yield kind
    if get_origin(kind) is not Literal:
        for part in get_args(kind):
            yield from _parts(part)
