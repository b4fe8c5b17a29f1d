# SPDX-License-Identifier: Apache-2.0
"""Changes the configuration of a gateway that runs: all of it, or nothing.

What can change without a restart: the tenants (new ones, their tiers, weights,
caps, keys), the limits, how long tiers let requests wait and their wait
targets, who may use a model, its quantum, how many slots its engines have, and
that an engine is left out: what runs there goes on.
A file that changes anything else is refused whole, and the configuration in
force stays.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from taketurns.config import pools as facts
from taketurns.config.engines import EmbeddedEngineConfig, EngineConfig
from taketurns.config.model import Config
from taketurns.config.served import ModelConfig
from taketurns.errors import ConfigError, ConfigFault
from taketurns.gateway.admission import Admission
from taketurns.gateway.build import Pools, served_model

CHANGEABLE = (
    ("tenants",),
    ("limits",),
    ("tiers", "*", "queue_timeout"),
    ("tiers", "*", "wait_target"),
    ("models", "*", "tenants"),
    ("models", "*", "wait_targets"),
    ("models", "*", "quantum"),
    ("models", "*", "engines", "*", "slots"),
    ("models", "*", "engines", "*", "slots_min"),
    ("models", "*", "engines", "*", "slots_max"),
    ("models", "*", "health"),
)
"""Paths that a reload may change, with all that is under them."""

RESTART = "Restart the gateway for this, or change it back."


def check_reload(old: Config, new: Config) -> None:
    """See that two configurations differ only in what can change.

    Raises:
        ConfigError: They differ elsewhere; it names every such place.
    """
    faults = [
        ConfigFault(_written(path), "can't change while the gateway runs", hint=RESTART)
        for path in _differences((), _without_removed(old, new), new.model_dump())
    ]
    faults += [
        ConfigFault(
            f"models.{name}.engines[{index}].slots",
            "of an embedded engine can't change while the gateway runs",
            hint=RESTART,
        )
        for name, section in new.models.items()
        for index, part in enumerate(section.engines)
        if not faults
        and isinstance(part, EmbeddedEngineConfig)
        and part.slots != _engine_of(old.models[name], facts.engine_names(section)[index]).slots
    ]
    faults += [
        ConfigFault(
            f"models.{name}",
            "gets its first wait target, and measuring begins at the start",
            hint=RESTART,
        )
        for name in new.models
        if not faults
        and facts.pool(new, name).rules.throttle
        and not facts.pool(old, name).rules.throttle
    ]
    if faults:
        raise ConfigError(faults)


def apply_reload(pools: Pools, admission: Admission, config: Config) -> None:
    """Let pools and limits go by another configuration, which :func:`check_reload` has passed.

    Tickets that wait keep their tier; all else holds from the next decision on.
    """
    admission.set_rules(config.limit_rules())
    for name, pool in pools.all().items():
        section = config.models[name]
        wanted = facts.pool(config, name)
        pool.model = served_model(config, name)
        pool.turns.set_quantum(wanted.rules.quantum)
        for tenant in wanted.tenants:
            pool.turns.set_tenant(tenant)
        pool.availability.configure(section)


def _engine_of(model: ModelConfig, name: str) -> EngineConfig:
    return dict(zip(facts.engine_names(model), model.engines, strict=True))[name]


def _without_removed(old: Config, new: Config) -> dict[str, Any]:
    """Return a configuration without the engines that another leaves out, and those alone."""
    dump = old.model_dump()
    for name in old.models.keys() & new.models.keys():
        left = facts.engine_names(new.models[name])
        names = facts.engine_names(old.models[name])
        if left == tuple(engine for engine in names if engine in left):
            engines = dump["models"][name]["engines"]
            dump["models"][name]["engines"] = tuple(
                part for engine, part in zip(names, engines, strict=True) if engine in left
            )
    return dump


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths at which two configurations differ where they must not."""
    if old == new or any(_covers(pattern, path) for pattern in CHANGEABLE):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        for key in old:
            yield from _differences((*path, str(key)), old[key], new[key])
    elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences((*path, str(index)), before, after)
    else:
        yield path


def _written(path: tuple[str, ...]) -> str:
    """Return a path as it's written in messages about the file."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).lstrip(".")


def _covers(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        wanted in {"*", part} for wanted, part in zip(pattern, path, strict=True)
    )
