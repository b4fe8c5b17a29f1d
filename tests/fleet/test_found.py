# SPDX-License-Identifier: Apache-2.0
"""A fleet finds an engine's slots as one gateway does, whichever way the load comes in."""

import os
from statistics import mean, median

import pytest
from fleet.conftest import run
from fleet.virtual_fleet import VirtualFleet

from taketurns.ports.clock import VirtualClock
from taketurns.testing.batching_engine import ClosedLoop, StepTimes

PROOF = bool(os.environ.get("TAKETURNS_PROOF"))
KNEE = 24
FOUND_S = 30
HELD_S = 60 if PROOF else 20
INGRESS = {"all through one": (200, 0), "half and half": (100, 100), "three": (20, 150, 60)}


def best(slots, seconds=20):
    loop = ClosedLoop(VirtualClock(), batch_max=KNEE, times=StepTimes(), limit=slots)
    return mean(second.tokens for second in loop.run(seconds)[5:])


def near(held):
    middle = median(slots for slots, _, _ in held)
    assert 0.85 * KNEE <= middle <= 1.3 * KNEE, held
    assert mean(tokens for _, tokens, _ in held) >= 0.95 * best(KNEE), held
    assert mean(waiting for _, _, waiting in held) <= 1 + middle / 8, held


@pytest.mark.parametrize("ingress", INGRESS)
@pytest.mark.parametrize("gauge", [True, False])
def test_the_knee_is_found_in_time_and_held(redis, ingress, gauge):
    async def scenario():
        fleet = VirtualFleet(redis, batch_max=KNEE, times=StepTimes(), gauge=gauge)
        async with fleet.open(INGRESS[ingress]):
            await fleet.run(FOUND_S + HELD_S)
        near(fleet.past[FOUND_S:])

    run(scenario())


def virtual(scenario, server, wanted):
    """Play a scenario with gateways of so many requests each."""

    async def whole():
        fleet = VirtualFleet(server, batch_max=KNEE, times=StepTimes(), gauge=False)
        async with fleet.open(wanted):
            await scenario(fleet)

    run(whole())


@pytest.mark.parametrize("dies", [0, 1])
def test_whoever_dies_the_others_go_on_from_what_was_found(redis, dies):
    async def scenario(fleet):
        await fleet.run(20)
        versions = [site.finder._version for site in fleet.sites]
        fleet.sites[dies].die()
        await fleet.run(FOUND_S + HELD_S)
        # Not even while what the dead one held is not taken back, it begins anew.
        assert min(slots for slots, _, _ in fleet.past[20:]) >= 0.7 * KNEE
        near(fleet.past[-HELD_S:])
        assert fleet.alive[0].finder._version > max(versions) + 10
        assert list(fleet.row()[2]) == [fleet.alive[0].name]
        assert not any(key.startswith(f"g{dies}|") for key in fleet.kept())

    virtual(scenario, redis, (100, 100))


def test_without_the_store_the_last_limit_is_split_and_found_further_afterwards(own_redis):
    async def scenario(fleet):
        await fleet.run(20)
        own_redis.kill()
        await fleet.run(10)
        assert all(site.turns.alone for site in fleet.sites)
        limits = {site.finder.slots for site in fleet.sites}
        assert max(limits) - min(limits) <= KNEE // 8
        running = [site.running for site in fleet.sites]
        assert sum(running) <= max(limits)
        assert min(running) >= min(limits) // 2
        own_redis.start()
        while any(site.turns.alone for site in fleet.sites):
            await fleet.run(1)
        # Who comes back knows what was found, though the store lost all.
        assert fleet.row()[0] == pytest.approx(max(limits), abs=2 * (KNEE // 8))
        await fleet.run(FOUND_S + HELD_S)
        near(fleet.past[-HELD_S:])

    virtual(scenario, own_redis, (100, 100))


def test_who_comes_late_goes_by_what_was_found(redis):
    async def scenario(fleet):
        await fleet.run(20)
        late = await fleet.add(100)
        assert late.finder.slots == fleet.row()[0] >= 0.7 * KNEE
        await fleet.run(FOUND_S + HELD_S)
        near(fleet.past[-HELD_S:])

    virtual(scenario, redis, (100,))


def test_a_refusal_lowers_the_limit_of_all_to_what_the_engine_holds(redis):
    async def scenario(fleet):
        await fleet.run(20)
        one, other = fleet.sites
        _, in_flight, _ = fleet.row()
        one.finder.refused(fleet.clock.now_us())
        one.finder.refused(fleet.clock.now_us())
        await fleet.heard()
        assert fleet.row()[0] == one.finder.slots == in_flight - 2
        await fleet.run(2)
        assert other.finder.slots == fleet.row()[0]

    virtual(scenario, redis, (50, 50))


def test_what_was_found_from_an_older_version_counts_for_nothing(redis):
    async def scenario(fleet):
        await fleet.run(10)
        site = fleet.sites[0]
        limit, version = fleet.row()[0], site.finder._version
        heard = []
        site.driver.push(("find", "gpu", version - 2, 200, "{}"), heard.append)
        await fleet.heard()
        assert heard[0][0] == "stale"
        assert fleet.row()[0] == limit

    virtual(scenario, redis, (50, 50))


def test_an_engine_that_was_away_for_all_begins_with_the_least(redis):
    async def scenario(fleet):
        await fleet.run(20)
        one, other = fleet.sites
        limit = fleet.row()[0]
        one.turns.set_engine("gpu", 0)
        one.finder.restart(fleet.clock.now_us())
        await fleet.heard()
        # It was away for one gateway alone.
        assert fleet.row()[0] == limit
        other.turns.set_engine("gpu", 0)
        await fleet.heard()
        one.finder.restart(fleet.clock.now_us())
        await fleet.heard()
        assert fleet.row()[0] == one.finder.slots == 1

    virtual(scenario, redis, (50, 50))


def test_who_removes_an_engine_is_not_waited_for(redis):
    async def scenario(fleet):
        await fleet.run(10)
        one, other = fleet.sites
        one.wanted = 0
        one.turns.cancel([ticket_id for ticket_id, _ in one.turns.holdings.all()])
        one.turns.remove_engine("gpu")
        await fleet.run(10)
        version = other.finder._version
        await fleet.run(5)
        assert other.finder._version >= version + 3
        assert fleet.kept() == ["", "|gpu"]
        other.turns.remove_engine("gpu")
        await fleet.run(1)
        assert fleet.kept() == [""]

    virtual(scenario, redis, (50, 50))


def test_slots_that_are_set_again_are_found_no_more(redis):
    async def scenario(fleet):
        await fleet.run(10)
        one, other = fleet.sites
        for site in fleet.sites:
            site.finder.bound(1, 6, grows=False)
            site.reach()
        await fleet.heard()
        assert fleet.row()[0] == 0
        assert fleet.row()[2] == {"g0": 6, "g1": 6}
        assert fleet.kept() == [""]
        for site in (one, other):
            site.finder.bound(1, 200)
            site.reach()
        await fleet.heard()
        assert fleet.row()[0] == 6
        assert fleet.row()[2] == {"g0": 200, "g1": 200}

    virtual(scenario, redis, (50, 50))


def test_rows_that_were_damaged_are_put_together_again(redis):
    async def scenario(fleet):
        await fleet.run(20)
        fleet.client.delete("tt:{pool}:found")
        await fleet.run(5)
        assert fleet.row()[0] >= 0.7 * KNEE
        await fleet.run(FOUND_S + HELD_S)
        near(fleet.past[-HELD_S:])

    virtual(scenario, redis, (50, 50))
