# SPDX-License-Identifier: Apache-2.0
"""``taketurns usage``: what tenants used, added up by day or month, tenant, model or endpoint."""

import csv
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taketurns.cli import output
from taketurns.errors import StoreError

if TYPE_CHECKING:
    from taketurns.ports.stores import Usage, UsageKey

BY = ("day", "month", "tenant", "model", "endpoint")
NUMBERS = ("requests", "refusals", "input_tokens", "output_tokens", "cost")


def usage(
    *,
    config_file: Annotated[
        Path,
        typer.Option("--config", "-c", envvar="TAKETURNS_CONFIG", help="The configuration file."),
    ] = Path("taketurns.yaml"),
    since: Annotated[
        str, typer.Option("--from", help="First day or month: 2026-11-01 or 2026-11.")
    ] = "",
    until: Annotated[str, typer.Option("--to", help="Last day or month, itself included.")] = "",
    by: Annotated[
        str,
        typer.Option("--by", help="What to add up by: day, month, tenant, model, endpoint."),
    ] = "month,tenant",
    tenant: Annotated[str, typer.Option("--tenant", "-t", help="Only this tenant.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
) -> None:
    """Show what tenants used: requests, refusals, tokens and cost, out of the store."""
    from taketurns.config.stored import load_stored
    from taketurns.stores.choose import usage_store

    columns = _columns(by)
    first, last = (
        _bound(since, "0001-01-01", "01", "--from"),
        _bound(until, "9999-12-31", "31", "--to"),
    )
    store = usage_store(load_stored(config_file).store)
    if store is None:
        raise StoreError(
            "no usage is kept with store: memory",
            hint="Name a SQLite file or a database under store.",
        )
    with closing(store):
        used = store.read(first, last)
    rows = added_up(used, columns, tenant)
    if as_json:
        output.result_json(
            [dict(zip((*columns, *NUMBERS), (*group, *sums), strict=True)) for group, sums in rows]
        )
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((*columns, *NUMBERS))
        writer.writerows((*group, *sums) for group, sums in rows)
    else:
        output.table(
            tuple(name.upper().replace("_", " ") for name in (*columns, *NUMBERS)),
            [(*group, *(f"{number:,}" for number in sums)) for group, sums in rows],
        )


def added_up(
    used: "dict[UsageKey, Usage]", columns: Sequence[str], tenant: str = ""
) -> "list[tuple[tuple[str, ...], Usage]]":
    """Return usage by some columns, in their order; only of one tenant where it's named."""
    sums: dict[tuple[str, ...], Usage] = {}
    for key, amount in used.items():
        if tenant in {"", key.tenant}:
            values = {**key._asdict(), "month": key.day[:7]}
            group = tuple(str(values[column]) for column in columns)
            sums[group] = sums[group].plus(amount) if group in sums else amount
    return sorted(sums.items())


def _columns(by: str) -> tuple[str, ...]:
    columns = tuple(part.strip() for part in by.split(","))
    for column in columns:
        if column not in BY:
            raise typer.BadParameter(f"{column!r} is none of {', '.join(BY)}", param_hint="--by")
    return tuple(dict.fromkeys(columns))


def _bound(text: str, default: str, day: str, option: str) -> str:
    """Return the day that an option means; texts of days are compared, so there may be a 31st."""
    if not text:
        return default
    try:
        date.fromisoformat(f"{text}-01" if len(text) == 7 else text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no day such as 2026-11-01, nor a month such as 2026-11",
            param_hint=option,
        ) from None
    if not re.fullmatch(r"\d{4}-\d\d(-\d\d)?", text):
        raise typer.BadParameter(f"{text!r} is no day such as 2026-11-01", param_hint=option)
    return f"{text}-{day}" if len(text) == 7 else text
