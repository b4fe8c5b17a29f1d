# SPDX-License-Identifier: Apache-2.0
"""``taketurns fleet``: the members, pools and shares that a coordinator knows of."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taketurns.cli import output
from taketurns.errors import StartError

if TYPE_CHECKING:
    from taketurns.config.model import Config
    from taketurns.fleet.look import PoolLook

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def fleet(
    file: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration file.", metavar="FILE")
    ] = Path("taketurns.yaml"),
    *,
    as_json: AsJson = False,
) -> None:
    """Show a fleet's gateways, pools, slots and shares, as its coordinator knows them."""
    from taketurns.config.coordinator import LOCAL
    from taketurns.config.load import load

    config = load(file)
    if config.coordinator == LOCAL:
        raise StartError(
            "this configuration has no coordinator: one gateway decides alone",
            hint='Set coordinator: "redis://HOST:PORT" to share pools among gateways.',
        )
    looks, lag_s = asyncio.run(_look(config))
    if as_json:
        output.result_json({"lag_s": lag_s, "pools": [look.as_json() for look in looks]})
    else:
        _show(looks, lag_s)


async def _look(config: "Config") -> "tuple[list[PoolLook], float]":
    from taketurns.config import pools as facts
    from taketurns.fleet.address import parse_address
    from taketurns.fleet.link import Link
    from taketurns.fleet.look import look
    from taketurns.gateway.coordination import pool_name
    from taketurns.system import SystemClock

    clock = SystemClock(asyncio.get_running_loop())
    async with asyncio.TaskGroup() as tasks:
        link = Link(parse_address(config.coordinator), clock)
        link.serve(tasks)
        try:
            begun_us = clock.now_us()
            await link.command("PING")
            lag_s = (clock.now_us() - begun_us) / 1_000_000
            named = [(name, facts.pool(config, name)) for name in config.models]
            looks = [
                await look(link, name, pool_name(pool), [tier.name for tier in pool.tiers])
                for name, pool in named
            ]
        finally:
            await link.aclose()
    return looks, lag_s


def _show(looks: "list[PoolLook]", lag_s: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    pools = Table("model", "epoch", "gateways", "slots", "in use", "waiting", box=None)
    engines = Table("model", "engine", "slots", "in use", "out of reach of", box=None)
    members = Table("model", "gateway", "last heard", "waiting or running", box=None)
    tenants = Table(
        "model", "tier", "tenant", "weight", "waiting", "in flight", "share", "fair share", box=None
    )
    for look in looks:
        pools.add_row(
            look.model,
            str(look.epoch or "-"),
            str(len(look.members)),
            str(look.slots),
            str(look.running_slots),
            str(look.waiting),
        )
        for engine in look.engines:
            away = ", ".join(engine.unreachable_from) or "-"
            engines.add_row(look.model, engine.name, str(engine.slots), str(engine.in_flight), away)
        for member in look.members:
            age = "silent" if member.silent else f"{member.heard_s_ago:.1f} s ago"
            members.add_row(look.model, member.name, age, str(member.held))
        for tenant in look.tenants:
            tenants.add_row(
                look.model,
                tenant.tier,
                tenant.name,
                str(tenant.weight),
                str(tenant.waiting),
                str(tenant.in_flight),
                f"{tenant.share:.0%}",
                f"{tenant.fair_share:.0%}",
            )
    for table in (pools, engines, members, tenants):
        console.print(table)
        console.print()
    console.print(f"answered in {lag_s * 1000:.1f} ms")
