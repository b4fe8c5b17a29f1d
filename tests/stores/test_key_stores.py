# SPDX-License-Identifier: Apache-2.0
"""Every key store keeps the same contract; SQLite's also outlives its process and its faults."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.ports.stores import KeyRecord
from taketurns.stores.memory import MemoryKeyStore
from taketurns.stores.sqlite import SqliteKeyStore
from taketurns.testing.contracts import check_key_store

RECORD = KeyRecord("abcdefghijkl", "acme", "0" * 64, created_s=5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "taketurns.db"


def test_the_memory_store_keeps_the_contract():
    check_key_store(MemoryKeyStore())


def test_the_sqlite_store_keeps_the_contract(path):
    with closing(SqliteKeyStore(path)) as store:
        check_key_store(store)


class ForgetsRevocations(MemoryKeyStore):
    def revoke(self, public_id, *, revoked_s):
        record = self.get(public_id)
        return record and replace(record, revoked_s=record.revoked_s or revoked_s)


class TakesIdsTwice(MemoryKeyStore):
    def add(self, record):
        self._record_by_id[record.public_id] = record


@pytest.mark.parametrize("broken", [ForgetsRevocations, TakesIdsTwice])
def test_the_contract_finds_a_store_that_breaks_it(broken):
    with pytest.raises(AssertionError):
        check_key_store(broken())


def test_two_stores_on_one_file_see_each_other(path):
    with closing(SqliteKeyStore(path)) as one, closing(SqliteKeyStore(path)) as other:
        assert other.get(RECORD.public_id) is None
        one.add(RECORD)
        assert other.get(RECORD.public_id) == RECORD
        other.revoke(RECORD.public_id, revoked_s=7)
        assert one.list() == (replace(RECORD, revoked_s=7),)


def test_keys_outlive_the_store_that_wrote_them(path):
    store = SqliteKeyStore(path)
    store.add(RECORD)
    store.close()
    store.close()
    assert store.get(RECORD.public_id) == RECORD
    store.close()


def test_nothing_is_opened_before_it_is_needed(path):
    SqliteKeyStore(path)
    assert not path.exists()


def test_a_missing_directory_is_unavailable_until_it_exists(tmp_path):
    path = tmp_path / "missing" / "taketurns.db"
    with closing(SqliteKeyStore(path)) as store:
        with pytest.raises(StoreUnavailableError, match="did not answer") as caught:
            store.list()
        assert str(path) in str(caught.value)
        assert "directory" in caught.value.hint
        path.parent.mkdir()
        assert store.list() == ()


def test_a_file_that_another_process_locks_is_unavailable_for_writing_only(path):
    with closing(SqliteKeyStore(path)) as store:
        store.add(RECORD)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match="locked"):
                store.revoke(RECORD.public_id, revoked_s=7)
            assert store.get(RECORD.public_id) == RECORD
            other.execute("ROLLBACK")
        assert store.revoke(RECORD.public_id, revoked_s=7) == replace(RECORD, revoked_s=7)


def test_a_file_that_is_no_database_is_refused_and_left_alone(path):
    path.write_bytes(b"something else entirely" * 100)
    with closing(SqliteKeyStore(path)) as store, pytest.raises(StoreError, match="can't be used"):
        store.list()
    assert path.read_bytes() == b"something else entirely" * 100


def test_a_file_of_a_newer_release_is_refused(path):
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with closing(SqliteKeyStore(path)) as store, pytest.raises(StoreError, match="version 99"):
        store.list()


def test_a_row_that_breaks_the_tables_rules_is_refused(path):
    with closing(SqliteKeyStore(path)) as store:
        with pytest.raises(StoreError):
            store.add(replace(RECORD, hash="short"))
        assert store.list() == ()


@pytest.mark.parametrize("create", [lambda path: MemoryKeyStore(), SqliteKeyStore])
def test_a_hostile_id_is_only_an_unknown_id(path, create):
    store = create(path)
    for public_id in ("'; DROP TABLE api_key; --", "", "%", "\0", "a" * 10_000, "ü"):
        assert store.get(public_id) is None
    store.add(RECORD)
    assert store.list() == (RECORD,)
    if isinstance(store, SqliteKeyStore):
        store.close()
