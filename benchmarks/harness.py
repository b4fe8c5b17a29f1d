# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks here share: their options, and how figures are made, printed and recorded."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from taketurns.figures import Figure, median, report, rounded, spread

VERDICTS = {True: "reached", False: "NOT REACHED", None: ""}


def options_for(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has.

    Args:
        doc: The benchmark's docstring; its first line describes it.
    """
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--record", type=Path, help="write the JSON object to a file too")
    return parser


def measured(
    name: str,
    values: Sequence[float],
    unit: str = "",
    target: str = "",
    *,
    reached: bool | None = None,
    note: str = "",
) -> Figure:
    """Return a figure: the median of its values, and their spread."""
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


def deliver(
    figures: Sequence[Figure],
    options: argparse.Namespace,
    peers: Mapping[str, str] | None = None,
) -> None:
    """Print figures, as JSON or for people, and record them where asked.

    Args:
        figures: What was measured.
        options: As :func:`options_for` reads them.
        peers: Versions of what it was compared with, by name.
    """
    result = report(figures, seed=0, peers=peers or {})
    if options.record:
        options.record.write_text(json.dumps(result, indent=2) + "\n")
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for item in result["figures"]:
        low, high = item["spread"]
        print(
            f"{item['name']:45} {item['value']:>12,g} {item['unit']:4} "
            f"[{low:,g}..{high:,g}]  {item['target']:>10} {VERDICTS[item['reached']]}"
        )
