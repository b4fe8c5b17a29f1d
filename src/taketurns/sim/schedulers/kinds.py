# SPDX-License-Identifier: Apache-2.0
"""The schedulers by the names that scenario files use. A new one is one file and one line here."""

from collections.abc import Callable, Sequence

from taketurns.core.cost import (
    DEBT_ROUNDS,
    DEBT_TOKENS,
    HORIZON_DEFAULT,
    REQUEST_COST,
    TOKENS_PER_ROUND,
    CostModel,
    EmaCost,
    RequestsCost,
    TokensCost,
)
from taketurns.core.model import BatchRules, PoolRules, Tier
from taketurns.sim.reading import Section
from taketurns.sim.schedulers.base import SimScheduler, Surroundings
from taketurns.sim.schedulers.counters import LeastCounter
from taketurns.sim.schedulers.fcfs import FirstCome
from taketurns.sim.schedulers.fleet import Fleet, FleetRules
from taketurns.sim.schedulers.gate import GateRules
from taketurns.sim.schedulers.predictors import LastFive, Learned, Nothing, Oracle, Predictor
from taketurns.sim.schedulers.round_robin import RoundRobin
from taketurns.sim.schedulers.rpm import PerMinute
from taketurns.sim.schedulers.weighted_turns import WeightedTurns
from taketurns.units import us_from_s

Factory = Callable[[Surroundings], SimScheduler]


def _fcfs(_section: Section) -> Factory:
    return lambda _around: FirstCome()


def _rpm(section: Section) -> Factory:
    limit = section.whole("limit", least=1)
    return lambda _around: PerMinute(limit)


def _weighted_turns(_section: Section) -> Factory:
    return lambda around: WeightedTurns(around.tenants)


def _lcf(_section: Section) -> Factory:
    cost = EmaCost(horizon=0)
    return lambda around: LeastCounter(cost, Nothing(), around.tenants, lift=False)


def _vtc(section: Section) -> Factory:
    predict = section.text("predict", "nothing", ("nothing", "last-five", "oracle"))
    error = section.number("error", 0.0, 0, 1)
    cost = EmaCost(horizon=0 if predict == "nothing" else None)

    def make(around: Surroundings) -> SimScheduler:
        predictor: Predictor = Nothing()
        if predict == "last-five":
            predictor = LastFive()
        elif predict == "oracle":
            predictor = Oracle(error, around.random)
        return LeastCounter(cost, predictor, around.tenants, lift=True)

    return make


def _cost(section: Section) -> CostModel:
    kind = section.text("cost", "ema", ("requests", "tokens", "ema"))
    if kind == "requests":
        return RequestsCost()
    weights = section.whole("input_weight", 1, 1), section.whole("output_weight", 2, 1)
    if kind == "tokens":
        return TokensCost(*weights)
    return EmaCost(*weights, section.whole_or_none("horizon", HORIZON_DEFAULT, "all"))


def read_tiers(section: Section) -> tuple[Tier, ...]:
    """Read tiers, best first: a mapping of names to floor and slot share in per cent."""
    tiers = []
    for name, tier in section.sections("tiers").items():
        floor, share = tier.whole("floor", 0, 0, 50), tier.whole("slot_share", 100, 1, 100)
        tiers.append(Tier(name, floor, share))
        tier.done()
    return tuple(tiers) or (Tier("all"),)


Inner = Callable[[Surroundings, int | None], RoundRobin]


def _read_round_robin(section: Section, *, shared_queue: bool = False) -> Inner:
    """Read all about the production scheduler but its slots."""
    tiers, cost = read_tiers(section), _cost(section)
    gate = _gate(section, tiers)
    requests = isinstance(cost, RequestsCost)
    quantum = section.whole("quantum", REQUEST_COST if requests else TOKENS_PER_ROUND, 1)
    debt_rounds = DEBT_ROUNDS if requests else max(DEBT_ROUNDS, DEBT_TOKENS // quantum)
    rules = PoolRules(
        quantum=quantum,
        min_charge=section.whole_or_none("min_charge", None, "default"),
        debt_rounds=section.whole("debt_rounds", debt_rounds, 1),
        tenant_queue_max=section.whole("tenant_queue_max", 10_000_000, 1),
        queue_max=section.whole("queue_max", 100_000_000, 1),
        batch=_batch(section),
        shared_queue=shared_queue,
        headroom_percent=section.whole("headroom", 0, 0, 90),
        throttle=gate is not None,
    )
    settle = section.whole("settle_cost", 1, 1)
    default = section.whole("expect", 256, 1)
    predict = section.text("predict", "learned", ("learned", "oracle"))
    error = section.number("error", 0.0, 0, 1)

    def make(around: Surroundings, slots: int | None) -> RoundRobin:
        predictor: Predictor = Learned(default)
        if isinstance(cost, RequestsCost):
            predictor = Nothing()
        elif predict == "oracle":
            predictor = Oracle(error, around.random)
        return RoundRobin(
            rules, tiers, cost, predictor, around, slots=slots, settle_cost=settle, gate=gate
        )

    return make


def _gate(section: Section, tiers: Sequence[Tier]) -> GateRules | None:
    """Read a wait target, which is every tier's: who can't start within it is refused."""
    if "wait_target" not in section:
        return None
    if section.raw("slots") in (None, "fit"):
        raise section.fault("wait_target", "goes with slots only", "Say how many slots there are.")
    target_us = us_from_s(section.number("wait_target", least=0.001))
    return GateRules({tier.name: target_us for tier in tiers})


def _batch(section: Section) -> BatchRules | None:
    if "batch" not in section:
        return None
    batch = section.section("batch")
    rules = BatchRules(
        batch.whole("tokens", least=1), batch.whole("items", 64, 1), batch.flag("padded")
    )
    batch.done()
    return rules


def _round_robin(section: Section) -> Factory:
    slots = section.whole_or_none("slots", None, "fit", 1)
    if slots is None and section.raw("headroom"):
        raise section.fault("headroom", "goes with slots only", "Say how many slots there are.")
    inner = _read_round_robin(section)
    return lambda around: inner(around, slots)


def _shared_queue(section: Section) -> Factory:
    slots = section.whole_or_none("slots", None, "fit", 1)
    inner = _read_round_robin(section, shared_queue=True)
    return lambda around: inner(around, slots)


def _fleet(section: Section) -> Factory:
    gateways = section.whole("gateways", least=1, most=1_000)
    lost = section.raw("store_lost")
    dies = section.raw("gateway_dies")
    ingress = {
        tenant: [float(share) for share in shares]
        for tenant, shares in (section.raw("ingress") or {}).items()
    }
    rules = FleetRules(
        gateways=gateways,
        slots=section.whole("slots", least=gateways),
        shared=section.text("state", "shared", ("shared", "local")) == "shared",
        delay_us=round(section.number("delay_ms", 0.0) * 1_000),
        ingress=ingress,
        lost_us=None if lost is None else (us_from_s(lost[0]), us_from_s(lost[1])),
        dies_us=None if dies is None else us_from_s(dies),
        notice_us=us_from_s(section.number("notice", 5.0)),
    )
    inner = _read_round_robin(section)
    return lambda around: Fleet(rules, inner, around)


KINDS: dict[str, Callable[[Section], Factory]] = {
    "fcfs": _fcfs,
    "rpm": _rpm,
    "weighted-turns": _weighted_turns,
    "lcf": _lcf,
    "vtc": _vtc,
    "shared-queue": _shared_queue,
    "round-robin": _round_robin,
    "fleet": _fleet,
}


def read_scheduler(section: Section) -> Factory:
    """Read a scheduler of a scenario file.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    factory = KINDS[section.text("kind", options=tuple(KINDS))](section)
    section.done()
    return factory
