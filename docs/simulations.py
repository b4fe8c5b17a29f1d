# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a script beside the pages that it writes, not a package
"""Writes the tables of simulated results into the pages, from what was recorded.

    python docs/simulations.py [--run NAME ...]

The table that follows each ``<!-- simulated: NAME FIGURE ... -->`` is written anew from
``benchmarks/results/simulated/NAME.json``. With ``--run``, those are recorded first, with
``taketurns simulate NAME --json`` or as RECIPES says: seconds to minutes each. The table that
follows ``<!-- recorded: NAME -->`` is of a benchmark's ``benchmarks/results/NAME.json``.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "simulated"
PAGES = [*sorted((DOCS / "explanation").glob("*.md")), *sorted((DOCS / "howto").glob("*.md"))]
RECORDED = re.compile(r"(<!-- recorded: (\S+) -->)\n(?:\|.*\n)*")
MARK = re.compile(r"(<!-- simulated: (\S+) (.*?) -->)\n(?:\|.*\n)*")

OURS = "schedulers.ours"
HORIZONS = [
    *("--only", "ours", "--seeds", "8"),
    *("--sweep", f"{OURS}.horizon=0,16,24,32,64,128,all"),
]
SUITE = [
    part
    for name in ("FCFS", "VTC", "VTC 50 %", "VTC oracle", "requests", "ours", "quantum 20000")
    for part in ("--only", name)
]
RECIPES = {
    "vtc-overload": ["vtc-overload", *SUITE],
    "vtc-overload-multi": ["vtc-overload-multi", *SUITE],
    "vtc-short-long": ["vtc-short-long", *SUITE],
    "vtc-on-off": ["vtc-on-off", *SUITE],
    "horizon-in-out": ["vtc-in-out", *HORIZONS],
    "horizon-overload": ["vtc-overload", *HORIZONS],
    "horizon-lognormal": ["lognormal", *HORIZONS],
    "quantum": [
        *("vtc-short-long", "--only", "ours", "--seeds", "8"),
        *("--sweep", f"{OURS}.quantum=20,100,500,3000,20000"),
    ],
    "steps": [
        *("vtc-overload", "--only", "ours", "--seeds", "8"),
        *("--sweep", f"{OURS}.settle_cost=1,16,32,48"),
    ],
    "in-out-windows": [
        *("vtc-in-out-short", "--only", "VTC", "--only", "ours", "--seeds", "8"),
        *("--sweep", "measured=240,600"),
    ],
    "in-out-tried": [
        *("vtc-in-out-short", "--only", "ours", "--seeds", "8"),
        *("--sweep", f"{OURS}.horizon=0,16,24,32", "--sweep", f"{OURS}.quantum=20,100,500"),
    ],
    "debt": [
        *("vtc-in-out", "--only", "ours", "--seeds", "3"),
        *("--sweep", f"{OURS}.debt_rounds=16,64,256,1000"),
    ],
}
"""Results that are a scenario with options; all others are called like their scenario."""

HEADS = {
    "average_difference": "average difference",
    "max_difference": "largest difference",
    "accumulated_difference": "accumulated difference",
    "tokens_per_s": "tokens/s",
    "served": "served",
    "misallocated": "misallocated",
    "jain": "Jain",
}
"""Heads of figures. A figure of one tenant is written TENANT.FIGURE."""


def table(name: str, figures: list[str]) -> str:
    """Return the table of a scenario: medians, their spread, what was published, the ratio."""
    result = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    rows = result["schedulers"]
    swept = list(rows[0]["point"])
    told = [f for f in figures if any("published" in figure_of(row, f) for row in rows)]
    heads = ["scheduler", *(path.rpartition(".")[2] for path in swept)]
    for figure in figures:
        tenant, _, last = figure.rpartition(".")
        heads.append(f"{tenant} {HEADS.get(last, last.replace('_', ' '))}".strip())
        if rows[0]["seeds"] > 1:
            heads.append("least to greatest")
        if figure in told:
            heads += ["published", "ratio"]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        line = [row["scheduler"], *(str(value) for value in row["point"].values())]
        for figure in figures:
            found = figure_of(row, figure)
            line.append(number(found["median"]))
            if row["seeds"] > 1:
                line.append(" to ".join(number(end) for end in found["spread"]))
            if figure in told:
                line += [number(found.get("published")), number(found.get("ratio"), 2)]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def figure_of(row: dict[str, Any], figure: str) -> dict[str, Any]:
    """Return a figure of a scheduler, or of one of its tenants."""
    return row["figures"].get(figure, {"median": None, "spread": []})


def number(value: float | None, digits: int | None = None) -> str:
    """Return a figure for people; nothing where there is none."""
    if value is None:
        return ""
    if digits is not None:
        return f"{value:.{digits}f}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def recorded(name: str) -> str:
    """Return the table of a benchmark's figures."""
    figures = json.loads((RESULTS.parent / f"{name}.json").read_text("utf-8"))["figures"]
    lines = [["figure", "value", ""], ["---"] * 3]
    lines += [[f["name"].replace("_", " "), number(f["value"]), f["unit"]] for f in figures]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str) -> str:
    """Return a page with its tables written anew."""
    text = RECORDED.sub(lambda m: f"{m[1]}\n{recorded(m[2])}", text)
    return MARK.sub(lambda m: f"{m[1]}\n{table(m[2], m[3].split())}", text)


def pages() -> dict[Path, str]:
    """Return every page that has such tables, as it should be, by its path."""
    texts = {path: path.read_text("utf-8") for path in PAGES}
    return {path: page(text) for path, text in texts.items() if MARK.search(text)}


def record(name: str) -> None:
    """Run a scenario and keep its result."""
    recipe = RECIPES.get(name, [name])
    command = [sys.executable, "-m", "taketurns", "simulate", *recipe, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603 - our own command
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_bytes(done.stdout)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        for name in sys.argv[2:]:
            record(name)
    for path, text in pages().items():
        path.write_text(text, "utf-8")
