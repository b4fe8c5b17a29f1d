# SPDX-License-Identifier: Apache-2.0
"""What a simulation says: tables for people, JSON and CSV for programs; same seed, same bytes."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from taketurns.sim.experiment import Row
from taketurns.sim.scenario import Scenario

DIGITS = 5
"""Significant digits of figures in JSON and CSV."""

SHOWN = ("average_difference", "max_difference", "tokens_per_s", "served", "refused")
"""Figures of the table of a scenario that names none."""

HEADS = {
    "average_difference": "avg diff",
    "max_difference": "max diff",
    "accumulated_difference": "accumulated",
    "tokens_per_s": "tokens/s",
}


def as_json(scenario: Scenario, rows: Sequence[Row], *, tenants: bool) -> dict[str, Any]:
    """Return the result for programs."""
    return {
        "scenario": scenario.name,
        "about": scenario.about,
        "schedulers": [_row_json(scenario, row, tenants=tenants) for row in rows],
    }


def as_csv(rows: Sequence[Row]) -> str:
    """Return one line for each run: scheduler, what was swept, seed, figures."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    swept = list(rows[0].point)
    figures = list(dict.fromkeys(figure for row in rows for figure in row.runs[0]))
    writer.writerow(["scheduler", *swept, "seed", *figures])
    for row in rows:
        for seed, run in enumerate(row.runs):
            values = [short(run[figure]) if figure in run else "" for figure in figures]
            writer.writerow([row.scheduler, *row.point.values(), seed, *values])
    return file.getvalue()


def table(scenario: Scenario, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines of the table: medians, and what was published beside them."""
    swept = list(rows[0].point)
    heads = ["scheduler", *(path.rpartition(".")[2] for path in swept)]
    told = {figure for published in scenario.published.values() for figure in published}
    shown = scenario.show or SHOWN
    for figure in shown:
        heads.append(head_of(figure))
        if figure in told:
            heads += ["published", "ratio"]
    lines = []
    for row in rows:
        line = [row.scheduler, *(str(value) for value in row.point.values())]
        known = scenario.published.get(row.scheduler, {})
        for figure in shown:
            # Without a wait target, say, there is nothing false.
            value = row.median(figure) if figure in row.runs[0] else None
            line.append("" if value is None else _number(value))
            if figure in told:
                there = known.get(figure)
                line += (
                    ["", ""]
                    if not there or value is None
                    else [f"{there:,g}", f"{value / there:.2f}"]
                )
        lines.append(line)
    return heads, lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def head_of(figure: str) -> str:
    """Return a figure's head in tables."""
    return HEADS.get(figure, figure.replace("_", " ").replace(".", ": "))


def tenant_table(row: Row) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines of what each tenant got in the first run, most service first."""
    heads = ["tenant", "arrived", "served", "share", "queued p50", "p99", "first token p50", "p99"]
    total = sum(tenant["service"] for tenant in row.tenants.values()) or 1.0
    lines = []
    for name, tenant in sorted(row.tenants.items(), key=lambda item: -item[1]["service"]):
        times = [
            f"{tenant[key]:.3g} s"
            for key in ("queued_p50_s", "queued_p99_s", "first_token_p50_s", "first_token_p99_s")
        ]
        share = f"{100 * tenant['service'] / total:.1f} %"
        lines.append([name, f"{tenant['arrived']:g}", f"{tenant['served']:g}", share, *times])
    return heads, lines


def short(value: float) -> float:
    """Return a figure to so many significant digits; whole numbers as they are."""
    if value == int(value):
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def _row_json(scenario: Scenario, row: Row, *, tenants: bool) -> dict[str, Any]:
    published: Mapping[str, float] = scenario.published.get(row.scheduler, {})
    found: dict[str, Any] = {
        "scheduler": row.scheduler,
        "point": dict(row.point),
        "seeds": len(row.runs),
        "figures": {},
    }
    for figure in row.runs[0]:
        low, high = row.spread(figure)
        value = row.median(figure)
        entry: dict[str, Any] = {
            "median": short(value),
            "spread": [short(low), short(high)],
        }
        if figure in published:
            entry["published"] = published[figure]
            if published[figure]:
                entry["ratio"] = short(value / published[figure])
        found["figures"][figure] = entry
    if tenants:
        found["tenants"] = {
            name: {key: short(value) for key, value in figures.items()}
            for name, figures in row.tenants.items()
        }
    return found
