# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario: each scheduler over its seeds, and what came out, summed up."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from taketurns.sim.measures.collect import Collected
from taketurns.sim.measures.targets import Truth
from taketurns.sim.measures.tenants import TenantMeasure
from taketurns.sim.progress import Done, Told
from taketurns.sim.run import Observer, Run, Setting
from taketurns.sim.scenario import Scenario
from taketurns.units import us_from_s


@dataclass(frozen=True, slots=True)
class Row:
    """What one scheduler did, over all seeds.

    Attributes:
        scheduler: Its name in the scenario.
        point: Values of what was swept, by path; empty without a sweep.
        runs: Figures of each run, by name; one for each seed.
        tenants: Figures of each tenant in the first run.
        service: Each tenant's service per second over time in the first run: seconds, rate.
        fair: What of the service of the first run weighted max-min fairness gives each tenant.
    """

    scheduler: str
    point: Mapping[str, object]
    runs: Sequence[Mapping[str, float]]
    tenants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    service: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    fair: Mapping[str, float] = field(default_factory=dict)

    def median(self, figure: str) -> float:
        """Return a figure's median over the runs."""
        return statistics.median(run[figure] for run in self.runs)

    def spread(self, figure: str) -> tuple[float, float]:
        """Return a figure's least and greatest value over the runs."""
        values = [run[figure] for run in self.runs]
        return min(values), max(values)


def run_once(
    scenario: Scenario, scheduler: str, seed: int, done: Done = lambda _share: None
) -> tuple[dict[str, float], Collected]:
    """Run one scheduler once.

    The seed alone decides what is drawn: all schedulers see the same requests
    and the same engines.
    """
    observer = Collected(
        us_from_s(scenario.measured_s),
        {name: facts.weight for name, facts in scenario.tenants.items()},
        us_from_s(scenario.duration_s),
        scenario.early,
        None if scenario.held_from_s is None else us_from_s(scenario.held_from_s),
    )
    setting = Setting(
        scenario.schedulers[scheduler],
        scenario.engine(Random(f"engine {seed}")),
        scenario.engines,
        scenario.tenants,
        str(seed),
        None if scenario.end_s is None else us_from_s(scenario.end_s),
    )
    told = Told(us_from_s(scenario.duration_s), done)
    run = _run(scenario, setting, observer, seed, told)
    observer.solo = run.engines[0].solo_us
    run.go()
    observer.close(run.clock.now_us())
    figures = observer.figures() | run.figures()
    if "false_admits" in figures:
        truth = Truth(observer.targets.turned_away, us_from_s(scenario.duration_s))
        again = replace(setting, engine=scenario.engine(Random(f"engine {seed}")), throttled=False)
        _run(scenario, again, truth, seed, Told(0, lambda _share: None)).go()
        figures |= truth.figures()
    told.over()
    for name in scenario.show:
        tenant, _, figure = name.rpartition(".")
        if tenant and name not in figures:
            measure = observer.tenants.get(tenant) or TenantMeasure()
            figures[name] = measure.figures(observer.service)[figure]
    return figures, observer


def _run(scenario: Scenario, setting: Setting, observer: Observer, seed: int, told: Told) -> Run:
    clients = [client for loop in scenario.loops for client in loop.clients(str(seed))]
    return Run(setting, told.watched(scenario.arrivals(str(seed))), observer, clients)


def run_all(
    scenario: Scenario,
    point: Mapping[str, object],
    seeds: int,
    done: Done = lambda _share: None,
) -> list[Row]:
    """Run every scheduler of a scenario over its seeds.

    Args:
        scenario: The scenario.
        point: Where in a sweep this is.
        seeds: How many runs of each.
        done: Told of each run's progress.
    """
    rows = []
    for scheduler in scenario.schedulers:
        runs = []
        first: Collected | None = None
        for seed in range(seeds):
            figures, observed = run_once(scenario, scheduler, seed, done)
            runs.append(figures)
            if seed == 0:
                first = observed
        assert first is not None, "there is a run or more"
        rows.append(
            Row(
                scheduler,
                point,
                runs,
                {name: each.figures(first.service) for name, each in sorted(first.tenants.items())},
                first.bins.rates(first.timeline),
                first.bins.fair(first.timeline),
            )
        )
    return rows
