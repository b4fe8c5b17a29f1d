# SPDX-License-Identifier: Apache-2.0
"""Scenario files: what is simulated, with which schedulers, how often, and what was published."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import yaml

from taketurns.errors import ConfigError, ConfigFault
from taketurns.sim.closed_loops import Loop, read_loop
from taketurns.sim.engines.kinds import EngineMaker, read_engine
from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts
from taketurns.sim.schedulers.kinds import Factory, read_scheduler
from taketurns.sim.traces import read_trace
from taketurns.sim.workloads import Traffic, merged, read_facts, read_traffic
from taketurns.units import us_from_s

FOLDER = files("taketurns.sim") / "scenarios"
"""Where the scenarios lie that come with the package."""

BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario file says.

    Attributes:
        name: The file's name, without its ending.
        about: What it shows, in a sentence or two.
        duration_s: How long requests arrive.
        measured_s: How long service is measured in windows, from the start.
        end_s: When to stop; None: when everything is served.
        seeds: How many runs of each scheduler.
        engines: How many engines.
        engine: Makes them.
        tenants: Those that differ from the defaults.
        arrivals: From a seed: the requests, in order.
        loops: Clients in closed loops.
        early: Whose the first so many admitted requests were is counted.
        held_from_s: From when on it counts how long tenants hold slots.
        show: Figures of its table; those of a tenant are written TENANT.FIGURE.
        schedulers: By name.
        published: For schedulers: figures that were published, by name.
    """

    name: str
    about: str
    duration_s: float
    measured_s: float
    end_s: float | None
    seeds: int
    engines: int
    engine: EngineMaker
    tenants: Mapping[str, TenantFacts]
    arrivals: Callable[[str], Iterator[Request]]
    loops: Sequence[Loop]
    early: int
    held_from_s: float | None
    show: Sequence[str]
    schedulers: Mapping[str, Factory]
    published: Mapping[str, Mapping[str, float]]


def names() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in FOLDER.iterdir()
        if entry.name.endswith(".yaml")
    )


def load(name_or_file: str) -> tuple[str, dict[str, Any]]:
    """Return a scenario's name and its file as it stands.

    Raises:
        ConfigError: There is no such file, or it is not YAML.
    """
    path = Path(name_or_file)
    if name_or_file in names():
        text = (FOLDER / f"{name_or_file}.yaml").read_text("utf-8")
    else:
        try:
            if path.stat().st_size > BYTES_MAX:
                raise _fault(name_or_file, f"is larger than {BYTES_MAX:,} bytes")
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(names())
            raise _fault(
                name_or_file, f"can't be read: {error}", f"Name a file, or one of: {known}."
            ) from error
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _fault(name_or_file, f"is not YAML: {error}") from error
    if not isinstance(value, dict):
        raise _fault(name_or_file, "must be a mapping")
    return path.stem, value


def read(name: str, value: Mapping[str, Any], folder: Path) -> Scenario:
    """Read a scenario.

    Args:
        name: What to call it.
        value: The file's mapping.
        folder: Against which its paths are meant.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    top = Section(value, source=name)
    duration = top.number("duration", least=0.001)
    traffic: list[Traffic] = []
    loops: list[Loop] = []
    facts: dict[str, TenantFacts] = {}
    trace = None
    if "trace" in top:
        trace = read_trace(top.section("trace"), folder)
        for tenant, section in top.sections("tenants").items():
            facts[tenant] = read_facts(section)
            section.done()
    else:
        for tenant, section in top.sections("tenants").items():
            if "threads" in section:
                loops.append(read_loop(tenant, section))
            else:
                traffic += read_traffic(tenant, section)
        facts = {each.tenant: each.facts for each in traffic}
        facts |= {each.tenant: each.facts for each in loops}
    if trace is None and not traffic and not loops:
        raise top.fault("tenants", "is missing", "Give tenants that send something, or a trace.")
    engines = top.section("engines")
    made = Scenario(
        name=name,
        about=" ".join(top.text("about", "").split()),
        duration_s=duration,
        measured_s=top.number("measured", duration),
        end_s=None if top.raw("until", "served") == "served" else top.number("until"),
        seeds=top.whole("seeds", 1, 1, 10_000),
        engines=engines.whole("count", 1, 1, 100_000),
        engine=read_engine(engines),
        tenants=facts,
        arrivals=_arrivals(trace, traffic, duration),
        loops=loops,
        early=top.whole("count_first", 0),
        held_from_s=top.number("held_from") if "held_from" in top else None,
        show=[str(figure) for figure in top.raw("show", [])],
        schedulers={
            label: read_scheduler(section) for label, section in top.sections("schedulers").items()
        },
        published={
            label: {key: section.number(key) for key in section.names()}
            for label, section in top.sections("published").items()
        },
    )
    if not made.schedulers:
        raise top.fault("schedulers", "is missing", "Name at least one.")
    top.raw("sweep")
    top.done()
    return made


def _arrivals(
    trace: Callable[[Random], Iterator[Request]] | None,
    traffic: Sequence[Traffic],
    duration_s: float,
) -> Callable[[str], Iterator[Request]]:
    def arrivals(seed: str) -> Iterator[Request]:
        if trace is None:
            yield from merged(traffic, seed, duration_s)
            return
        for request in trace(Random(seed)):
            if request.arrived_us > us_from_s(duration_s):
                return
            yield request

    return arrivals


def _fault(source: str, problem: str, hint: str = "") -> ConfigError:
    return ConfigError([ConfigFault("", problem, hint=hint)], source=source)
