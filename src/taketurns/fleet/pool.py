# SPDX-License-Identifier: Apache-2.0
"""A pool in Redis: its keys, what its scripts are told, and what they answer. No I/O here."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.fleet.scripts import Script, load_script

PREFIX = "tt"
"""All keys begin with this: for the server's access list."""

PARTS = (
    "state",
    "queue",
    "tickets",
    "ring",
    "flows",
    "free",
    "engines",
    "deadlines",
    "own",
    "tenants",
    "batches",
    "passed",
    "idle",
    "found",
)
"""Keys of a pool, in the order in which the scripts know them."""

SHARED = ("state", "ring", "sticky", "pool", "schedule")

STEP = load_script("step", *SHARED, "found")
BEAT = load_script("beat", *SHARED)
JOIN = load_script("join", "state")
HELD = load_script("held", "state")

Event = tuple[Any, ...]
"""A word and what it needs; see ``lua/step.lua``."""

ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder()


class Call(NamedTuple):
    """A script to run, and what it's told."""

    script: Script
    keys: list[str]
    args: list[str | bytes | int]


class Pool:
    """One pool's calls.

    Args:
        name: Unique among the pools of a coordinator.
        gateway: The name of who calls: no ``|`` in it.
    """

    def __init__(self, name: str, gateway: str) -> None:
        self.base = f"{PREFIX}:{{{name}}}:"
        self.gateway = gateway
        self.epoch = 0
        self.members: tuple[str, ...] = ()
        self._keys = [self.base + part for part in PARTS]

    def out(self, gateway: str) -> str:
        """Return the key of the list of what a gateway is told."""
        return f"{self.base}out:{gateway}"

    def join(
        self,
        rules: PoolRules,
        tiers: Sequence[Tier],
        *,
        ttl_us: int,
        again: bool = False,
        now: str = "",
    ) -> Call:
        """Become a member, for the first time or again; the pool is made where there's none."""
        told = {
            "tiers": [(tier.floor_percent, tier.slot_share_percent) for tier in tiers],
            "quantum": rules.quantum,
            "min_charge": rules.min_charge_or_default,
            "debt_rounds": rules.debt_rounds,
            "tenant_queue_max": rules.tenant_queue_max,
            "queue_max": rules.queue_max,
            "headroom": rules.headroom_percent,
            "sticky": rules.sticky,
            "batch": False if rules.batch is None else msgspec.to_builtins(rules.batch),
        }
        args: list[str | bytes | int] = [
            now,
            self.gateway,
            ttl_us,
            int(again),
            ENCODER.encode(told),
        ]
        return Call(JOIN, self._keys, args)

    def step(self, events: Sequence[Event], *, steps: int, now: str = "") -> Call:
        """Let events happen, in this order, then select."""
        return self._with_members(STEP, [now, self.epoch, self.gateway, steps], events)

    def beat(self, *, ttl_us: int, steps: int, now: str = "") -> Call:
        """Say that this gateway lives; with 0 us: that it leaves."""
        return self._with_members(BEAT, [now, self.epoch, self.gateway, ttl_us, steps], None)

    def held(self, after: str, count: int, *, now: str = "") -> Call:
        """Ask for the ids that are held for this gateway, in order, from one on."""
        return Call(HELD, self._keys, [now, self.epoch, self.gateway, after, count])

    def _with_members(
        self, script: Script, args: list[str | bytes | int], events: Sequence[Event] | None
    ) -> Call:
        if events is not None:
            args.append(ENCODER.encode(events))
        keys = [*self._keys, *(self.out(name) for name in self.members)]
        return Call(script, keys, [*args, *self.members])


def decode(answer: bytes) -> list[Any]:
    """Return what a script answered."""
    decoded: list[Any] = DECODER.decode(answer)
    return decoded


def submit_event(tickets: Iterable[Ticket], rank_by_tier: dict[str, int], now_us: int) -> Event:
    """Queue tickets, all or none; their deadlines are told as time left."""
    return (
        "submit",
        *(
            (
                ticket.id,
                ticket.tenant,
                rank_by_tier[ticket.tier],
                ticket.cost,
                ticket.size,
                ticket.priority,
                False if ticket.deadline_us is None else ticket.deadline_us - now_us,
                ticket.group,
                ticket.affinity,
            )
            for ticket in tickets
        ),
    )


def quoted(text: str) -> str:
    """Return a text without ``|``, from which no other text comes."""
    return text.replace("%", "%25").replace("|", "%7C")


def tenants_event(tenants: Iterable[Tenant]) -> Event:
    """Set weights and caps."""
    return ("tenants", *((tenant.name, tenant.weight, tenant.cap or 0) for tenant in tenants))
