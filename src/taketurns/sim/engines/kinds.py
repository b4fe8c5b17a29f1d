# SPDX-License-Identifier: Apache-2.0
"""The engine models by the names that scenario files use."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from taketurns.ports.clock import Clock
from taketurns.sim.engines.base import EngineFactory, SimEngine
from taketurns.sim.engines.continuous import A10G_LLAMA2_7B, ContinuousEngine, ContinuousProfile
from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import SimScheduler

PROFILES = {"a10g-llama2-7b": A10G_LLAMA2_7B}

EngineMaker = Callable[[Random], EngineFactory]
"""Makes a run's engines: what is given as a range is drawn anew for each run."""

Drawn = Callable[[Random], float]


def read_engine(section: Section) -> EngineMaker:
    """Read the engines of a scenario file.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    section.text("kind", "continuous", ("continuous",))
    base = PROFILES[section.text("profile", "a10g-llama2-7b", tuple(PROFILES))]
    times = {
        f"{name}_us": _drawn(section, f"{name}_ms", getattr(base, f"{name}_us") / 1_000)
        for name in ("prefill_token", "step", "step_request", "step_token", "overhead")
    }
    counts = {
        name: section.whole(name, getattr(base, name), 1)
        for name in ("pool_tokens", "prefill_tokens_max", "requests_max", "steps_between")
    }
    section.done()

    def make(random: Random) -> EngineFactory:
        drawn: dict[str, Any] = {name: draw(random) * 1_000 for name, draw in times.items()}
        return partial(_continuous, ContinuousProfile(**drawn, **counts))

    return make


def _continuous(
    profile: ContinuousProfile,
    number: int,
    clock: Clock,
    scheduler: SimScheduler,
    finished: Callable[[Request], None],
) -> SimEngine:
    return ContinuousEngine(number, profile, clock, scheduler, finished)


def _drawn(section: Section, key: str, default: float) -> Drawn:
    """Read a time: a number, or ``[least, most]``, from which each run draws its own."""
    value = section.raw(key)
    if isinstance(value, list) and len(value) == 2:
        least, most = value
        return lambda random: random.uniform(least, most)
    fixed = section.number(key, default)
    return lambda _random: fixed
