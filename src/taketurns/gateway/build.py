# SPDX-License-Identifier: Apache-2.0
"""From the configuration to pools with engines: the composition root of the gateway."""

from collections.abc import Callable
from dataclasses import dataclass

from taketurns.config import pools as facts
from taketurns.config.engines import EmbeddedEngineConfig, EngineConfig
from taketurns.config.model import Config
from taketurns.config.served import ModelConfig
from taketurns.core.cost import CostModel, RequestsCost, TokensCost
from taketurns.engines import minilm
from taketurns.engines.minilm import MiniLmEngine, MiniLmTokenizer
from taketurns.engines.openai import OpenAiEngine
from taketurns.engines.smollm2 import SmolLm2Engine
from taketurns.gateway.admission import Admission
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.pools import ServedModel
from taketurns.ports.clock import Clock
from taketurns.ports.engine import EmbeddingEngine, GenerationEngine

SLOTS_MAX = 10_000
"""Most slots that an engine can have: a reload may raise them without making a new client."""

COST_MODELS: dict[str, CostModel] = {"requests": RequestsCost(), "tokens": TokensCost()}


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a gateway, by the name of the model."""

    generation: dict[str, GenerationPool]
    embeddings: dict[str, EmbeddingPool]

    def of(self, model: str) -> GenerationPool | EmbeddingPool | None:
        """Return the pool of a model, or None where there's no such model."""
        return self.generation.get(model) or self.embeddings.get(model)

    def all(self) -> dict[str, GenerationPool | EmbeddingPool]:
        """Return all pools by model."""
        return {**self.generation, **self.embeddings}


def build_pools(
    config: Config,
    clock: Clock,
    admission: Admission,
    *,
    on_batch: Callable[[str, int], None],
    on_late: Callable[[str, str, str], None],
) -> Pools:
    """Make every pool that a configuration describes; nothing is started.

    Args:
        config: A configuration without faults.
        clock: The process's clock.
        admission: The gateway's limits.
        on_batch: Told the model and the number of texts of each batch.
        on_late: Told of each request that a throttle refuses, see :class:`Throttle`.

    Raises:
        StartError: A package of an embedded model is missing.
    """
    built = Pools({}, {})
    for name, section in config.models.items():
        pool = facts.pool(config, name)
        model = served_model(config, name)
        names = facts.engine_names(section)
        if section.kind == "generation":
            built.generation[name] = GenerationPool(
                model,
                pool,
                engines={
                    engine: _generation_engine(engine, part, section)
                    for engine, part in zip(names, section.engines, strict=True)
                },
                upstream_models={
                    engine: _upstream_model(part, name)
                    for engine, part in zip(names, section.engines, strict=True)
                },
                admission=admission,
                clock=clock,
                on_late=on_late,
            )
        else:
            built.embeddings[name] = EmbeddingPool(
                model,
                pool,
                engines={
                    engine: _embedding_engine(engine, part, section, name)
                    for engine, part in zip(names, section.engines, strict=True)
                },
                tokenizer=MiniLmTokenizer() if _all_embedded(section) else None,
                as_ids=_all_embedded(section),
                tokens_max=_tokens_max(section),
                admission=admission,
                clock=clock,
                on_late=on_late,
                on_batch=on_batch,
            )
    return built


def served_model(config: Config, name: str) -> ServedModel:
    """Return what a configuration says of a model."""
    section = config.models[name]
    pool = facts.pool(config, name)
    return ServedModel(
        name=name,
        section=section,
        tenants=frozenset(tenant.name for tenant in pool.tenants),
        queue_timeout_us=pool.queue_timeout_us,
        wait_target_us=pool.wait_target_us,
        cost=COST_MODELS[section.cost_or_default],
    )


def _generation_engine(name: str, part: EngineConfig, section: ModelConfig) -> GenerationEngine:
    if isinstance(part, EmbeddedEngineConfig):
        return SmolLm2Engine(name, slots=part.slots, threads=part.threads)
    return OpenAiEngine(
        name,
        part.url,
        key=part.key or "",
        limits=facts.engine_limits(section.engine_limits),
        connections_max=SLOTS_MAX,
    )


def _embedding_engine(
    name: str, part: EngineConfig, section: ModelConfig, model: str
) -> EmbeddingEngine:
    if isinstance(part, EmbeddedEngineConfig):
        return MiniLmEngine(
            name, slots=part.slots, threads=part.threads, tokens_max=minilm.POSITIONS
        )
    return OpenAiEngine(
        name,
        part.url,
        key=part.key or "",
        embed_model=part.model or model,
        limits=facts.engine_limits(section.engine_limits),
        connections_max=SLOTS_MAX,
    )


def _upstream_model(part: EngineConfig, model: str) -> str:
    return model if isinstance(part, EmbeddedEngineConfig) else part.model or model


def _tokens_max(section: ModelConfig) -> int | None:
    """Return the longest text that all engines of a model take, in tokens; None: no limit."""
    limits = [section.input_tokens_max] if section.input_tokens_max else []
    if any(isinstance(part, EmbeddedEngineConfig) for part in section.engines):
        limits.append(minilm.POSITIONS)
    return min(limits, default=None)


def _all_embedded(section: ModelConfig) -> bool:
    return all(isinstance(part, EmbeddedEngineConfig) for part in section.engines)
