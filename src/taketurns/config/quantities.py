# SPDX-License-Identifier: Apache-2.0
"""Quantities as people write them: ``30s``, ``8M``, ``60k``, ``5%``, and names.

A value may come as text where it holds a number, because ``${PORT}`` is text
until it is read here. Every validator says what is wrong and what to write
instead, and never repeats the value: who reports the fault knows whether it
may be shown.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

FAULT = "taketurns_fault"
"""Type of the pydantic errors that carry ``problem`` and ``hint`` of our own."""

NAME_PATTERN = "[A-Za-z0-9_.-]{1,64}"
PUBLIC_ID_PATTERN = "[a-z2-7]{12}"
HASH_PATTERN = "[0-9a-f]{64}"

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_COUNT = re.compile(r"([0-9]{1,15})([kM])?")
_SIZE = re.compile(r"([0-9]{1,15})([kKMG])?")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h)?")
_PERCENT = re.compile(r"([0-9]{1,3})%")

_COUNT_UNITS = {"": 1, "k": 1_000, "M": 1_000_000}
_SIZE_UNITS = {"": 1, "k": 1024, "K": 1024, "M": 1024**2, "G": 1024**3}
_DURATION_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

# A pattern binds text only, so a plain number passes beside it.
_TEXT_FROM_ENV = r"^\$\{.+\}$"


def fault(problem: str, hint: str = "") -> PydanticCustomError:
    """Return the error that a validator raises: what is wrong, and what to write instead."""
    return PydanticCustomError(FAULT, "{problem}", {"problem": problem, "hint": hint})


def whole(value: object) -> int:
    """Read a whole number: ``8`` or, out of the environment, ``"8"``."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    raise fault("must be a whole number", "Write digits only, such as 8.")


def count(value: object) -> int:
    """Read a count: ``60000`` or ``60k``; k is 1,000 and M is 1,000,000."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _COUNT.fullmatch(value)):
        return int(match[1]) * _COUNT_UNITS[match[2] or ""]
    raise fault("must be a count", "Write a whole number, such as 500, 60k (60,000) or 2M.")


def size_bytes(value: object) -> int:
    """Read a size in bytes: ``16k``, ``8M``, ``1G``; k is 1,024."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        return int(match[1]) * _SIZE_UNITS[match[2] or ""]
    raise fault("must be a size in bytes", "Write a whole number with k, M or G, such as 8M.")


def duration_s(value: object) -> float:
    """Read a duration in seconds: ``500ms``, ``30s``, ``5m``, ``2h``; a plain number is seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if math.isfinite(value) and value >= 0:
            return float(value)
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return float(match[1]) * _DURATION_UNITS[match[2] or ""]
    raise fault("must be a duration", "Write 500ms, 30s, 5m or 2h; a plain number is seconds.")


def percent(value: object) -> int:
    """Read a percentage: ``5%``, 0 to 100; a bare 0 is clear enough without the sign."""
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)) and int(match[1]) <= 100:
        return int(match[1])
    if value == 0 and not isinstance(value, bool):
        return 0
    raise fault("must be a percentage", "Write a whole number and the sign: 0% to 100%.")


def flag(value: object) -> bool:
    """Read ``true`` or ``false``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in {"true", "false"}:
        return value == "true"
    raise fault("must be true or false", "Write true or false.")


def name(value: str) -> str:
    """Check a name of a tier, a tenant, a model or an engine."""
    if re.fullmatch(NAME_PATTERN, value):
        return value
    raise fault(
        "is not a name that can be used here",
        "Use 1 to 64 of the characters A-Z, a-z, 0-9, '_', '.' and '-'.",
    )


def not_empty(value: str) -> str:
    """Check that a text holds something."""
    if value.strip():
        return value
    raise fault("must not be empty", "Write a value, or leave the key out.")


def duration_text(seconds: float) -> str:
    """Write seconds the way an operator would: ``90s``, ``2h``, ``500ms``."""
    for unit, unit_s in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{round(seconds / unit_s)}{unit}"
    return "0s" if seconds == 0 else f"{seconds * 1000:g}ms"


def size_text(size: int) -> str:
    """Write bytes the way an operator would: ``64M``, ``16k``, ``500``."""
    for unit in ("G", "M", "k"):
        if size >= _SIZE_UNITS[unit] and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


def spans(least_s: float, most_s: float) -> AfterValidator:
    """Bound a duration, both ends included."""
    limits = f"{duration_text(least_s)} to {duration_text(most_s)}"

    def check(seconds: float) -> float:
        if least_s <= seconds <= most_s:
            return seconds
        raise fault(f"must be {limits}")

    return AfterValidator(check)


def _between(least: int, most: int, written: Callable[[int], str]) -> AfterValidator:
    limits = f"{written(least)} to {written(most)}"

    def check(value: int) -> int:
        if least <= value <= most:
            return value
        raise fault(f"must be {limits}")

    return AfterValidator(check)


def between(least: int, most: int) -> AfterValidator:
    """Bound a whole number, a count or a size, both ends included."""
    return _between(least, most, "{:,}".format)


def percent_between(least: int, most: int) -> AfterValidator:
    """Bound a percentage, both ends included."""
    return _between(least, most, "{}%".format)


def _number_or_text(pattern: str, **more: object) -> WithJsonSchema:
    return WithJsonSchema({"type": ["number", "string"], "pattern": pattern, **more})


Whole = Annotated[
    int,
    BeforeValidator(whole),
    WithJsonSchema({"type": ["integer", "string"], "pattern": _TEXT_FROM_ENV}),
]
Count = Annotated[
    int,
    BeforeValidator(count),
    WithJsonSchema(
        {"type": ["integer", "string"], "pattern": rf"^[0-9]+[kM]?$|{_TEXT_FROM_ENV}", "minimum": 0}
    ),
]
Size = Annotated[
    int,
    BeforeValidator(size_bytes),
    WithJsonSchema(
        {
            "type": ["integer", "string"],
            "pattern": rf"^[0-9]+[kKMG]?$|{_TEXT_FROM_ENV}",
            "minimum": 0,
        }
    ),
]
Duration = Annotated[
    float,
    BeforeValidator(duration_s),
    _number_or_text(rf"^[0-9]+(\.[0-9]+)?(ms|s|m|h)?$|{_TEXT_FROM_ENV}", minimum=0),
]
Percent = Annotated[
    int,
    BeforeValidator(percent),
    _number_or_text(rf"^[0-9]{{1,3}}%$|{_TEXT_FROM_ENV}", minimum=0, maximum=0),
]
Flag = Annotated[
    bool,
    BeforeValidator(flag),
    WithJsonSchema({"type": ["boolean", "string"], "pattern": _TEXT_FROM_ENV}),
]
Name = Annotated[
    str,
    AfterValidator(name),
    WithJsonSchema({"type": "string", "pattern": rf"^{NAME_PATTERN}$|{_TEXT_FROM_ENV}"}),
]
Text = Annotated[str, AfterValidator(not_empty)]
