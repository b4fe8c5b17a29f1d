# SPDX-License-Identifier: Apache-2.0
"""Which engines come and go with another configuration, while the gateway runs.

All that can fail is done by :func:`engine_changes`, before anything changes. An
engine is known by its name. One that is left out finishes what it has; a server
that is still left out at a later reload, with nothing running, is forgotten, so
that what is kept of engines is bounded. Embedded engines are loaded at the start alone.
"""

from dataclasses import dataclass, field

from taketurns.config import pools as facts
from taketurns.config.engines import EmbeddedEngineConfig, EngineConfig, UrlEngineConfig
from taketurns.config.model import Config
from taketurns.config.served import ModelConfig
from taketurns.engines.batching import BatchingEngine
from taketurns.engines.openai import OpenAiEngine
from taketurns.errors import ConfigError, ConfigFault, StartError
from taketurns.gateway.batch_call import BatchEngine
from taketurns.gateway.build import (
    Pools,
    embedding_engine,
    generation_engine,
    truncates_of,
    upstream,
)
from taketurns.gateway.generation import GenerationPool
from taketurns.ports.engine import GenerationEngine

RESTART = "Restart the gateway for this, or change it back."

_SLOTS = {"name", "slots", "slots_min", "slots_max"}


@dataclass(slots=True)
class _Changes:
    """Those of one model."""

    section: ModelConfig
    added: dict[str, GenerationEngine | BatchEngine] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)


class EngineChanges:
    """What :func:`engine_changes` found; to be applied at once, or dropped."""

    def __init__(self, by_model: dict[str, _Changes]) -> None:
        self._by_model = by_model

    def apply(self, pools: Pools) -> list[GenerationEngine | BatchEngine]:
        """Let pools have the engines; those that come get their slots by ``configure``.

        Returns:
            Engines that nothing uses any more: they are to be closed.
        """
        closed = []
        for model, changes in self._by_model.items():
            pool = pools.all()[model]
            parts = pools.parts[model]
            for name in changes.forgotten:
                closed.append(pool.engines.pop(name))
                del parts[name]
                pool.availability.forget(name)
                pool.turns.remove_engine(name)
            wanted = facts.engines(changes.section)
            if isinstance(pool, GenerationPool):
                for name in changes.forgotten:
                    del pool.upstreams[name]
                for name in changes.added:
                    pool.upstreams[name] = upstream(wanted[name], model, pools.salts)
            else:
                pool.truncates = truncates_of(changes.section)
            for name, engine in changes.added.items():
                # The pool's kind says which kind of engine was made.
                pool.engines[name] = engine  # type: ignore[assignment]
                parts[name] = wanted[name]
        return closed


def engine_changes(pools: Pools, old: Config, new: Config) -> EngineChanges:
    """Make the engines that a configuration adds; nothing is changed yet.

    Args:
        pools: As they are.
        old: The configuration in force.
        new: The one wanted: the engines that both have are the same.

    Raises:
        ConfigError: Something can't be added, or not now.
    """
    faults: list[ConfigFault] = []
    by_model = {}
    for model, section in new.models.items():
        by_model[model] = changes = _Changes(section)
        before, after = facts.engines(old.models[model]), facts.engines(section)
        known = pools.parts[model]
        availability = pools.all()[model].availability
        changes.forgotten = [
            name
            for name, part in known.items()
            if name not in before
            and not (name in after and _same(part, after[name]))
            and isinstance(part, UrlEngineConfig)
            and availability.idle(name)
        ]
        fault = _whole_fault(old.models[model], section)
        if fault:
            faults.append(ConfigFault(f"models.{model}.engines", fault, hint=RESTART))
            continue
        for index, (name, part) in enumerate(after.items()):
            if name in before or (name in known and _same(known[name], part)):
                continue
            path = f"models.{model}.engines[{index}]"
            if isinstance(part, EmbeddedEngineConfig):
                fault = "adds an embedded engine, and those are loaded at the start"
                faults.append(ConfigFault(path, fault, hint=RESTART))
            elif name in known and name not in changes.forgotten:
                fault = (
                    f"has other settings than {name}, which was left out and still runs requests"
                )
                hint = "Give it another name, or wait until they have ended."
                faults.append(ConfigFault(path, fault, hint=hint))
            else:
                try:
                    changes.added[name] = _made(name, part, section, model)
                except StartError as error:
                    faults.append(ConfigFault(path, str(error)))
    if faults:
        raise ConfigError(faults)
    return EngineChanges(by_model)


def _same(one: EngineConfig, other: EngineConfig) -> bool:
    return one.model_dump(exclude=_SLOTS) == other.model_dump(exclude=_SLOTS)


def _whole_fault(old: ModelConfig, new: ModelConfig) -> str:
    """Return what engines of other kinds change that was settled for all; empty: nothing."""
    if new.kind == "generation" or facts.engines(old).keys() == facts.engines(new).keys():
        return ""
    if "rerank" in new.endpoints and old.rerank_or_default != new.rerank_or_default:
        return f"turn rerank from {old.rerank_or_default} to {new.rerank_or_default}"
    if all(isinstance(part, EmbeddedEngineConfig) for part in old.engines) and not all(
        isinstance(part, EmbeddedEngineConfig) for part in new.engines
    ):
        return "put a server beside embedded engines, whose own tokenizer counts now"
    return ""


def _made(
    name: str, part: UrlEngineConfig, section: ModelConfig, model: str
) -> GenerationEngine | BatchEngine:
    engine: GenerationEngine | BatchEngine
    if section.kind == "generation":
        engine = generation_engine(name, part, section)
    else:
        engine = embedding_engine(name, part, section, model)
    assert isinstance(engine, OpenAiEngine | BatchingEngine), "servers have these"
    engine.prepare()
    return engine
