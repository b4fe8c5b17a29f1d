# SPDX-License-Identifier: Apache-2.0
"""``taketurns check``: asks every engine of a configuration whether it is what the file says."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taketurns.cli import output

if TYPE_CHECKING:
    from taketurns.config.model import Config
    from taketurns.engines.check import EngineCheck, Finding


def check(
    file: Annotated[Path, typer.Argument(help="The configuration file.", metavar="FILE")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Ask every engine of a configuration whether it's there, takes the key and knows the model.

    Nothing is generated. Exit code 1 where one of them is wrong.
    """
    from taketurns.config.load import load

    rows = asyncio.run(_run(_checks(load(file))))
    if as_json:
        output.result_json(
            [
                {"model": model, "engine": engine, "problem": found.problem, "hint": found.hint}
                for model, engine, found in rows
            ]
        )
    elif not rows:
        output.message("There is nothing to ask: all engines are embedded.")
    else:
        lines = [
            (model, engine, found.problem or "ok", found.hint) for model, engine, found in rows
        ]
        output.table(("MODEL", "ENGINE", "RESULT", "HINT"), lines)
    if any(found.problem for *_, found in rows):
        raise typer.Exit(output.EXIT_FAILED)


def _checks(config: "Config") -> "list[tuple[str, str, EngineCheck]]":
    """Return what to ask: the servers, not the embedded models."""
    from taketurns.config import pools
    from taketurns.config.engines import AUTO, UrlEngineConfig
    from taketurns.engines.check import EngineCheck
    from taketurns.engines.kinds import KINDS

    return [
        (
            model,
            name,
            EngineCheck(
                part.url,
                key=part.key or "",
                kind=part.kind,
                model=part.model or model,
                health=section.health.path or KINDS[part.kind].health,
                gauges=part.slots == AUTO,
                timeout_s=section.health.timeout,
            ),
        )
        for model, section in config.models.items()
        for name, part in pools.engines(section).items()
        if isinstance(part, UrlEngineConfig)
    ]


async def _run(checks: "list[tuple[str, str, EngineCheck]]") -> "list[tuple[str, str, Finding]]":
    found = await asyncio.gather(*(check.run() for _, _, check in checks))
    return [(model, name, what) for (model, name, _), what in zip(checks, found, strict=True)]
