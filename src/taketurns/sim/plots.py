# SPDX-License-Identifier: Apache-2.0
"""Plots of a simulation, as PNG: service over time, waits, shares, and curves of a sweep.

Each says in its title and axes what it shows, so that nobody needs the manual.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taketurns.errors import StartError
from taketurns.sim.experiment import Row
from taketurns.sim.report import head_of

TENANTS_MAX = 12
"""Most tenants of a plot: those with most service."""


def write_plots(rows: Sequence[Row], figures: Sequence[str], folder: Path) -> list[Path]:
    """Write what there is to see of a result.

    Args:
        rows: The result; of a sweep, one for each point.
        figures: Figures whose curves over a sweep are drawn.
        folder: Made where it's missing.

    Returns:
        The files written.

    Raises:
        StartError: matplotlib is missing.
    """
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    swept = list(rows[0].point)
    paths = []
    if swept:
        paths += [_sweep(pyplot, rows, figure, swept, folder) for figure in figures]
    else:
        paths += [_service(pyplot, row, folder) for row in rows]
        paths += [_waits(pyplot, rows, folder), _shares(pyplot, rows, folder)]
    return paths


def _pyplot() -> Any:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only who wants plots needs it

        mpl.use("Agg")
        from matplotlib import pyplot  # noqa: ICN001, PLC0415
    except ImportError as error:
        hint = 'Install the package\'s extra "sim".'
        raise StartError("plots need matplotlib", hint=hint) from error
    return pyplot


def _top(row: Row) -> list[str]:
    tenants = sorted(row.tenants, key=lambda name: -row.tenants[name]["service"])
    return tenants[:TENANTS_MAX]


def _service(pyplot: Any, row: Row, folder: Path) -> Path:
    """Draw what each tenant got over time."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    for name in _top(row):
        times, rates = zip(*row.service[name], strict=True)
        axes.plot(times, rates, label=name)
    axes.set_title(f"{row.scheduler}: service over time")
    axes.set_xlabel("time, seconds")
    axes.set_ylabel("service, tokens per second (output counts twice)")
    return _save(pyplot, figure, axes, folder / f"service-{_file(row.scheduler)}.png")


def _waits(pyplot: Any, rows: Sequence[Row], folder: Path) -> Path:
    """Draw how long each tenant waited for its first token, by scheduler."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    names = _top(rows[0])
    width = 0.8 / len(rows)
    for at, row in enumerate(rows):
        places = [number + at * width for number in range(len(names))]
        high = [row.tenants[name]["first_token_p99_s"] for name in names]
        axes.bar(places, [max(value, 1e-3) for value in high], width, label=row.scheduler)
    axes.set_yscale("log")
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(names))], names, rotation=30)
    axes.set_title("Wait for the first token: 99 of 100 requests of a tenant wait less")
    axes.set_ylabel("seconds, logarithmic")
    return _save(pyplot, figure, axes, folder / "waits.png")


def _shares(pyplot: Any, rows: Sequence[Row], folder: Path) -> Path:
    """Draw each tenant's share of service among all, by scheduler, beside what it asked for."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    names = _top(rows[0])
    width = 0.8 / (len(rows) + 1)
    for at, row in enumerate(rows):
        total = sum(sum(rate for _, rate in row.service[name]) for name in row.service) or 1.0
        shares = [100 * sum(rate for _, rate in row.service[name]) / total for name in names]
        places = [number + at * width for number in range(len(names))]
        axes.bar(places, shares, width, label=row.scheduler)
    total = sum(rows[0].fair.values()) or 1.0
    fair = [100 * rows[0].fair.get(name, 0.0) / total for name in names]
    places = [number + len(rows) * width for number in range(len(names))]
    axes.bar(places, fair, width, label="fair share", color="black")
    axes.set_xticks([number + 0.4 - width / 2 for number in range(len(names))], names, rotation=30)
    axes.set_title("Share of service while requests arrived, and the fair one (weighted max-min)")
    axes.set_ylabel("per cent")
    return _save(pyplot, figure, axes, folder / "shares.png")


def _sweep(pyplot: Any, rows: Sequence[Row], name: str, swept: Sequence[str], folder: Path) -> Path:
    """Draw a figure over the last path of a sweep, a curve for each scheduler and other value."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    curves: dict[str, list[Row]] = {}
    for row in rows:
        others = ", ".join(f"{path.rpartition('.')[2]} {row.point[path]}" for path in swept[:-1])
        curves.setdefault(f"{row.scheduler} {others}".strip(), []).append(row)
    for label, points in curves.items():
        values = [str(point.point[swept[-1]]) for point in points]
        low, high = zip(*(point.spread(name) for point in points), strict=True)
        (drawn,) = axes.plot(values, [point.median(name) for point in points], "o-", label=label)
        axes.fill_between(values, low, high, alpha=0.15, color=drawn.get_color())
    axes.set_title(f"{head_of(name)} (line: median of the runs; band: least to greatest)")
    axes.set_xlabel(swept[-1])
    axes.set_ylim(bottom=0)
    return _save(pyplot, figure, axes, folder / f"sweep-{_file(name)}.png")


def _save(pyplot: Any, figure: Any, axes: Any, path: Path) -> Path:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _file(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name)
