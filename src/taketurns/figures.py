# SPDX-License-Identifier: Apache-2.0
"""Measured figures in one format: value, target, spread, and the machine they come from.

The demo and the benchmarks report with it, so that one program can read all
their results. A target is written beside what was measured and is never moved
to fit it.
"""

import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: What was measured, words joined by underscores.
        value: The median over the runs.
        unit: Of value and spread: ``s``, ``1/s``, ``%``; "" for a ratio.
        target: What the value must be, such as ``<= 0.2``; "" where nothing is promised.
        reached: Whether every run met the target; None where there is none.
        n: Number of runs.
        spread: Least and greatest value over the runs.
        note: How it was measured, and over how many requests.
    """

    name: str
    value: float
    unit: str = ""
    target: str = ""
    reached: bool | None = None
    n: int = 1
    spread: tuple[float, float] = (0.0, 0.0)
    note: str = ""

    def __post_init__(self) -> None:
        if bool(self.target) == (self.reached is None):
            raise ValueError(f"figure {self.name}: `target` and `reached` go together")


def figure(
    name: str,
    values: Sequence[float],
    unit: str = "",
    *,
    at_most: Sequence[float] | None = None,
    note: str = "",
) -> Figure:
    """Make a figure from one value a run.

    Args:
        name: What was measured.
        values: One value a run, at least one.
        unit: Of the values.
        at_most: The target of each run, where the target is measured in the same
            run; as many as values. None: no target.
        note: How it was measured.
    """
    target, reached = "", None
    if at_most is not None:
        target = f"<= {rounded(median(at_most)):g}"
        met = [value <= most for value, most in zip(values, at_most, strict=True)]
        reached = all(met)
        if len(met) > 1 and not reached:
            note = f"{note}{'; ' if note else ''}missed in {met.count(False)} of {len(met)} runs"
    low, high = spread(values)
    return Figure(
        name,
        rounded(median(values)),
        unit,
        target,
        reached,
        len(values),
        (rounded(low), rounded(high)),
        note,
    )


def median(values: Sequence[float]) -> float:
    """Return the median of one or more values."""
    return float(statistics.median(values))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the greatest of one or more values."""
    return min(values), max(values)


def rounded(value: float) -> float:
    """Return a value with four significant digits: more would be noise."""
    return float(f"{value:.4g}")


def report(figures: Sequence[Figure], seed: int, peers: Mapping[str, str]) -> dict[str, Any]:
    """Return figures and where they come from, ready for JSON.

    Args:
        figures: What was measured.
        seed: Of everything random in the measurement.
        peers: Versions of the other software that took part, by its name.
    """
    return {
        "figures": [asdict(item) for item in figures],
        "machine": machine(),
        "commit": commit(),
        "seed": seed,
        "peers": dict(peers),
    }


def machine() -> dict[str, str | int]:
    """Return what the figures were measured on."""
    return {
        "cpu": cpu_model(CPU_FILE),
        "cores": cores(),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    # Not everywhere can a process be tied to some of the cores.
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def cpu_model(path: Path) -> str:
    """Return the processor's name as Linux tells it in a file, else Python's name for it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def commit(folder: Path | None = None) -> str:
    """Return the commit of the checkout that this package runs from.

    Args:
        folder: The package's folder; None: this one's.

    Returns:
        Its short hash, ``-dirty`` behind it where tracked files were changed;
        "" outside a checkout or without git.
    """
    folder = folder or Path(__file__).parent
    # An installed package can lie inside somebody else's checkout; then git
    # doesn't track its files, and that checkout's commit would say nothing.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return ""
    return _git(folder, "describe", "--always", "--dirty", "--exclude", "*") or ""


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
