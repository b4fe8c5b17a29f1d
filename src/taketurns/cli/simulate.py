# SPDX-License-Identifier: Apache-2.0
"""``taketurns simulate``: what schedulers would do with traffic, on a virtual clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taketurns.cli import output

if TYPE_CHECKING:
    from taketurns.sim.experiment import Row
    from taketurns.sim.scenario import Scenario


def simulate(
    scenario: Annotated[
        str | None,
        typer.Argument(metavar="[SCENARIO]", help="A scenario file, or the name of one of ours."),
    ] = None,
    *,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each scheduler. Default: the file's.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this scheduler only; repeatable.")
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUES",
            help="Try several values, such as schedulers.ours.quantum=200,500; repeatable.",
        ),
    ] = None,
    tenants: Annotated[
        bool, typer.Option("--tenants", help="Say what each tenant got in the first run.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a line for each run.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write plots there, as PNG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Simulate a scenario: the production scheduler, and others, with made-up or recorded traffic.

    Without a name, list the scenarios that come with the package.
    """
    from taketurns.sim import report

    if scenario is None:
        _list()
        return
    found, rows = _run(scenario, seeds, only or [], sweep or [])
    if csv is not None:
        csv.write_text(report.as_csv(rows), "utf-8")
    if plots is not None:
        from taketurns.sim.plots import write_plots

        for path in write_plots(rows, found.show or report.SHOWN, plots):
            output.message(f"wrote {path}")
    if as_json:
        output.result_json(report.as_json(found, rows, tenants=tenants))
        return
    output.result(f"{found.name}: {found.about}")
    output.result(f"Median of {len(rows[0].runs)} runs.\n")
    output.table(*report.table(found, rows))
    for row in rows if tenants else ():
        output.result(f"\n{row.scheduler}: what each tenant got in the first run")
        output.table(*report.tenant_table(row))


def _list() -> None:
    from taketurns.sim.scenario import load, names

    rows = [[name, " ".join(load(name)[1].get("about", "").split())] for name in names()]
    output.table(["scenario", "what it shows"], rows)


def _run(
    name_or_file: str, seeds: int | None, only: Sequence[str], sweep: Sequence[str]
) -> "tuple[Scenario, list[Row]]":
    """Read a scenario and run it, at each point of its sweep."""
    from taketurns.sim.experiment import run_all
    from taketurns.sim.scenario import load, read
    from taketurns.sim.sweep import parse_option, points, read_sweep, with_point

    name, value = load(name_or_file)
    swept: dict[str, list[Any]] = dict(parse_option(text, name) for text in sweep)
    if not swept:
        swept = read_sweep(value.get("sweep"), name)
    if only:
        _choose(value, only)
    folder = Path(name_or_file).parent
    read_all = [
        (point, read(name, with_point(value, point, name), folder)) for point in points(swept)
    ]
    total = sum(len(one.schedulers) * (seeds or one.seeds) for _, one in read_all)
    rows = []
    with output.progress(total, "runs") as done:
        for point, one in read_all:
            rows += run_all(one, point, seeds or one.seeds, done)
    return read_all[0][1], rows


def _choose(value: dict[str, Any], only: Sequence[str]) -> None:
    schedulers = value.get("schedulers")
    known = list(schedulers) if isinstance(schedulers, dict) else []
    for name in only:
        if name not in known:
            raise typer.BadParameter(
                f"no scheduler {name!r} here; there are {', '.join(known)}.", param_hint="--only"
            )
    if isinstance(schedulers, dict):
        value["schedulers"] = {name: schedulers[name] for name in known if name in only}
