# SPDX-License-Identifier: Apache-2.0
"""Faults in words: what pydantic found, said with the operator's own keys and without secrets."""

import difflib
import json
import re
from collections.abc import Collection, Mapping

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from taketurns.config.engines import (
    EMBEDDED_TAG,
    URL_TAG,
    EmbeddedEngineConfig,
    EngineLimitsConfig,
    HealthConfig,
    UrlEngineConfig,
)
from taketurns.config.limits import LimitConfig
from taketurns.config.model import Config, ServerConfig, TenantConfig, TierConfig
from taketurns.config.quantities import FAULT
from taketurns.config.served import BatchConfig, ModelConfig, TokenCostConfig
from taketurns.config.yaml_tree import Path
from taketurns.errors import ConfigFault

SECTIONS: Mapping[Path, type[BaseModel]] = {
    (): Config,
    ("server",): ServerConfig,
    ("tiers", "*"): TierConfig,
    ("models", "*"): ModelConfig,
    ("models", "*", "engines", "*", URL_TAG): UrlEngineConfig,
    ("models", "*", "engines", "*", EMBEDDED_TAG): EmbeddedEngineConfig,
    ("models", "*", "batch"): BatchConfig,
    ("models", "*", "engine_limits"): EngineLimitsConfig,
    ("models", "*", "health"): HealthConfig,
    ("models", "*", "token_cost"): TokenCostConfig,
    ("tenants", "*"): TenantConfig,
    ("limits", "*"): LimitConfig,
}
"""The model of each part of the file, ``*`` standing for any name or index."""

SECRETS = frozenset({"key", "secret", "keys", "admin_token", "url", "store"})
"""Keys whose values are never repeated; a URL may hold a password."""

SHOWN_MAX = 60
"""Most characters of a value that a fault repeats."""

LISTED_MAX = 12
"""Most known names that a hint lists."""

_KEY_LIKE = re.compile(r"sk-[A-Za-z0-9_-]{6,}")


def path_text(path: Path) -> str:
    """Write a path the way people do: ``models.chat.engines[0].url``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return masked(text)


def masked(text: str) -> str:
    """Hide what looks like an API key: one that stands in the wrong place is a secret still."""
    text = _KEY_LIKE.sub("sk-…", text)
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= 4 * SHOWN_MAX else text[: 4 * SHOWN_MAX] + "…"


def suggestion(word: str, known: Collection[str], *, what: str) -> str:
    """Return a hint: the known name nearest to a word, and a list of those there are.

    Args:
        word: What the operator wrote.
        known: What would have been right.
        what: What these are, in the plural: ``tiers``.
    """
    near = difflib.get_close_matches(word[:SHOWN_MAX], known, n=1, cutoff=0.6)
    guess = f"Did you mean {near[0]}? " if near else ""
    if not known:
        return f"{guess}There are no {what}."
    listed = ", ".join(sorted(known)[:LISTED_MAX])
    more = f" and {len(known) - LISTED_MAX} more" if len(known) > LISTED_MAX else ""
    return f"{guess}Known {what}: {listed}{more}."


def keys_hint(key: str, section: type[BaseModel]) -> str:
    """Return a hint for an unknown key: all keys of a section are listed, in their order."""
    near = difflib.get_close_matches(key[:SHOWN_MAX], section.model_fields, n=1, cutoff=0.6)
    guess = f"Did you mean {near[0]}? " if near else ""
    return f"{guess}Known keys: {', '.join(section.model_fields)}."


def section_at(location: Path) -> type[BaseModel] | None:
    """Return the model of the section at a location that pydantic gave."""
    for pattern, section in SECTIONS.items():
        if len(pattern) == len(location) and all(
            want in ("*", part) for want, part in zip(pattern, location, strict=True)
        ):
            return section
    return None


def path_of(location: Path) -> Path:
    """Return the path in the file for a location that pydantic gave."""
    return tuple(part for part in location if part not in (URL_TAG, EMBEDDED_TAG, "[key]"))


def fault_of(error: ErrorDetails, written: Mapping[Path, str]) -> tuple[Path, ConfigFault]:
    """Say one of pydantic's errors in the operator's words.

    Args:
        error: As pydantic lists it.
        written: Text as it stands in the file, of the values that ``${VAR}`` changed.

    Returns:
        The path in the file, and the fault.
    """
    location = error["loc"]
    path = path_of(location)
    problem, hint = _words(error)
    got = "" if error["type"] in {"extra_forbidden", "missing"} else _shown(error, path, written)
    return path, ConfigFault(path_text(path), problem + got, hint=masked(hint))


def _words(error: ErrorDetails) -> tuple[str, str]:
    """Return problem and hint of an error."""
    kind, location, context = error["type"], error["loc"], error.get("ctx", {})
    if kind == FAULT:
        return str(context["problem"]), str(context["hint"])
    if kind == "extra_forbidden":
        section = section_at(location[:-1])
        return "is an unknown key", keys_hint(str(location[-1]), section) if section else ""
    if kind == "missing":
        return "is missing", _missing_hint(location)
    if kind == "literal_error":
        expected = str(context["expected"]).replace("'", "")
        names = re.split(r", | or ", expected)
        hint = suggestion(str(error["input"]), names, what="values")
        return f"must be {expected}", hint if hint.startswith("Did") else ""
    return _SHAPES.get(kind, (error["msg"][:1].lower() + error["msg"][1:], ""))


_SHAPES = {
    "string_type": ("must be text", "Put it in quotes."),
    "model_type": ("must be a mapping", "Write its keys below it, indented, or leave it out."),
    "dict_type": ("must be a mapping", "Write names below it, indented, each with its settings."),
    "tuple_type": ("must be a list", "Write [a, b], or one `- a` a line."),
    "too_short": ("must not be empty", "Write at least one name below it."),
}


def _missing_hint(location: Path) -> str:
    section, key = section_at(location[:-1]), str(location[-1])
    described = section.model_fields[key].description if section else None
    return f"Add {key}. {' '.join((described or '').split())}".replace("``", "").rstrip()


def _shown(error: ErrorDetails, path: Path, written: Mapping[Path, str]) -> str:
    """Return ``, got VALUE`` where the value is short and no secret, else nothing."""
    value = error["input"]
    if error["loc"][-1:] == ("[key]",):
        return ""
    if path not in written and any(part in SECRETS for part in path):
        return ""
    if value is None or isinstance(value, str | int | float):
        return f", got {shown(value, path, written)}"
    return ""


def shown(value: str | float | None, path: Path, written: Mapping[Path, str]) -> str:
    """Return a value as it may be repeated: short, and without what the environment gave.

    Args:
        value: The value in force.
        path: Where it stands.
        written: Text as it stands in the file, of the values that ``${VAR}`` changed.
    """
    value = written.get(path, value)
    text = value[:SHOWN_MAX] if isinstance(value, str) else value
    return masked(json.dumps(text, ensure_ascii=False))
