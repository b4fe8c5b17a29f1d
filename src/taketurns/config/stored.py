# SPDX-License-Identifier: Apache-2.0
"""The part of the file that commands on the store need: where it is, and the keys in the file.

So that a key can be revoked where the variables of the rest of the file aren't set.
"""

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from taketurns.config.faults import fault_of, path_text
from taketurns.config.load import Expander, read
from taketurns.config.model import KeyLine, store_setting
from taketurns.config.yaml_tree import Path, build, compose
from taketurns.errors import ConfigError, ConfigFault


class StoredTenant(BaseModel):
    """``tenants.NAME``, as far as its keys go."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    keys: tuple[KeyLine, ...] = ()


class Stored(BaseModel):
    """What the file says of the store and of keys."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    store: Annotated[str, AfterValidator(store_setting)] = "memory"
    tenants: dict[str, StoredTenant] = {}


def load_stored(path: str | os.PathLike[str], *, env: Mapping[str, str] | None = None) -> Stored:
    """Read what a configuration file says of the store and of keys; the rest isn't looked at.

    Args:
        path: The file, YAML in UTF-8.
        env: Values for ``${NAME}``; None: the process's environment.

    Raises:
        ConfigError: With every fault of that part.
    """
    source = os.fspath(path)
    try:
        return _stored(read(path), os.environ if env is None else env)
    except ConfigError as error:
        raise ConfigError(error.faults, source=source) from None


def _stored(text: str, env: Mapping[str, str]) -> Stored:
    root = compose(text)
    if root is None or root.pairs is None:
        raise ConfigError([ConfigFault("", "the file must be a mapping at its top level")])
    tree = build(root)
    expander = Expander(env)
    data = expander.value(tree.data, ())
    faults = [
        ConfigFault(path_text(path), problem, hint=hint)
        for path, problem, hint in tree.faults
        if _matters(path)
    ]
    faults += [fault for path, fault in expander.found if _matters(path)]
    if faults:
        raise ConfigError(faults)
    try:
        return Stored.model_validate(data)
    except ValidationError as error:
        found = [fault_of(detail, expander.written) for detail in error.errors(include_url=False)]
        raise ConfigError([fault for _, fault in found]) from None


def _matters(path: Path) -> bool:
    return path[:1] == ("store",) or (path[:1] == ("tenants",) and path[2:3] == ("keys",))
