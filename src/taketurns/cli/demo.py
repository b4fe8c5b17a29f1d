# SPDX-License-Identifier: Apache-2.0
"""``taketurns demo``: a noisy and a quiet tenant on a real gateway, measured and drawn."""

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taketurns.cli import output
from taketurns.errors import StartError

if TYPE_CHECKING:
    from taketurns.demo.display import Bars
    from taketurns.demo.report import Run
    from taketurns.demo.scenes import Sizes

FLOOR_PERCENT = 20
INSTALL = "pip install 'taketurns[embedded,sim,dev]'"

OPEN_FILES = 4_096
"""Sockets and files that a process with a flood of 2,000 needs, with room to spare."""


def demo(
    *,
    runs: Annotated[int, typer.Option(min=1, help="Play everything so often; show medians.")] = 1,
    png: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("demo.png"),
    record: Annotated[
        Path | None, typer.Option(help="Write the figures to this file too, as JSON.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the texts.")] = 1,
    small: Annotated[
        bool, typer.Option("--small", help="Send far less: to try it, not to judge by.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Show what a flood does to a quiet tenant: with the scheduler, and with one shared queue.

    Tenant A sends 10,000 short texts at once to a real gateway with a real
    embedding model; tenant B sends five at a time in between. Then a trial
    tenant floods while an enterprise tenant works, with and without a floor.
    """
    _check_packages()
    for option, path in (("--png", png), ("--record", record)):
        if path is not None:
            _check_writable(path, option)
    from taketurns.demo import display, plot, report, scenes
    from taketurns.figures import report as figures_report

    _allow_open_files(OPEN_FILES)
    sizes = scenes.SMALL if small else scenes.FULL
    with (
        tempfile.TemporaryDirectory(prefix="taketurns-demo-") as folder,
        display.Bars(wanted=not as_json) as bars,
    ):
        played = [
            asyncio.run(_until_told(_play(sizes, seed, Path(folder), bars, at, runs)))
            for at in range(runs)
        ]
    found = report.figures(played)
    told = figures_report(found, seed, _peers())
    if record is not None:
        record.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    plot.draw(played[-1], png)
    if as_json:
        output.result_json(told)
        return
    for table in report.tables(found):
        display.print_table(table)
    for item in found:
        if item.reached is not None:
            output.result(
                f"{item.name}: {item.value:g} {item.unit}, target {item.target} {item.unit}: "
                f"{'reached' if item.reached else 'MISSED'}"
            )
    output.message(f"The picture is in {png}.")


async def _play(sizes: "Sizes", seed: int, folder: Path, bars: "Bars", at: int, runs: int) -> "Run":
    """Play all scenes once."""
    from taketurns.demo.children import Setting
    from taketurns.demo.report import Run
    from taketurns.demo.scenes import burst, tiers

    which = f" (run {at + 1} of {runs})" if runs > 1 else ""
    noisy = {"a": ("A's texts", sizes.flood.count), "b": ("B's groups of five", sizes.groups)}
    two = {
        "trial": ("trial's texts", sizes.trial.count),
        "enterprise": ("enterprise's texts", sizes.enterprise.count),
    }
    seed += 10 * at
    bars.begin(f"Scene 1, with the scheduler{which}", noisy)
    fair = await burst(Setting(), sizes, seed, folder, bars.tell)
    bars.begin(f"Scene 1, with one shared queue{which}", noisy)
    shared = await burst(Setting(scheduler="shared_queue"), sizes, seed, folder, bars.tell)
    bars.begin(f"Scene 2, strict order{which}", two)
    strict = await tiers(Setting(), sizes, seed, folder, bars.tell)
    bars.begin(f"Scene 2, trial has a floor of {FLOOR_PERCENT} %{which}", two)
    setting = Setting(trial_floor_percent=FLOOR_PERCENT)
    floor = await tiers(setting, sizes, seed, folder, bars.tell)
    return Run(fair, shared, strict, floor)


async def _until_told(playing: Coroutine[None, None, "Run"]) -> "Run":
    """Play; SIGTERM ends it as Ctrl-C does, so that the child processes end too."""
    task = asyncio.current_task()
    assert task is not None, "it runs in a task"
    loop = asyncio.get_running_loop()
    with contextlib.suppress(NotImplementedError):
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await playing
    except asyncio.CancelledError:
        raise typer.Exit(output.EXIT_FAILED) from None


def _check_packages() -> None:
    """Raise an error that names what is missing and how to install it."""
    import importlib.util

    missing = [name for name in ("openai", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"the demo needs {' and '.join(missing)}, which {_are(missing)} not installed",
            hint=f"Install everything that it needs: {INSTALL}",
        )


def _check_writable(path: Path, option: str) -> None:
    """Raise an error if a file can't be written; better told before the demo than after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
        if path.stat().st_size == 0:
            path.unlink()
    except OSError as error:
        raise StartError(
            f"{option}: can't write {path}: {error.strerror}",
            hint="Name a file in a folder that may be written.",
        ) from None


def _are(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _allow_open_files(number: int) -> None:
    """Raise the soft limit on open files, which child processes inherit, as far as it goes."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _peers() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    peers = {"model": "all-MiniLM-L6-v2, int8"}
    for name in ("httptools", "onnxruntime", "openai"):
        with contextlib.suppress(PackageNotFoundError):
            peers[name] = version(name)
    return peers
