# SPDX-License-Identifier: Apache-2.0
"""The engine models by the names that scenario files use."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from taketurns.sim.engines.base import EngineFactory
from taketurns.sim.engines.batches import BatchEngine, BatchProfile
from taketurns.sim.engines.continuous import A10G_LLAMA2_7B, ContinuousEngine, ContinuousProfile
from taketurns.sim.engines.slots import SlotsEngine, SlotsProfile
from taketurns.sim.reading import Section

PROFILES = {"a10g-llama2-7b": A10G_LLAMA2_7B}

EngineMaker = Callable[[Random], EngineFactory]
"""Makes a run's engines: what is given as a range is drawn anew for each run."""

Drawn = Callable[[Random], float]


def read_engine(section: Section) -> EngineMaker:
    """Read the engines of a scenario file.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    maker = KINDS[section.text("kind", "continuous", tuple(KINDS))](section)
    section.done()
    return maker


def _continuous(section: Section) -> EngineMaker:
    base = PROFILES[section.text("profile", "a10g-llama2-7b", tuple(PROFILES))]
    times = {
        f"{name}_us": _drawn(section, f"{name}_ms", getattr(base, f"{name}_us") / 1_000)
        for name in ("prefill_token", "step", "step_request", "step_token", "overhead")
    }
    counts = {
        name: section.whole(name, getattr(base, name), 1)
        for name in ("pool_tokens", "prefill_tokens_max", "requests_max", "steps_between")
    }

    def make(random: Random) -> EngineFactory:
        drawn: dict[str, Any] = {name: draw(random) * 1_000 for name, draw in times.items()}
        return partial(ContinuousEngine, ContinuousProfile(**drawn, **counts))

    return make


def _slots(section: Section) -> EngineMaker:
    times = {
        f"{name}_us": _drawn(section, f"{name}_ms", 0) for name in ("request", "input", "output")
    }
    slots, seats = section.whole("slots", least=1), section.flag("seats")

    def make(random: Random) -> EngineFactory:
        drawn = {name: draw(random) * 1_000 for name, draw in times.items()}
        return partial(SlotsEngine, SlotsProfile(slots, **drawn, seats=seats))

    return make


def _batches(section: Section) -> EngineMaker:
    times = {f"{name}_us": _drawn(section, f"{name}_ms") for name in ("base", "token")}
    tokens, items = section.whole("tokens_max", least=1), section.whole("items_max", 64, 1)
    padded = section.flag("padded")

    def make(random: Random) -> EngineFactory:
        drawn = {name: draw(random) * 1_000 for name, draw in times.items()}
        profile = BatchProfile(**drawn, tokens_max=tokens, items_max=items, padded=padded)
        return partial(BatchEngine, profile)

    return make


KINDS: dict[str, Callable[[Section], EngineMaker]] = {
    "continuous": _continuous,
    "slots": _slots,
    "batches": _batches,
}


def _drawn(section: Section, key: str, default: float | None = None) -> Drawn:
    """Read a time: a number, or ``[least, most]``, from which each run draws its own."""
    value = section.raw(key)
    if isinstance(value, list):
        if len(value) != 2 or not all(isinstance(end, int | float) for end in value):
            raise section.fault(key, f"must be a number or [least, most], got {value}")
        least, most = value
        return lambda random: random.uniform(least, most)
    fixed = section.number(key, default)
    return lambda _random: fixed
