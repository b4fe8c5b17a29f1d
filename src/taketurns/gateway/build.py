# SPDX-License-Identifier: Apache-2.0
"""From the configuration to pools with engines: the composition root of the gateway.

Embedded models and tokenizers are imported where they're asked for: their packages
hold some 40 MB that a gateway in front of other engines has no use for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taketurns.config import pools as facts
from taketurns.config.engines import EmbeddedEngineConfig, EngineConfig
from taketurns.config.model import Config
from taketurns.config.served import ModelConfig
from taketurns.engines.batching import BatchingEngine, embed_format, score_format
from taketurns.engines.openai import OpenAiEngine
from taketurns.gateway.admission import Admission
from taketurns.gateway.batch_call import BatchEngine
from taketurns.gateway.batches import EmbeddingPool
from taketurns.gateway.coordination import MakeTurns
from taketurns.gateway.counting import Counter
from taketurns.gateway.generation import GenerationPool
from taketurns.gateway.pools import ServedModel
from taketurns.gateway.upstream import Salts, Upstream
from taketurns.gateway.watch import RelayRules, Watch
from taketurns.ports.clock import Clock
from taketurns.ports.engine import GenerationEngine, Tokenizer, Truncate
from taketurns.system import random_bytes
from taketurns.units import us_from_s

SLOTS_MAX = 10_000
"""Most slots that an engine can have: a reload may raise them without making a new client."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The pools of a gateway, by the name of the model.

    Attributes:
        generation: For chat and completions.
        embeddings: For texts.
        watch: Looks at the answers under way, of all pools.
        salts: What engines are told of tenants.
        parts: What each engine was made from, by model and name.
    """

    generation: dict[str, GenerationPool]
    embeddings: dict[str, EmbeddingPool]
    watch: Watch
    salts: Salts
    parts: dict[str, dict[str, EngineConfig]]

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
    make_turns: MakeTurns,
    *,
    on_batch: Callable[[str, int], None],
    on_late: Callable[[str, str, str], None],
    on_mistrust: Callable[[str], None],
) -> Pools:
    """Make every pool that a configuration describes; nothing is started.

    Args:
        config: A configuration without faults.
        clock: The process's clock.
        admission: The gateway's limits.
        make_turns: Makes the turns of each pool.
        on_batch: Told the model and the number of texts of each batch.
        on_late: Told of each request that a throttle refuses, see :class:`Throttle`.
        on_mistrust: Told the model where an engine counts characters as tokens.

    Raises:
        StartError: A package of an embedded model is missing.
    """
    server = config.server
    salts = Salts(server.secret.encode() if server.secret else random_bytes(32))
    watch = Watch(
        clock,
        RelayRules(
            ping_us=us_from_s(server.ping) or None, unread_us=us_from_s(server.unread_timeout)
        ),
    )
    built = Pools({}, {}, watch, salts, {})
    for name, section in config.models.items():
        pool = facts.pool(config, name)
        model = served_model(config, name)
        parts = facts.engines(section)
        built.parts[name] = dict(parts)
        if section.kind == "generation":
            built.generation[name] = GenerationPool(
                model,
                pool,
                make_turns=make_turns,
                engines={
                    engine: generation_engine(engine, part, section)
                    for engine, part in parts.items()
                },
                upstreams={engine: upstream(part, name, salts) for engine, part in parts.items()},
                admission=admission,
                clock=clock,
                watch=watch,
                on_late=on_late,
            )
        else:
            built.embeddings[name] = EmbeddingPool(
                model,
                pool,
                make_turns=make_turns,
                engines={
                    engine: embedding_engine(engine, part, section, name)
                    for engine, part in parts.items()
                },
                counter=_counter(section),
                truncates=truncates_of(section),
                admission=admission,
                clock=clock,
                on_late=on_late,
                on_batch=on_batch,
                on_mistrust=on_mistrust,
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
        cost=facts.cost_model(section),
    )


def generation_engine(name: str, part: EngineConfig, section: ModelConfig) -> GenerationEngine:
    """Make an engine for chat and completions; it isn't started."""
    if isinstance(part, EmbeddedEngineConfig):
        from taketurns.engines.smollm2 import SmolLm2Engine

        return SmolLm2Engine(name, slots=part.slots, threads=part.threads)
    return OpenAiEngine(
        name,
        part.url,
        key=part.key or "",
        limits=facts.engine_limits(section.engine_limits),
        connections_max=SLOTS_MAX,
    )


def embedding_engine(
    name: str, part: EngineConfig, section: ModelConfig, model: str
) -> BatchEngine:
    """Make an engine for batches; it isn't started."""
    if isinstance(part, EmbeddedEngineConfig):
        from taketurns.engines.minilm import POSITIONS, MiniLmEngine

        return MiniLmEngine(name, slots=part.slots, threads=part.threads, tokens_max=POSITIONS)
    limits = facts.engine_limits(section.engine_limits)
    return BatchingEngine(
        OpenAiEngine(name, part.url, key=part.key or "", limits=limits, connections_max=SLOTS_MAX),
        part.model or model,
        kind=part.kind,
        one_query=section.rerank_or_default == "query",
        answer_bytes_max=limits.answer_bytes_max,
    )


def upstream(part: EngineConfig, model: str, salts: Salts) -> Upstream:
    """Return how an engine is asked for chat and completions."""
    if isinstance(part, EmbeddedEngineConfig):
        return Upstream(model)
    knows_salts = part.kind != "llamacpp"
    return Upstream(
        part.model or model,
        asks_usage=part.ask_usage,
        priority=part.priority,
        salts=salts if part.keeps_apart and knows_salts else None,
        keeps_prompts=knows_salts or not part.keeps_apart,
    )


def _tokens_max(section: ModelConfig) -> int | None:
    """Return the longest text that all engines of a model take, in tokens; None: no limit."""
    limits = [section.input_tokens_max] if section.input_tokens_max else []
    if any(isinstance(part, EmbeddedEngineConfig) for part in section.engines):
        from taketurns.engines.minilm import POSITIONS

        limits.append(POSITIONS)
    return min(limits, default=None)


def _counter(section: ModelConfig) -> Counter:
    embedded = [isinstance(part, EmbeddedEngineConfig) for part in section.engines]
    tokenizer: Tokenizer | None = None
    if all(embedded):
        from taketurns.engines.minilm import MiniLmTokenizer

        tokenizer = MiniLmTokenizer()
    elif section.tokenizer is not None:
        from taketurns.engines.tokenizer_file import FileTokenizer

        tokenizer = FileTokenizer(Path(section.tokenizer))
    # The embedded model needs not count again what was counted here.
    return Counter(tokenizer, tokens_max=_tokens_max(section), as_ids=all(embedded))


def truncates_of(section: ModelConfig) -> frozenset[Truncate]:
    """Return the ends that every engine of a model can cut off a text that is too long."""
    ends = frozenset[Truncate]({"start", "end"})
    rerank = section.rerank_or_default
    for part in section.engines:
        if isinstance(part, EmbeddedEngineConfig):
            return frozenset()
        ends &= embed_format(part.kind).truncates
        if rerank != "cosine":
            ends &= score_format(part.kind, one_query=rerank == "query").truncates
    return ends
