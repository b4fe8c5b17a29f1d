# SPDX-License-Identifier: Apache-2.0
"""What commands print: results on stdout as text or JSON, messages and errors on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from taketurns.errors import ConfigError, ConfigFault, StartError, TaketurnsError

EXIT_FAILED = 1
"""A store, an engine or the command itself failed."""

EXIT_CONFIG = 2
"""The configuration or the command line is wrong, or the gateway can't start here."""

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


def result(text: str) -> None:
    """Print a result."""
    print(text)


def result_json(value: Json) -> None:
    """Print a result as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def message(text: str) -> None:
    """Print what is for the person, not for the next program in the pipe."""
    print(text, file=sys.stderr)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads, columns aligned; nothing but the heads where there are none."""
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    for row in (heads, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


@contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[float], None]]:
    """Show how much of something is done, on a terminal only; yield what to tell of each part."""
    if not sys.stderr.isatty():
        yield lambda _part: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda part: bar.advance(task, part)


def when(seconds: int | None) -> str:
    """Return a time of day in UTC for people, or ``-``."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def faults_json(faults: Sequence[ConfigFault]) -> Json:
    """Return the faults of a configuration for machines."""
    return [{"path": f.path, "problem": f.problem, "hint": f.hint} for f in faults]


def print_error(error: TaketurnsError) -> int:
    """Print an error and what to do about it; return the exit code that it means."""
    if isinstance(error, ConfigError):
        count = len(error.faults)
        source = error.source or "the configuration"
        message(f"taketurns: {source} has {count} fault{'s' if count > 1 else ''}:")
        for fault in error.faults:
            message(f"  {fault}")
        return EXIT_CONFIG
    text = str(error)
    message(f"taketurns: {text}{'' if text.endswith('.') else '.'}")
    if error.hint:
        message(f"  {error.hint}")
    return EXIT_CONFIG if isinstance(error, StartError) else EXIT_FAILED
