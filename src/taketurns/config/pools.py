# SPDX-License-Identifier: Apache-2.0
"""From the configuration to the scheduler's values: the border that pydantic doesn't cross.

All functions are pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from taketurns.config.engines import EmbeddedEngineConfig, EngineConfig, EngineLimitsConfig
from taketurns.config.model import Config
from taketurns.config.served import ModelConfig
from taketurns.core.cost import (
    DEBT_ROUNDS,
    DEBT_TOKENS,
    REQUEST_COST,
    TOKENS_PER_ROUND,
    CostModel,
    EmaCost,
    RequestsCost,
    TokensCost,
)
from taketurns.core.model import BatchRules, PoolRules, Tenant, Tier
from taketurns.ports.engine import EngineLimits
from taketurns.units import us_from_s

BATCH_ROUNDS = 64
"""Rounds that one batch is made of, by default: so many tenants find room in it."""

DEBT_BATCHES = 8
"""Batches that a tenant can be set back, by default; or rounds, if those are more."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What the scheduler of one model is made with.

    Attributes:
        model: Name of the model.
        rules: How its pool schedules.
        tiers: The service levels, best first; never empty.
        tenants: Those that may use the model, in the order of the file.
        queue_timeout_us: Longest wait in the queue, by tier.
        wait_target_us: Wait within which a request should start, by tier; None:
            none is refused for that. All are None where the throttle is off.
    """

    model: str
    rules: PoolRules
    tiers: tuple[Tier, ...]
    tenants: tuple[Tenant, ...]
    queue_timeout_us: dict[str, int]
    wait_target_us: dict[str, int | None]


def pools(config: Config) -> dict[str, Pool]:
    """Return the pool of each model, by the model's name."""
    return {name: pool(config, name) for name in config.models}


def pool(config: Config, model: str) -> Pool:
    """Return the pool of one model.

    Raises:
        KeyError: There is no such model.
    """
    section = config.models[model]
    tenants = _tenants(config, section)
    timeouts = {name: us_from_s(tier.queue_timeout) for name, tier in config.tiers.items()}
    targets = _wait_targets(config, section)
    return Pool(
        model,
        _rules(section, tenants, throttled=any(targets.values())),
        tiers(config),
        tenants,
        queue_timeout_us=timeouts,
        wait_target_us=targets,
    )


def tiers(config: Config) -> tuple[Tier, ...]:
    """Return the tiers in the order of their ranks, best first."""
    ranked = sorted(config.tiers.items(), key=lambda item: item[1].rank)
    return tuple(
        Tier(name, floor_percent=tier.floor, slot_share_percent=tier.slot_share)
        for name, tier in ranked
    )


def _wait_targets(config: Config, model: ModelConfig) -> dict[str, int | None]:
    """Return each tier's target, the model's own before the tier's."""
    targets_s = {
        name: None if model.throttle == "off" else model.wait_targets.get(name, tier.wait_target)
        for name, tier in config.tiers.items()
    }
    return {name: None if s is None else us_from_s(s) for name, s in targets_s.items()}


def _tenants(config: Config, model: ModelConfig) -> tuple[Tenant, ...]:
    # A cap counts requests; in an embeddings pool tickets are texts, and a
    # batch of many of them takes one slot.
    capped = model.kind == "generation"
    return tuple(
        Tenant(name, weight=tenant.weight, cap=tenant.parallel if capped else None)
        for name, tenant in config.tenants.items()
        if model.tenants is None or name in model.tenants
    )


def _rules(model: ModelConfig, tenants: Sequence[Tenant], *, throttled: bool) -> PoolRules:
    quantum = model.quantum or _quantum_default(model, tenants)
    return PoolRules(
        quantum=quantum,
        tenant_queue_max=model.tenant_queue_max,
        queue_max=model.queue_max,
        debt_rounds=model.debt_rounds or _debt_rounds_default(model, quantum),
        batch=_batch(model),
        # A text may be far smaller than a quantum: it costs its own tokens.
        min_charge=1 if model.kind == "embeddings" else None,
        throttle=throttled,
        shared_queue=model.scheduler == "shared_queue",
        headroom_percent=model.headroom,
        sticky=model.sticky != "off",
    )


def _quantum_default(model: ModelConfig, tenants: Sequence[Tenant]) -> int:
    """Return the quantum with which a large weight means more turns, not longer ones."""
    largest = max((tenant.weight for tenant in tenants), default=1)
    if model.cost_or_default == "requests":
        return max(1, REQUEST_COST // largest)
    if model.kind == "embeddings":
        return max(1, model.batch.tokens_max // BATCH_ROUNDS // largest)
    return max(1, TOKENS_PER_ROUND // largest)


def cost_model(section: ModelConfig) -> CostModel:
    """Return what a model's requests cost."""
    tokens = section.token_cost
    match section.cost_or_default:
        case "requests":
            return RequestsCost()
        case "tokens":
            return TokensCost(tokens.input, tokens.output)
        case "ema":
            return EmaCost(tokens.input, tokens.output, tokens.horizon)


def _debt_rounds_default(model: ModelConfig, quantum: int) -> int:
    if model.kind == "embeddings":
        return max(DEBT_ROUNDS, DEBT_BATCHES * model.batch.tokens_max // quantum)
    if model.cost_or_default == "requests":
        return DEBT_ROUNDS
    return max(DEBT_ROUNDS, DEBT_TOKENS // quantum)


def _batch(model: ModelConfig) -> BatchRules | None:
    if model.kind == "generation":
        return None
    batch = model.batch
    return BatchRules(
        size_max=batch.tokens_max,
        items_max=batch.items_max,
        padded=batch.padded,
        linger_us=us_from_s(batch.linger),
    )


def engine_limits(limits: EngineLimitsConfig) -> EngineLimits:
    """Return the time limits of a model's engines."""
    return EngineLimits(
        connect_s=limits.connect,
        first_byte_s=limits.first_byte,
        between_chunks_s=limits.between_chunks,
        total_s=limits.total,
    )


def engine_names(model: ModelConfig) -> tuple[str, ...]:
    """Return a name for each engine, in their order: unique in the model.

    A name that the operator gave stays; others come from host and port or
    from the embedded model, with a number where that is taken.
    """
    taken = {engine.name for engine in model.engines if engine.name is not None}
    names: list[str] = []
    for engine in model.engines:
        name = engine.name
        if name is None:
            base = name = _base_name(engine)
            number = 2
            while name in taken:
                name = f"{base}-{number}"
                number += 1
            taken.add(name)
        names.append(name)
    return tuple(names)


def engines(model: ModelConfig) -> dict[str, EngineConfig]:
    """Return the engines of a model by name, in their order."""
    return dict(zip(engine_names(model), model.engines, strict=True))


def _base_name(engine: EngineConfig) -> str:
    if isinstance(engine, EmbeddedEngineConfig):
        return engine.embedded
    return urlsplit(engine.url).netloc
