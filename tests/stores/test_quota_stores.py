# SPDX-License-Identifier: Apache-2.0
"""Every quota store keeps the same contract; SQLite's says what is wrong with its file."""

import sqlite3
from contextlib import closing

import pytest

from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.ports.stores import NO_BOUNDS, KeyRecord, QuotaKey, Raised
from taketurns.stores.memory import MemoryQuotaStore
from taketurns.stores.sqlite import SqliteKeyStore
from taketurns.stores.sqlite_file import SCHEMA_VERSION, WAL_BYTES_MAX
from taketurns.stores.sqlite_quotas import SqliteQuotaStore
from taketurns.testing.contracts import check_quota_store

KEY = QuotaKey("2026-11", "requests:trial", "acme")
RECORD = KeyRecord("abcdefghijkl", "acme", "0" * 64, created_s=5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "taketurns.db"


def many(count, mark=1):
    return {QuotaKey("2026-11", f"requests:{number:0100}", "acme"): mark for number in range(count)}


def test_the_memory_store_keeps_the_contract():
    check_quota_store(MemoryQuotaStore())


def test_the_sqlite_store_keeps_the_contract(path):
    with closing(SqliteQuotaStore(path)) as store:
        check_quota_store(store)


class Lowers(MemoryQuotaStore):
    def raise_to(self, marks, bounds=NO_BOUNDS):
        self._mark_by_key.update(marks)
        return {key: Raised(mark) for key, mark in marks.items()}


class Makes(MemoryQuotaStore):
    def lower_to(self, marks):
        self._mark_by_key.update(marks)


class TellsNothing(MemoryQuotaStore):
    def raise_to(self, marks, bounds=NO_BOUNDS):
        super().raise_to(marks)
        return {key: Raised(0) for key in marks}


class LoadsOneMonth(MemoryQuotaStore):
    def load(self, since):
        return {k: mark for k, mark in self._mark_by_key.items() if not since or k.month == since}


class ForgetsAll(MemoryQuotaStore):
    def forget_before(self, month):
        self._mark_by_key = {k: mark for k, mark in self._mark_by_key.items() if k.month >= month}


class ForgetsNothing(MemoryQuotaStore):
    def forget_before(self, month):
        pass


@pytest.mark.parametrize(
    "broken", [Lowers, Makes, TellsNothing, LoadsOneMonth, ForgetsAll, ForgetsNothing]
)
def test_the_contract_finds_a_store_that_breaks_it(broken):
    with pytest.raises(AssertionError):
        check_quota_store(broken())


def test_marks_and_keys_share_a_file_and_outlive_the_stores(path):
    with closing(SqliteKeyStore(path)) as keys, closing(SqliteQuotaStore(path)) as quotas:
        keys.add(RECORD)
        quotas.raise_to({KEY: 5})
        assert keys.get(RECORD.public_id) == RECORD
    with closing(SqliteKeyStore(path)) as keys, closing(SqliteQuotaStore(path)) as quotas:
        assert quotas.load("2026-11") == {KEY: 5}
        assert keys.list() == (RECORD,)


def test_a_file_of_the_first_release_keeps_its_keys_and_gets_marks(path):
    with closing(SqliteKeyStore(path)) as keys:
        keys.add(RECORD)
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE month_mark")
        other.execute("PRAGMA user_version = 1")
    with closing(SqliteQuotaStore(path)) as quotas, closing(SqliteKeyStore(path)) as keys:
        quotas.raise_to({KEY: 5})
        assert keys.list() == (RECORD,)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_locked_file_is_unavailable_for_writing_until_it_is_free(path, mode):
    with closing(SqliteQuotaStore(path)) as store:
        store.raise_to({KEY: 5})
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(f"BEGIN {mode}")
            for write in (store.raise_to, store.lower_to):
                with pytest.raises(StoreUnavailableError, match="locked"):
                    write({KEY: 6})
            with pytest.raises(StoreUnavailableError, match="locked"):
                store.forget_before("2026-12")
            assert store.load("2026-11") == {KEY: 5}
            other.execute("ROLLBACK")
        store.raise_to({KEY: 6})
        assert store.load("2026-11") == {KEY: 6}


def fill_up(store):
    """Let the file of a store grow no further."""
    with store._file.database() as database:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_tried_once_more_on_a_new_connection(path):
    with closing(SqliteQuotaStore(path)) as store:
        store.raise_to({KEY: 5})
        fill_up(store)
        full = store._file._connection
        store.raise_to({KEY: 6} | many(500))
        assert store._file._connection is not full
        assert len(store.load("2026-11")) == 501


def test_a_disk_that_stays_full_is_unavailable_and_all_or_nothing_is_written(path):
    class Full(SqliteQuotaStore):
        def _write_once(self, statement, rows):
            fill_up(self)
            super()._write_once(statement, rows)

    with closing(SqliteQuotaStore(path)) as store:
        store.raise_to({KEY: 5})
    with closing(Full(path)) as store:
        with pytest.raises(StoreUnavailableError, match="full") as caught:
            store.raise_to({KEY: 6} | many(500))
        assert "space" in caught.value.hint
        assert store.load("2026-11") == {KEY: 5}
        store.raise_to({KEY: 7})
        assert store.load("2026-11") == {KEY: 7}


def test_the_write_ahead_log_stays_small(path):
    with closing(SqliteQuotaStore(path)) as store:
        for mark in range(1, 60):
            store.raise_to(many(400, mark))
        with store._file.database() as database:
            database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        store.raise_to({KEY: 5})
        assert path.with_name("taketurns.db-wal").stat().st_size <= WAL_BYTES_MAX


@pytest.mark.parametrize("spoil", ["head", "body"])
def test_a_corrupt_file_is_refused_in_words_and_left_alone(path, spoil):
    with closing(SqliteQuotaStore(path)) as store:
        store.raise_to(many(2000))
    content = bytearray(path.read_bytes())
    start, end = (0, 4096) if spoil == "head" else (8192, len(content))
    content[start:end] = b"\x5a" * (end - start)
    path.write_bytes(content)
    with closing(SqliteQuotaStore(path)) as store:
        with pytest.raises(StoreError, match="can't be used") as caught:
            store.load("2026-11")
        assert str(path) in str(caught.value)
        assert caught.value.hint
    assert path.read_bytes() == content


def test_a_mark_beyond_what_may_be_kept_is_refused_with_all_that_comes_with_it(path):
    with closing(SqliteQuotaStore(path)) as store:
        for mark in (-1, 2**53 + 1):
            with pytest.raises(StoreError):
                store.raise_to({**many(3), KEY: mark})
            assert store.load("") == {}
