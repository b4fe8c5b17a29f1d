# SPDX-License-Identifier: Apache-2.0
"""One gateway in a fleet: its link, and its pools."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from taketurns.core.model import PoolRules, Tenant, Tier
from taketurns.errors import StoreUnavailableError
from taketurns.fleet.address import parse_address
from taketurns.fleet.link import Link
from taketurns.fleet.settings import FleetSettings, OnStoreError
from taketurns.fleet.shared_limits import SharedLimits
from taketurns.fleet.turns import FleetTurns
from taketurns.ports.clock import Clock
from taketurns.ports.coordinator import Decision
from taketurns.units import s_from_us

LOG = logging.getLogger(__name__)


class Fleet:
    """What a gateway shares with others.

    Args:
        url: The coordinator's.
        clock: The process's clock.
        gateway: Its name: no other process has it, nor had it before.
        on_store_error: See :class:`FleetSettings`.
        expected_gateways: See there.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        gateway: str,
        on_store_error: OnStoreError = "local",
        expected_gateways: int | None = None,
    ) -> None:
        self.link = Link(parse_address(url), clock)
        self.settings = FleetSettings(gateway, self.link, on_store_error, expected_gateways)
        self.limits = SharedLimits(
            self.link, clock, on_error=on_store_error, expected=expected_gateways
        )
        self.pools: dict[str, FleetTurns] = {}
        self._clock = clock

    def turns(
        self,
        name: str,
        rules: PoolRules,
        tiers: Sequence[Tier],
        tenants: Iterable[Tenant],
        on_decision: Callable[[Decision], None] | None = None,
    ) -> FleetTurns:
        """Return a pool that is shared under a name."""
        made = FleetTurns(
            name,
            rules,
            tiers,
            tenants,
            settings=self.settings,
            clock=self._clock,
            on_decision=on_decision,
        )
        self.pools[name] = made
        return made

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Look at the server, then join the pools, as soon as it answers.

        Raises:
            StartError: The server won't do.
        """
        self.link.serve(tasks)
        try:
            server = await self.link.check()
        except StoreUnavailableError as error:
            LOG.warning("starting without the coordinator: %s", error)
        else:
            LOG.info("coordinator %s: %s %s", self.link.address, *server)
        await self.limits.start(tasks)
        for pool in self.pools.values():
            pool.serve(tasks)

    @property
    def ready(self) -> bool:
        """True where all pools serve."""
        return all(pool.ready for pool in self.pools.values())

    @property
    def alone(self) -> bool:
        """True where limits or a pool go on without the coordinator."""
        return self.limits.alone or any(pool.alone for pool in self.pools.values())

    def state(self) -> dict[str, Any]:
        """Return how it goes, for people: no host names or passwords."""
        return {
            "gateway": self.settings.gateway,
            "coordinator": "up" if self.link.up else "down",
            "mode": "alone" if self.alone else "shared" if self.ready else "starting",
            "switches": self.settings.switches,
            "failures": dict(self.link.failures),
            "limits": self.limits.state(),
            "pools": {
                name: {
                    "epoch": pool.driver.pool.epoch,
                    "members": len(pool.driver.pool.members),
                    "lag_s": s_from_us(pool.driver.lag_us),
                    "joins": pool.driver.joins,
                    "alone": pool.alone,
                }
                for name, pool in self.pools.items()
            },
        }

    async def aclose(self) -> None:
        """Leave the pools; their turns have been closed."""
        for pool in self.pools.values():
            pool.close()
        for pool in self.pools.values():
            await pool.driver.wait_closed()
        await self.limits.aclose()
        await self.link.aclose()
