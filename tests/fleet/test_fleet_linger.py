# SPDX-License-Identifier: Apache-2.0
"""An idle engine waits for a fuller batch over all gateways: as long as was said, not when full."""

import pytest
from fleet.conftest import run
from fleet.virtual_fleet import Site, VirtualFleet

from taketurns.core.model import BatchRules, PoolRules, Ticket
from taketurns.units import US_PER_S

LINGER_US = 200_000


class ItemSite(Site):
    """A gateway that notes which items it's granted when; it finishes them when told to."""

    def ask(self):
        pass

    def decided(self, decision):
        now_us = self.fleet.clock.now_us()
        self.fleet.granted.append((self.name, now_us, [t.id for t in decision.tickets]))

    def submit(self, *numbers):
        ids = [f"{self.name}-{number}" for number in numbers]
        self.turns.submit([Ticket(name, "acme", "only", 1) for name in ids])
        return ids


class Items(VirtualFleet):
    site = ItemSite
    rules = PoolRules(quantum=10, batch=BatchRules(size_max=100, items_max=4, linger_us=LINGER_US))

    def __init__(self, server):
        super().__init__(server)
        self.granted = []

    async def passes(self, us):
        await self.heard()
        await self.until(self.clock.now_us() + us)


def play(scenario, server, *, count=2):
    async def whole():
        fleet = Items(server)
        async with fleet.open([0] * count):
            # Away from any heartbeat.
            await fleet.until(fleet.clock.now_us() + 5 * US_PER_S + 500_000)
            await scenario(fleet, *fleet.sites)

    run(whole())


def test_what_comes_in_the_meantime_goes_with_it_when_the_first_has_waited(redis):
    async def scenario(fleet, one, two):
        since_us = fleet.clock.now_us()
        first = one.submit(1)
        await fleet.passes(LINGER_US // 2)
        second, third = one.submit(2), two.submit(3)
        await fleet.passes(LINGER_US // 2 - 1)
        assert fleet.granted == []
        await fleet.passes(LINGER_US)
        due_us = since_us + LINGER_US
        assert sorted(fleet.granted) == [("g0", due_us, first + second), ("g1", due_us, third)]

    play(scenario, redis)


def test_a_full_batch_does_not_wait_whoever_has_its_items(redis):
    async def scenario(fleet, one, two):
        now_us = fleet.clock.now_us()
        mine, theirs = one.submit(1, 2), two.submit(1, 2)
        await fleet.heard()
        assert sorted(fleet.granted) == [("g0", now_us, mine), ("g1", now_us, theirs)]

    play(scenario, redis)


def test_who_waited_for_a_slot_does_not_wait_once_more(redis):
    async def scenario(fleet, one, two):
        for site in (one, two):
            site.finder.bound(1, 1, grows=False)
            site.reach()
        await fleet.heard()
        runs = one.submit(1, 2, 3, 4)
        await fleet.passes(LINGER_US)
        waits = two.submit(5)
        await fleet.passes(2 * LINGER_US)
        assert [ids for _, _, ids in fleet.granted] == [runs]
        for name in runs:
            one.turns.finish(name)
        now_us = fleet.clock.now_us()
        await fleet.heard()
        assert fleet.granted[1:] == [("g1", now_us, waits)]

    play(scenario, redis)


@pytest.mark.parametrize("dies", [0, 1])
def test_the_death_of_a_gateway_keeps_nobody_waiting(redis, dies):
    async def scenario(fleet, *sites):
        since_us = fleet.clock.now_us()
        sites[0].submit(1)
        await fleet.passes(LINGER_US // 2)
        sites[1].submit(2)
        await fleet.heard()
        sites[dies].die()
        await fleet.passes(LINGER_US)
        left = sites[1 - dies].name
        assert [(name, at_us) for name, at_us, _ in fleet.granted if name == left] == [
            (left, since_us + LINGER_US)
        ]

    play(scenario, redis)


def test_items_that_went_away_start_no_wait_for_later_ones(redis):
    async def scenario(fleet, one, two):
        one.turns.cancel(one.submit(1))
        await fleet.passes(LINGER_US // 2)
        since_us = fleet.clock.now_us()
        ids = two.submit(2)
        await fleet.passes(2 * LINGER_US)
        assert fleet.granted == [("g1", since_us + LINGER_US, ids)]

    play(scenario, redis)


def test_a_gateway_alone_lingers_too(own_redis):
    async def scenario(fleet, one):
        own_redis.kill()
        await fleet.until(fleet.clock.now_us() + 3 * US_PER_S)
        assert one.turns.alone
        since_us = fleet.clock.now_us()
        ids = one.submit(1)
        await fleet.passes(2 * LINGER_US)
        assert fleet.granted == [("g0", since_us + LINGER_US, ids)]

    play(scenario, own_redis, count=1)
