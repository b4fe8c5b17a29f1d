# SPDX-License-Identifier: Apache-2.0
"""Who decides in a gateway's pools: this process alone, or a fleet's coordinator."""

import asyncio
import socket
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from taketurns.aio import TurnPool, Turns
from taketurns.config.coordinator import LOCAL
from taketurns.config.model import Config
from taketurns.config.pools import Pool as PoolFacts
from taketurns.errors import StartError
from taketurns.ports.clock import Clock
from taketurns.ports.coordinator import Decision
from taketurns.ports.limits import SharedLimits
from taketurns.system import new_id

if TYPE_CHECKING:
    from taketurns.fleet.fleet import Fleet

OnDecision = Callable[[Decision], None]


class MakeTurns(Protocol):
    """Makes the turns of one pool."""

    def __call__(self, facts: PoolFacts, on_decision: OnDecision | None = None) -> TurnPool:
        """Return them; nothing is granted before the gateway starts."""
        ...


class Coordination:
    """Makes the turns of a gateway's pools.

    Args:
        config: Says who decides.
        clock: The process's clock.

    Attributes:
        fleet: What is shared with other gateways; None: this process decides alone.

    Raises:
        StartError: A package is missing.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self.fleet = None if config.coordinator == LOCAL else _fleet(config, clock)
        self._clock = clock

    def turns(self, facts: PoolFacts, on_decision: OnDecision | None = None) -> TurnPool:
        """Implements :class:`MakeTurns`."""
        if self.fleet is None:
            return Turns(
                facts.rules,
                facts.tiers,
                facts.tenants,
                clock=self._clock,
                on_decision=on_decision,
            )
        return self.fleet.turns(
            pool_name(facts), facts.rules, facts.tiers, facts.tenants, on_decision
        )

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to share.

        Raises:
            StartError: The coordinator won't do.
        """
        if self.fleet is not None:
            await self.fleet.start(tasks)

    @property
    def ready(self) -> bool:
        """False while nothing can be decided."""
        return self.fleet is None or self.fleet.ready

    @property
    def alone(self) -> bool:
        """True while a fleet's gateway goes on without its coordinator."""
        return self.fleet is not None and self.fleet.alone

    @property
    def limits(self) -> SharedLimits | None:
        """What counts limits together with other gateways; None: this process alone does."""
        return None if self.fleet is None else self.fleet.limits

    def state(self) -> dict[str, Any] | None:
        """Return how sharing goes, for people; None where nothing is shared."""
        return None if self.fleet is None else self.fleet.state()

    async def aclose(self) -> None:
        """Leave the fleet."""
        if self.fleet is not None:
            await self.fleet.aclose()


def pool_name(facts: PoolFacts) -> str:
    """Return the name of a pool in a fleet: gateways whose rules differ share none."""
    rules = facts.rules
    built = (facts.tiers, rules.batch, rules.debt_rounds, rules.headroom_percent, rules.sticky)
    digest = sha256(msgspec.msgpack.encode(msgspec.to_builtins(built))).hexdigest()
    return f"{facts.model}:{digest[:8]}"


def _fleet(config: Config, clock: Clock) -> "Fleet":
    try:
        from taketurns.fleet.fleet import Fleet  # noqa: PLC0415 - its packages may be missing
    except ImportError as error:
        raise StartError(
            f"a coordinator needs the package {error.name}",
            hint="Install it: pip install 'taketurns[redis]'.",
        ) from error
    name = config.gateway_id or socket.gethostname()[:40]
    return Fleet(
        config.coordinator,
        clock,
        gateway=new_id(f"{name.replace('|', '-')}-")[: len(name) + 9],
        on_store_error=config.on_store_error,
        expected_gateways=config.expected_gateways,
    )
