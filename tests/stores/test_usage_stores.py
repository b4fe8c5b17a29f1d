# SPDX-License-Identifier: Apache-2.0
"""Every usage store keeps the same contract, and adds a batch whole, and once."""

import sqlite3
import threading
from contextlib import closing

import pytest

from taketurns.errors import StoreUnavailableError
from taketurns.ports.stores import Usage, UsageKey
from taketurns.stores import choose
from taketurns.stores.memory import MemoryUsageStore
from taketurns.stores.postgres_usage import PostgresUsageStore
from taketurns.stores.sqlite_usage import SqliteUsageStore
from taketurns.testing.contracts import check_usage_store

KEY = UsageKey("2026-11-30", "acme", "chat", "chat")
ONE = Usage(1, 0, 10, 20, 1000)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/taketurns.db"
    return request.getfixturevalue("postgres")


def test_memory_keeps_the_contract():
    check_usage_store(MemoryUsageStore())


def test_the_others_keep_the_contract(store):
    with closing(choose.usage_store(store)) as kept:
        assert isinstance(kept, SqliteUsageStore | PostgresUsageStore)
        check_usage_store(kept)
    assert choose.usage_store("memory") is None


class AddsTwice(MemoryUsageStore):
    def add(self, writer, number, used):
        super().add(f"{writer}{len(self._last)}", number, used)


class ReadsAll(MemoryUsageStore):
    def read(self, since, until):
        return super().read("", "9")


@pytest.mark.parametrize("broken", [AddsTwice, ReadsAll])
def test_the_contract_finds_a_store_that_breaks_it(broken):
    with pytest.raises(AssertionError):
        check_usage_store(broken())


def test_writers_at_the_same_time_lose_nothing(store):
    keys = [KEY, KEY._replace(tenant="globex"), KEY._replace(model="embed")]

    def write(number):
        with closing(choose.usage_store(store)) as kept:
            for batch in range(1, 11):
                rows = keys if number % 2 else keys[::-1]
                kept.add(f"gw_{number}", batch, dict.fromkeys(rows, ONE))

    with closing(choose.usage_store(store)) as kept:
        kept.read("", "9")
        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert kept.read("", "9") == dict.fromkeys(keys, Usage(30, 0, 300, 600, 30_000))


def test_a_locked_file_adds_nothing_and_then_once(tmp_path):
    path = tmp_path / "taketurns.db"
    with closing(SqliteUsageStore(path)) as kept:
        kept.add("a", 1, {KEY: ONE})
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError):
                kept.add("a", 2, {KEY: ONE})
            other.execute("ROLLBACK")
        kept.add("a", 2, {KEY: ONE})
        assert kept.read("", "9") == {KEY: ONE.plus(ONE)}
