# SPDX-License-Identifier: Apache-2.0
"""``taketurns replay`` and ``fit``: what a configuration would do with recorded traffic."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taketurns.cli import output
from taketurns.errors import ConfigError, ConfigFault

if TYPE_CHECKING:
    from taketurns.config.model import Config
    from taketurns.sim.engines.kinds import EngineMaker
    from taketurns.sim.experiment import Row
    from taketurns.sim.scenario import Scenario

FORMAT_BY_ENDING = {".jsonl": "request-log", ".log": "request-log", ".json": "request-log"}

REFUSED_BY = "refused_by:"

FIGURES = (
    ("arrived", "arrived", "{:,.0f}"),
    ("served", "served", "{:,.0f}"),
    ("queued_p50_s", "queued p50 s", "{:.3g}"),
    ("queued_p99_s", "queued p99 s", "{:.3g}"),
    ("first_token_p99_s", "first token p99 s", "{:.3g}"),
    ("refused", "refused", "{:,.0f}"),
    ("expired", "expired", "{:,.0f}"),
)


def replay(  # noqa: PLR0913 - one for each option
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A trace, or a request log.")],
    *,
    config: Annotated[Path, typer.Option(metavar="FILE", help="The configuration to try.")],
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another one to compare it with.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="request-log, vtc, azure-2023, mooncake or burst-gpt. Default: by the ending.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Whose pool it goes to. Default: the only chat model.")
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="How fast the engines are, as `taketurns fit` writes it."
        ),
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Play it so many times as fast.")] = 1.0,
    exponent: Annotated[
        float, typer.Option(min=0, help="Zipf's, where requests are dealt to the tenants.")
    ] = 1.0,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write plots there, as PNG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Play recorded traffic through the scheduler that a configuration describes.

    All of it holds: tiers, weights, caps, slots, headroom, quantum, cost model,
    queue bounds and timeouts, limits and wait targets. A trace counts as one
    month. One without tenants is dealt to those of the configuration.
    """
    from taketurns.config.load import load
    from taketurns.sim import report
    from taketurns.sim.experiment import run_all

    scenarios = {
        str(path): _scenario(
            path, load(path), trace, kind or _format(trace), model, engine, speed, exponent
        )
        for path in (config, *([against] if against else []))
    }
    rows: list[Row] = []
    with output.progress(len(scenarios), "runs") as done:
        for scenario in scenarios.values():
            rows += run_all(scenario, {}, 1, done)
    _warn(scenarios[str(config)], rows[0])
    if plots is not None:
        from taketurns.sim.plots import write_plots

        write_plots(rows, [], plots)
    if as_json:
        output.result_json(report.as_json(scenarios[str(config)], rows, tenants=True))
        return
    output.table(*_compared(rows))
    heads, lines = _refusals(rows)
    if lines:
        output.result("")
        output.table(heads, lines)


def fit(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A gateway's request log.")],
    *,
    model: Annotated[str, typer.Option(help="Only requests of this model.")] = "",
) -> None:
    """Fit an engine model to a gateway's request log, and print it as YAML.

    For the option --engine of `taketurns replay`, and as `engines` of a scenario.
    Only streamed chat and completions tell enough.
    """
    import yaml

    from taketurns.sim.fit import fit as fitted
    from taketurns.sim.fit import streamed

    try:
        found = fitted(streamed(_lines(log), model))
    except (ValueError, KeyError, OSError) as error:
        hint = "The gateway's log of requests has them: server.log."
        fault = ConfigFault("", str(error) or repr(error), hint=hint)
        raise ConfigError([fault], source=str(log)) from error
    output.message(
        f"Fitted to {found.requests:,} requests. Typical error: "
        f"{100 * found.first_error:.0f} % of the time to the first token, "
        f"{100 * found.step_error:.0f} % of the time for a further one. pool_tokens is the most "
        "that was seen: write what the engine holds, if you know it."
    )
    output.result(yaml.safe_dump(found.engines(), sort_keys=False).rstrip())


def _lines(log: Path) -> Iterator[Mapping[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is not JSON: {error}") from error
            yield row


def _format(trace: str) -> str:
    kind = FORMAT_BY_ENDING.get(Path(trace).suffix)
    if kind is None:
        raise typer.BadParameter(
            "can't tell the format from its name: request-log, vtc, azure-2023, mooncake or "
            "burst-gpt.",
            param_hint="--format",
        )
    return kind


def _scenario(
    path: Path,
    config: "Config",
    trace: str,
    kind: str,
    model: str | None,
    engine: Path | None,
    speed: float,
    exponent: float,
) -> "Scenario":
    """Return a scenario in which the pool of a configuration serves a trace."""
    from taketurns.config import pools
    from taketurns.sim.reading import Section
    from taketurns.sim.scenario import Scenario
    from taketurns.sim.schedulers.base import TenantFacts
    from taketurns.sim.schedulers.gate import GateRules
    from taketurns.sim.schedulers.predictors import Learned
    from taketurns.sim.schedulers.round_robin import RoundRobin
    from taketurns.sim.traces import dealt, read_trace

    name = _model(config, model)
    section, pool = config.models[name], pools.pool(config, name)
    facts = {
        tenant.name: TenantFacts(tenant.weight, config.tenants[tenant.name].tier, tenant.cap)
        for tenant in pool.tenants
    }
    last = pool.tiers[-1].name
    timeouts = pool.queue_timeout_us
    slots = [part.slots if isinstance(part.slots, int) else 16 for part in section.engines]
    value = {"file": trace, "format": kind, "speed": speed}
    if kind == "request-log":
        value["model"] = name
    play = read_trace(Section(value, "trace", trace), Path(), deal=False)
    nobody = Random(0)  # noqa: S311 - what it would deal is not looked at
    length_us = max((request.arrived_us for request in play(nobody)), default=0)
    cost = pools.cost_model(section)
    # In shadow mode the throttle refuses nothing.
    targets = pool.wait_target_us if section.throttle == "enforce" else {}
    gate = GateRules(
        {tier: target for tier, target in targets.items() if target is not None},
        config.limit_rules(),
        name,
        section.endpoints[0],
    )

    return Scenario(
        name=str(path),
        about=f"{trace} with {path}",
        duration_s=length_us / 1e6 + 1,
        measured_s=length_us / 1e6 + 1,
        end_s=None,
        seeds=1,
        engines=len(slots),
        engine=_engine(engine),
        tenants=facts,
        arrivals=lambda seed: dealt(play, seed, facts, exponent, last, timeouts),
        loops=(),
        early=0,
        held_from_s=None,
        show=(),
        schedulers={
            str(path): lambda around: RoundRobin(
                pool.rules,
                pool.tiers,
                cost,
                Learned(256),
                around,
                slots=slots,
                settle_cost=16,
                gate=gate,
            )
        },
        published={},
    )


def _engine(file: Path | None) -> "EngineMaker":
    import yaml

    from taketurns.sim.engines.kinds import read_engine
    from taketurns.sim.reading import Section

    if file is None:
        return read_engine(Section({}))
    try:
        value = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        fault = ConfigFault("", f"can't be read: {error}")
        raise ConfigError([fault], source=str(file)) from error
    return read_engine(Section(value, "", str(file)))


def _model(config: "Config", wanted: str | None) -> str:
    known = [name for name, section in config.models.items() if section.kind == "generation"]
    if wanted is None and len(known) == 1:
        return known[0]
    if wanted not in known:
        there = ", ".join(known) or "none"
        raise typer.BadParameter(f"name a chat model; there are: {there}.", param_hint="--model")
    return wanted


def _warn(scenario: "Scenario", row: "Row") -> None:
    """Say which tenants of the trace the configuration doesn't know."""
    unknown = [name for name in row.tenants if name not in scenario.tenants]
    if unknown:
        output.message(
            f"{len(unknown)} tenants of the trace are not in {scenario.name}: they have weight 1 "
            f"in its last tier. The first: {', '.join(unknown[:5])}."
        )


def _compared(rows: "Sequence[Row]") -> tuple[list[str], list[list[str]]]:
    """Return what each tenant got; with two configurations, by both, and their ratio."""
    services: Counter[str] = Counter()
    for row in rows:
        for name, tenant in row.tenants.items():
            services[name] += int(tenant["service"])
    heads = ["tenant", *(head for _, head, _ in FIGURES)]
    if len(rows) == 2:
        heads = ["tenant"]
        for _, head, _ in FIGURES:
            heads += [head] if head == "arrived" else [head, "against", "ratio"]
    lines = []
    for name, _ in services.most_common():
        line = [name]
        for figure, _, form in FIGURES:
            if figure == "arrived":
                line.append(form.format(max(_of(row, name, figure) for row in rows)))
                continue
            values = [_of(row, name, figure) for row in rows]
            line += [form.format(value) for value in values]
            if len(rows) == 2:
                line.append(f"{values[1] / values[0]:.2f}" if values[0] else "")
        lines.append(line)
    return heads, lines


def _refusals(rows: "Sequence[Row]") -> tuple[list[str], list[list[str]]]:
    """Return what refused whose requests, and how many; with two configurations, by both."""
    found = sorted(
        {
            (name, figure)
            for row in rows
            for name, tenant in row.tenants.items()
            for figure in tenant
            if figure.startswith(REFUSED_BY)
        }
    )
    heads = ["tenant", "refused by", "requests", *(["against"] if len(rows) == 2 else [])]
    return heads, [
        [
            name,
            figure.removeprefix(REFUSED_BY),
            *(f"{_of(row, name, figure):,.0f}" for row in rows),
        ]
        for name, figure in found
    ]


def _of(row: "Row", tenant: str, figure: str) -> float:
    return row.tenants[tenant].get(figure, 0.0) if tenant in row.tenants else 0.0
