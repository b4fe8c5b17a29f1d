# SPDX-License-Identifier: Apache-2.0
"""Reads mappings that people wrote: values are asked for by name; what is left is a fault."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from taketurns.errors import ConfigError, ConfigFault

WHOLE_MOST = 2**53
"""Numbers up to here are exact everywhere; a bound that is not told to people."""


class Section:
    """A mapping of a scenario file, with its path for messages.

    Args:
        value: The mapping.
        path: Where it stands, such as ``tenants.acme``; "" at the top.
        source: The file, for messages.

    Raises:
        ConfigError: ``value`` is no mapping, or has keys that are no text.
    """

    def __init__(self, value: object, path: str = "", source: str = "") -> None:
        self.path = path
        self.source = source
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.fault("", "must be a mapping of names to values")
        self._value: Mapping[str, Any] = value
        self._asked: set[str] = set()

    def fault(self, key: str, problem: str, hint: str = "") -> ConfigError:
        """Return an error about one of its values."""
        path = ".".join(part for part in (self.path, key) if part)
        return ConfigError([ConfigFault(path, problem, hint=hint)], source=self.source)

    def __contains__(self, key: str) -> bool:
        return key in self._value

    def names(self) -> Iterator[str]:
        """Return its keys, in the order of the file."""
        return iter(self._value)

    def raw(self, key: str, default: Any = None) -> Any:
        """Return a value as it stands."""
        self._asked.add(key)
        return self._value.get(key, default)

    def text(self, key: str, default: str | None = None, options: Sequence[str] = ()) -> str:
        """Return a text, one of the options where there are any."""
        value = self._needed(key, default)
        if not isinstance(value, str):
            raise self.fault(key, f"must be text, got {value!r}")
        if options and value not in options:
            raise self.fault(key, f"{value!r} is unknown", _suggest(value, options))
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        least: float = 0.0,
        most: float = float("inf"),
    ) -> float:
        """Return a number."""
        value = self._needed(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, f"must be a number, got {value!r}")
        if not least <= value <= most:
            bounds = f"at least {least:g}" if most >= WHOLE_MOST else f"{least:g} to {most:g}"
            raise self.fault(key, f"must be {bounds}, got {value!r}")
        return value

    def whole(
        self, key: str, default: int | None = None, least: int = 0, most: int = WHOLE_MOST
    ) -> int:
        """Return a whole number."""
        value = self.number(key, default, least, most)
        if value != int(value):
            raise self.fault(key, f"must be a whole number, got {value!r}")
        return int(value)

    def whole_or_none(self, key: str, default: int | None, word: str, least: int = 0) -> int | None:
        """Return a whole number, or None where the word stands for it."""
        if key not in self:
            self._asked.add(key)
            return default
        return None if self.raw(key) == word else self.whole(key, least=least)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, f"must be true or false, got {value!r}")
        return value

    def section(self, key: str) -> "Section":
        """Return a mapping inside; an empty one where there is none."""
        value = self.raw(key)
        path = ".".join(part for part in (self.path, key) if part)
        return Section({} if value is None else value, path, self.source)

    def sections(self, key: str) -> "dict[str, Section]":
        """Return the mappings inside a mapping, by name."""
        inner = self.section(key)
        return {name: inner.section(name) for name in inner.names()}

    def done(self) -> None:
        """See that nothing is left that wasn't asked for."""
        for key in self._value:
            if key not in self._asked:
                raise self.fault(key, "is not known here", _suggest(key, sorted(self._asked)))

    def _needed(self, key: str, default: object) -> Any:
        value = self.raw(key, default)
        if value is None:
            raise self.fault(key, "is missing")
        return value


def _suggest(word: str, options: Sequence[str]) -> str:
    close = get_close_matches(word, options, 1)
    known = ", ".join(options)
    return f"Did you mean {close[0]!r}?" if close else f"Known here: {known}."
