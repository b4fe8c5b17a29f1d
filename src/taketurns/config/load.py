# SPDX-License-Identifier: Apache-2.0
"""From the file to a :class:`Config`, or to every fault of it at once."""

import os
import re
from collections.abc import Mapping
from pathlib import Path as FilePath

from pydantic import ValidationError

from taketurns.config.faults import fault_of, path_text
from taketurns.config.model import Config
from taketurns.config.references import reference_faults
from taketurns.config.yaml_tree import Data, Path, build, compose
from taketurns.errors import ConfigError, ConfigFault

FILE_BYTES_MAX = 4 * 1024 * 1024
"""Largest file that is read: about 40,000 tenants."""

_VARIABLE = re.compile(r"\$(\$\{)|\$\{([^}]*)(\}?)")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def load(path: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: The file, YAML in UTF-8.
        env: Values for ``${NAME}``; None: the process's environment.

    Raises:
        ConfigError: With every fault of the file.
    """
    return parse(read(path), os.fspath(path), env=env)


def read(path: str | os.PathLike[str]) -> str:
    """Return the text of a configuration file.

    Raises:
        ConfigError: It can't be read, or is no text.
    """
    source = os.fspath(path)
    try:
        with FilePath(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise _unread(source, "does not exist", "Is the path right, seen from here?") from None
    except IsADirectoryError:
        raise _unread(source, "is a directory", "Name the file in it.") from None
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
        raise _unread(source, problem, "May this user read it?") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = f"is not UTF-8: line {line} holds the byte 0x{raw[error.start]:02x}"
        raise _unread(source, problem, "Save the file as UTF-8.") from None
    return text


def parse(text: str, source: str, *, env: Mapping[str, str] | None = None) -> Config:
    """Read a configuration.

    Args:
        text: YAML.
        source: Name of where it came from, for messages.
        env: Values for ``${NAME}``; None: the process's environment.

    Raises:
        ConfigError: With every fault, in the order of the file.
    """
    if len(text) > FILE_BYTES_MAX:
        problem = f"is larger than {FILE_BYTES_MAX // 1024**2} MiB"
        raise _unread(source, problem, "Is it the right file?")
    try:
        return _parse(text, os.environ if env is None else env)
    except ConfigError as error:
        raise ConfigError(error.faults, source=source) from None


def _parse(text: str, env: Mapping[str, str]) -> Config:
    root = compose(text)
    if root is None or root.pairs is None:
        problem = "is empty" if root is None else "must be a mapping at its top level"
        hint = "Write server, tiers, models and tenants there: see examples/taketurns.yaml."
        raise ConfigError([ConfigFault("", f"the file {problem}", hint=hint)])
    tree = build(root)
    expander = Expander(env)
    data = expander.value(tree.data, ())
    found = [
        (path, ConfigFault(path_text(path), problem, hint=hint))
        for path, problem, hint in tree.faults
    ]
    found += expander.found
    config, others = _validated(data, expander.written)
    # A value whose variable is missing has one fault, not two.
    unset = {path for path, _ in expander.found}
    found += [(path, fault) for path, fault in others if path not in unset]
    if config is not None and not found:
        return config
    found.sort(key=lambda item: _position(item[0], tree.marks))
    raise ConfigError([fault for _, fault in found])


def _validated(
    data: Data, written: Mapping[Path, str]
) -> tuple[Config | None, list[tuple[Path, ConfigFault]]]:
    """Return the configuration, or None and what is wrong; references are checked in any case."""
    config: Config | None = None
    found: list[tuple[Path, ConfigFault]] = []
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        found += [fault_of(detail, written) for detail in error.errors(include_url=False)]
    if isinstance(data, dict):
        found += reference_faults(data, written)
    return config, found


def _position(path: Path, marks: Mapping[Path, tuple[int, int]]) -> tuple[int, int]:
    """Return where a path stands in the file, or where what would hold it stands."""
    while path not in marks:
        path = path[:-1]
    return marks[path]


def _unread(source: str, problem: str, hint: str) -> ConfigError:
    return ConfigError([ConfigFault("", f"the file {problem}", hint=hint)], source=source)


class Expander:
    """Puts the environment's values in place of ``${NAME}`` and ``${NAME:-default}``.

    ``$${`` stands for ``${`` itself. The result is text even where it looks
    like a number: where a number is wanted it is read out of text.

    Attributes:
        written: Text as it stands in the file, of the values that changed.
        found: Faults: a variable that isn't set, or is no variable.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.written: dict[Path, str] = {}
        self.found: list[tuple[Path, ConfigFault]] = []

    def value(self, data: Data, path: Path) -> Data:
        if isinstance(data, dict):
            return {key: self.value(value, (*path, key)) for key, value in data.items()}
        if isinstance(data, list):
            return [self.value(value, (*path, at)) for at, value in enumerate(data)]
        if not isinstance(data, str) or "${" not in data:
            return data
        self.written[path] = data
        return _VARIABLE.sub(lambda match: self._variable(match, path), data)

    def _variable(self, match: re.Match[str], path: Path) -> str:
        if match[1]:
            return match[1]
        reference = _REFERENCE.fullmatch(match[2])
        if reference is None or not match[3]:
            hint = "Write ${NAME} or ${NAME:-default}; $${ stands for ${ itself."
            self._report(path, "holds ${ that names no environment variable", hint)
            return ""
        name, default = reference[1], reference[2]
        value = self._env.get(name)
        if default is not None:
            return value or default
        if value is None:
            hint = f"Set {name}, or write ${{{name}:-default}}."
            self._report(path, f"needs the environment variable {name}, which is not set", hint)
            return ""
        return value

    def _report(self, path: Path, problem: str, hint: str) -> None:
        self.found.append((path, ConfigFault(path_text(path), problem, hint=hint)))
