# SPDX-License-Identifier: Apache-2.0
"""A pool in Redis, for people: read as it stands, changed by nobody."""

from dataclasses import asdict, dataclass
from typing import Any

from taketurns.fleet.driver import TTL_US
from taketurns.fleet.link import Link
from taketurns.fleet.pool import DECODER, Pool
from taketurns.units import US_PER_S, s_from_us

TENANTS_MAX = 1_000
"""Most tenants that are shown: those with the most in flight."""


@dataclass(frozen=True, slots=True)
class MemberLook:
    """A gateway.

    Attributes:
        name: Unique for each start of a process.
        heard_s_ago: Since its last heartbeat or step.
        silent: True where its heartbeat is missed.
        held: Tickets of its that wait or run.
    """

    name: str
    heard_s_ago: float
    silent: bool
    held: int


@dataclass(frozen=True, slots=True)
class EngineLook:
    """An engine: its slots, those in use, and the gateways that can't reach it."""

    name: str
    slots: int
    in_flight: int
    unreachable_from: list[str]


@dataclass(frozen=True, slots=True)
class TenantLook:
    """A tenant in a tier, with something queued or running.

    Attributes:
        tier: Its tier.
        name: Its name.
        weight: Its weight.
        waiting: Tickets that wait.
        in_flight: Tickets that run.
        balance: Cost units that it may use, or owes.
        share: Of what runs in its tier.
        fair_share: By weight, among those of the tier that are here.
    """

    tier: str
    name: str
    weight: int
    waiting: int
    in_flight: int
    balance: int
    share: float
    fair_share: float


@dataclass(frozen=True, slots=True)
class PoolLook:
    """A pool; ``epoch`` 0: no gateway has joined it."""

    model: str
    epoch: int
    slots: int
    running_slots: int
    waiting: int
    running: int
    members: list[MemberLook]
    engines: list[EngineLook]
    tenants: list[TenantLook]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


async def look(link: Link, model: str, name: str, tiers: list[str]) -> PoolLook:
    """Return how a pool stands.

    Raises:
        StoreUnavailableError: The server doesn't answer.
    """
    base = Pool(name, "").base
    row = await link.command("GET", f"{base}state")
    if row is None:
        return PoolLook(model, 0, 0, 0, 0, 0, [], [], [])
    state = DECODER.decode(row)
    time_s, time_us = await link.command("TIME")
    now_us = int(time_s) * US_PER_S + int(time_us)
    members = []
    for gateway, until_us in sorted(_mapping(state["members"]).items()):
        first, last = f"[{gateway}|", f"[{gateway}|\xff"
        held = await link.command("ZLEXCOUNT", f"{base}own", first, last)
        ago_us = max(0, now_us - (until_us - TTL_US))
        members.append(MemberLook(gateway, s_from_us(ago_us), until_us < now_us, int(held)))
    engines = [
        EngineLook(name, slots, in_flight, [g for g, n in _mapping(seen).items() if n == 0])
        for name, (slots, in_flight, _, seen, *_) in (await _rows(link, f"{base}engines")).items()
    ]
    return PoolLook(
        model,
        state["epoch"],
        state["total"],
        sum(engine.in_flight for engine in engines),
        state["waiting"],
        state["running"],
        members,
        sorted(engines, key=lambda engine: engine.name),
        _tenants(await _rows(link, f"{base}flows"), tiers),
    )


async def _rows(link: Link, key: str) -> dict[str, Any]:
    answer = await link.command("HGETALL", key)
    pairs = (
        answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    )
    return {name.decode(): DECODER.decode(row) for name, row in pairs if name}


def _mapping(value: Any) -> dict[str, int]:
    """Return a mapping; an empty one is told as an empty list."""
    return value if isinstance(value, dict) else {}


def _tenants(rows: dict[str, Any], tiers: list[str]) -> list[TenantLook]:
    here = {key: row for key, row in rows.items() if row[8] or row[10]}
    running: dict[str, int] = {}
    weights: dict[str, int] = {}
    for key, row in here.items():
        rank = key.partition("|")[0]
        running[rank] = running.get(rank, 0) + row[8]
        weights[rank] = weights.get(rank, 0) + row[0]
    looks = []
    for key, row in sorted(here.items(), key=lambda item: -item[1][8])[:TENANTS_MAX]:
        rank, _, tenant = key.partition("|")
        looks.append(
            TenantLook(
                tiers[int(rank)],
                tenant,
                row[0],
                waiting=row[10],
                in_flight=row[8],
                balance=row[2],
                share=row[8] / running[rank] if running[rank] else 0.0,
                fair_share=row[0] / weights[rank],
            )
        )
    return sorted(looks, key=lambda look: (tiers.index(look.tier), look.name))
