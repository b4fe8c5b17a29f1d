# SPDX-License-Identifier: Apache-2.0
"""What a person sees of the demo: bars while it runs, tables at its end."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as RichTable

from taketurns.demo.report import Table

PIPE_WIDTH = 110
"""Width of tables in a pipe or a file, which have none of their own."""


class Bars:
    """Bars on standard error, one for each thing that is counted.

    A context manager; nothing is shown where it isn't wanted or standard error is no terminal.

    Args:
        wanted: Whether to show them.
    """

    def __init__(self, *, wanted: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not (wanted and console.is_terminal),
        )
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, scene: str, totals: Mapping[str, tuple[str, int]]) -> None:
        """Begin a scene: its name, and for each bar what it says and counts up to."""
        for bar in self._bars.values():
            self._progress.stop_task(bar)
        if not self._progress.disable:
            self._progress.console.print(scene)
        self._bars = {
            name: self._progress.add_task(f"  {says}", total=total)
            for name, (says, total) in totals.items()
        }

    def tell(self, name: str, done: int) -> None:
        """Move a bar."""
        self._progress.update(self._bars[name], completed=done)


def print_table(table: Table) -> None:
    """Print a table to standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for at, head in enumerate(table.heads):
        shown.add_column(head, justify="left" if at == 0 else "right")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, highlight=False)
    console.print()
