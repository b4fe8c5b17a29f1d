# SPDX-License-Identifier: Apache-2.0
"""Keys of a database are looked up in memory, and follow what changes there."""

import asyncio
import logging
from contextlib import closing
from dataclasses import replace

import pytest

from taketurns.errors import StoreUnavailableError
from taketurns.gateway.auth import mint
from taketurns.gateway.key_directory import REFRESH_US, KeyDirectory
from taketurns.ports.clock import VirtualClock
from taketurns.ports.stores import KeyRecord
from taketurns.stores.postgres import PostgresKeyStore

RECORD = KeyRecord("abcdefghijkl", "acme", "0" * 64, created_s=5)
SAFETY_S = 60


async def until(condition):
    while not condition():
        soon = asyncio.Event()
        asyncio.get_running_loop().call_later(0.002, soon.set)
        await soon.wait()


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, SAFETY_S))


class Faulty:
    """A source that fails as long as it's told to."""

    def __init__(self, *records):
        self.records = list(records)
        self.down = False
        self.asked = []

    def list(self):
        return tuple(self.records)

    def changed(self, within_s):
        self.asked.append(within_s)
        if self.down:
            raise StoreUnavailableError("it is down")
        return tuple(self.records)

    def close(self):
        self.records = []


async def look(directory, clock):
    clock.run_until(clock.now_us() + REFRESH_US)
    await until(lambda: directory._reading is None)


def test_new_and_revoked_keys_are_seen_within_two_seconds(postgres):
    async def scenario():
        clock = VirtualClock()
        with closing(PostgresKeyStore(postgres)) as store:
            store.add(RECORD)
            directory = KeyDirectory(PostgresKeyStore(postgres), clock)
            await directory.start()
            other = replace(RECORD, public_id="bbcdefghijkl")
            store.add(other)
            store.revoke(RECORD.public_id, revoked_s=9)
            assert directory.get(RECORD.public_id) == RECORD
            assert directory.get(other.public_id) is None
            await look(directory, clock)
            assert directory.get(RECORD.public_id).revoked_s == 9
            assert directory.get(other.public_id) == other
            await directory.aclose()

    run(scenario())


def test_an_outage_is_told_once_and_what_changed_meanwhile_is_read_afterwards(caplog):
    async def scenario():
        clock = VirtualClock()
        source = Faulty(RECORD)
        directory = KeyDirectory(source, clock)
        await directory.start()
        source.down = True
        with caplog.at_level(logging.WARNING):
            for _ in range(100):
                await look(directory, clock)
        assert directory.failing
        assert directory.get(RECORD.public_id) == RECORD
        source.down = False
        source.records.append(replace(RECORD, public_id="bbcdefghijkl"))
        with caplog.at_level(logging.WARNING):
            await look(directory, clock)
        assert not directory.failing
        assert directory.get("bbcdefghijkl") is not None
        assert source.asked[-1] > 200
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        await directory.aclose()

    run(scenario())


def test_it_does_not_start_without_its_keys():
    directory = KeyDirectory(PostgresKeyStore("postgresql://127.0.0.1:1/none"), VirtualClock())

    async def scenario():
        with pytest.raises(StoreUnavailableError):
            await directory.start()
        await directory.aclose()

    run(scenario())


@pytest.mark.slow
def test_a_gateway_accepts_the_keys_of_its_database_until_they_are_revoked(play, postgres):
    minted = mint()
    with closing(PostgresKeyStore(postgres)) as store:
        store.add(KeyRecord(minted.public_id, "acme", minted.hash, created_s=1))

        async def scenario(site):
            site.keys["stored"] = minted.key
            assert (await site.send("GET", "/v1/models", tenant="stored")).status == 200
            store.revoke(minted.public_id, revoked_s=9)
            while (await site.send("GET", "/v1/models", tenant="stored")).status != 401:
                soon = asyncio.Event()
                asyncio.get_running_loop().call_later(0.05, soon.set)
                await soon.wait()

        play(scenario, store=postgres)
