# SPDX-License-Identifier: Apache-2.0
"""Changes the configuration of a gateway that runs: all of it, or nothing.

What can change without a restart: the tenants (new ones, their tiers, weights,
caps, keys), the limits, how long tiers let requests wait and their wait
targets, who may use a model, its quantum, how many slots its engines have, and
which servers there are (:mod:`taketurns.gateway.engine_changes`).
A file that changes anything else is refused whole, and the configuration in
force stays.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from taketurns.config import pools as facts
from taketurns.config.engines import EmbeddedEngineConfig
from taketurns.config.model import Config
from taketurns.errors import ConfigError, ConfigFault
from taketurns.gateway.admission import Admission
from taketurns.gateway.batch_call import BatchEngine
from taketurns.gateway.build import Pools, served_model
from taketurns.gateway.engine_changes import RESTART, EngineChanges
from taketurns.ports.engine import GenerationEngine

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


RENAME = "Give the engine another name, or restart the gateway."


def check_reload(old: Config, new: Config) -> None:
    """See that two configurations differ only in what can change.

    Raises:
        ConfigError: They differ elsewhere; it names every such place.
    """
    faults = [
        ConfigFault(
            _written(path),
            "can't change while the gateway runs",
            hint=RENAME if path[2:3] == ("engines",) else RESTART,
        )
        for path in _differences((), _comparable(old, old, new), _comparable(new, old, new))
    ]
    faults += [
        ConfigFault(
            f"models.{name}.engines[{index}].slots",
            "of an embedded engine can't change while the gateway runs",
            hint=RESTART,
        )
        for name, section in new.models.items()
        for index, (engine, part) in enumerate(facts.engines(section).items())
        if not faults
        and isinstance(part, EmbeddedEngineConfig)
        and part.slots != facts.engines(old.models[name]).get(engine, part).slots
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


def apply_reload(
    pools: Pools, admission: Admission, config: Config, changes: EngineChanges
) -> list[GenerationEngine | BatchEngine]:
    """Let pools and limits go by another configuration, which :func:`check_reload` has passed.

    Tickets that wait keep their tier; all else holds from the next decision on.

    Returns:
        Engines that are no longer used: they are to be closed.
    """
    closed = changes.apply(pools)
    admission.set_rules(config.limit_rules())
    for name, pool in pools.all().items():
        section = config.models[name]
        wanted = facts.pool(config, name)
        pool.model = served_model(config, name)
        pool.turns.set_quantum(wanted.rules.quantum)
        for tenant in wanted.tenants:
            pool.turns.set_tenant(tenant)
        pool.availability.configure(section)
    return closed


def _comparable(config: Config, old: Config, new: Config) -> dict[str, Any]:
    """Return one of two configurations, with the engines that both have by their place in the new.

    It doesn't matter how their names came about.
    """
    dump = config.model_dump()
    for name in old.models.keys() & new.models.keys():
        engines = facts.engines(config.models[name])
        before = facts.engines(old.models[name])
        dump["models"][name]["engines"] = {
            str(index): engines[engine].model_dump(exclude={"name"})
            for index, engine in enumerate(facts.engines(new.models[name]))
            if engine in before
        }
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
