# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL keeps the stores' contracts, several gateways' months, and outlives its faults."""

import threading
from contextlib import ExitStack, closing
from dataclasses import replace

import psycopg
import pytest

from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.ports.stores import Bound, KeyRecord, QuotaKey, Raised
from taketurns.stores import choose
from taketurns.stores.memory import MemoryKeyStore
from taketurns.stores.postgres import PostgresKeyStore
from taketurns.stores.postgres_database import SCHEMA_VERSION, PostgresDatabase, where
from taketurns.stores.postgres_quotas import PostgresQuotaStore
from taketurns.testing.contracts import check_key_store, check_quota_store

RECORD = KeyRecord("abcdefghijkl", "acme", "0" * 64, created_s=5)
KEY = QuotaKey("2026-11", "requests:trial", "acme")


def ask(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else None


def marks(url):
    return {tuple(row[:3]): row[3] for row in ask(url, "SELECT * FROM taketurns_month_mark")}


def test_the_key_store_keeps_the_contract(postgres):
    with closing(PostgresKeyStore(postgres)) as store:
        check_key_store(store)


def test_the_quota_store_keeps_the_contract(postgres):
    with closing(PostgresQuotaStore(postgres)) as store:
        check_quota_store(store)


def test_a_setting_names_its_stores(postgres, tmp_path):
    assert isinstance(choose.key_store(postgres), PostgresKeyStore)
    assert isinstance(choose.quota_store(postgres), PostgresQuotaStore)
    assert choose.key_store("memory") is None
    assert choose.quota_store("memory") is None


# Keys


def test_two_key_stores_on_one_database_see_each_other(postgres):
    with closing(PostgresKeyStore(postgres)) as one, closing(PostgresKeyStore(postgres)) as other:
        assert other.get(RECORD.public_id) is None
        one.add(RECORD)
        assert other.get(RECORD.public_id) == RECORD
        other.revoke(RECORD.public_id, revoked_s=7)
        assert one.list() == (replace(RECORD, revoked_s=7),)


def test_only_what_changed_lately_is_told(postgres):
    other = replace(RECORD, public_id="bbcdefghijkl")
    with closing(PostgresKeyStore(postgres)) as store:
        store.add(RECORD)
        store.add(other)
        assert set(store.changed(60)) == {RECORD, other}
        ask(postgres, "UPDATE taketurns_api_key SET changed_at = changed_at - interval '1 hour'")
        assert store.changed(60) == ()
        revoked = store.revoke(other.public_id, revoked_s=9)
        assert store.changed(60) == (revoked,)


def test_a_hostile_id_is_only_an_unknown_id(postgres):
    with closing(PostgresKeyStore(postgres)) as store:
        for public_id in ("'; DROP TABLE taketurns_api_key; --", "", "%", "\0", "ü", "\ud800"):
            assert store.get(public_id) is None
            assert store.revoke(public_id, revoked_s=1) is None
        store.add(RECORD)
        assert store.list() == (RECORD,)
        with pytest.raises(StoreError, match="refused"):
            store.add(replace(RECORD, public_id="other", hash="short"))
        with pytest.raises(StoreError, match="refused"):
            store.add(replace(RECORD, public_id="other", note="\0"))


# Months of several gateways


def test_what_each_takes_adds_up_and_each_is_told_of_the_others(postgres):
    with closing(PostgresQuotaStore(postgres)) as one, closing(PostgresQuotaStore(postgres)) as two:
        assert one.raise_to({KEY: 10}) == {KEY: Raised(10, 0)}
        # It knows of nothing, and takes 5: the mark is 15.
        assert two.raise_to({KEY: 5}) == {KEY: Raised(15, 10)}
        # Knowing of nobody else yet it asks for 12: 2 more.
        assert one.raise_to({KEY: 12}) == {KEY: Raised(17, 5)}
        assert two.shifts("2026-11") == {KEY: 2}
        assert two.shifts("2026-11") == {}
        one.lower_to({KEY: 14})
        assert marks(postgres) == {KEY: 14}
        assert two.shifts("2026-11") == {KEY: -3}


def test_a_write_whose_answer_was_lost_counts_once(postgres):
    with closing(PostgresQuotaStore(postgres)) as one, closing(PostgresQuotaStore(postgres)) as two:
        two.raise_to({KEY: 100})
        one.raise_to({KEY: 10})
        known = dict(one._others)
        one.raise_to({KEY: 120})
        one._others = known
        one._database.close()
        assert one.raise_to({KEY: 120}) == {KEY: Raised(120, 0)}
        assert marks(postgres) == {KEY: 120}


def test_no_more_is_taken_than_the_limit_leaves(postgres):
    with closing(PostgresQuotaStore(postgres)) as one, closing(PostgresQuotaStore(postgres)) as two:
        bound = {KEY: Bound(spent=0, limit=100)}
        assert one.raise_to({KEY: 90}, bound) == {KEY: Raised(90, 0)}
        assert two.raise_to({KEY: 90}, bound) == {KEY: Raised(100, 90)}
        assert one.raise_to({KEY: 100}, bound) == {KEY: Raised(100, 10)}
        # What was granted already is counted, whatever the limit.
        assert two.raise_to({KEY: 130}, {KEY: Bound(130, 100)}) == {KEY: Raised(130, 0)}


def test_a_new_gateway_counts_from_what_all_have_taken(postgres):
    with closing(PostgresQuotaStore(postgres)) as killed:
        killed.raise_to({KEY: 10})
        killed._database.close()
        with closing(PostgresQuotaStore(postgres)) as one:
            assert one.load("2026-11") == {KEY: 10}
            assert one.raise_to({KEY: 15}) == {KEY: Raised(15, 0)}


def test_who_stops_leaves_its_part_to_the_others(postgres):
    one, two = PostgresQuotaStore(postgres), PostgresQuotaStore(postgres)
    one.raise_to({KEY: 10})
    two.raise_to({KEY: 5})
    one.close()
    assert marks(postgres) == {KEY: 15}
    assert ask(postgres, "SELECT mark FROM taketurns_month_share") == [(5,)]
    assert one.raise_to({KEY: 12}) == {KEY: Raised(17, 5)}
    one.close()
    two.close()


def test_many_at_once_lose_nothing(postgres):
    keys = [KEY, QuotaKey("2026-11", "a", ""), QuotaKey("2026-11", "b", "acme")]

    def take(number):
        with closing(PostgresQuotaStore(postgres)) as store:
            mine = dict.fromkeys(keys, 0)
            for _ in range(20):
                order = keys if number % 2 else keys[::-1]
                told = store.raise_to({key: mine[key] + 1 for key in order})
                mine = {key: raised.mark for key, raised in told.items()}

    threads = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert marks(postgres) == dict.fromkeys(keys, 120)


# Faults


def test_a_database_that_is_not_there_is_unavailable_and_tells_no_password():
    store = PostgresKeyStore("postgresql://tt:secret@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailableError, match="did not answer") as caught:
        store.list()
    assert "secret" not in str(caught.value)
    assert where("postgresql://tt:secret@h:1/n?host=x") == "postgresql://h:1/n"


@pytest.mark.slow
def test_after_a_crash_of_the_server_the_next_call_connects_anew(own_postgres):
    url = own_postgres.new_database()
    with ExitStack() as stack:
        keys = stack.enter_context(closing(PostgresKeyStore(url)))
        quotas = stack.enter_context(closing(PostgresQuotaStore(url)))
        keys.add(RECORD)
        quotas.raise_to({KEY: 5})
        own_postgres.stop()
        for call in (keys.list, lambda: quotas.raise_to({KEY: 6}), lambda: quotas.load("")):
            with pytest.raises(StoreUnavailableError, match="did not answer"):
                call()
        own_postgres.start()
        assert keys.list() == (RECORD,)
        assert quotas.raise_to({KEY: 6}) == {KEY: Raised(6, 0)}


@pytest.mark.slow
def test_a_server_that_says_nothing_is_given_up(own_postgres):
    url = own_postgres.new_database()
    database = PostgresDatabase(url, silence_s=0.2)
    with database.transaction() as connection:
        connection.execute("SELECT 1")
    own_postgres.pause()
    try:
        with pytest.raises(StoreUnavailableError), database.transaction() as connection:
            connection.execute("SELECT 1")
    finally:
        own_postgres.resume()
    with database.transaction() as connection:
        assert connection.execute("SELECT 2").fetchone() == (2,)
    database.close()


def test_a_lock_that_another_holds_is_not_waited_for_long(postgres, monkeypatch):
    monkeypatch.setattr("taketurns.stores.postgres_database.STATEMENT_MS", 100)
    with closing(PostgresQuotaStore(postgres)) as store, psycopg.connect(postgres) as other:
        store.raise_to({KEY: 5})
        other.execute("SELECT * FROM taketurns_month_mark FOR UPDATE")
        with pytest.raises(StoreUnavailableError, match="timeout"):
            store.raise_to({KEY: 6})
        other.rollback()
        assert store.raise_to({KEY: 6}) == {KEY: Raised(6, 0)}


def test_a_standby_is_unavailable(postgres):
    with closing(PostgresQuotaStore(postgres)) as store:
        store.load("")
        name = postgres.partition("@/")[2].partition("?")[0]
        ask(postgres, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        store._database.close()
        with pytest.raises(StoreUnavailableError, match="takes no writes"):
            store.raise_to({KEY: 6})


def test_a_database_of_a_newer_release_is_refused(postgres):
    ask(
        postgres,
        "CREATE TABLE taketurns_schema (version integer)",
        "INSERT INTO taketurns_schema VALUES (99)",
    )
    with closing(PostgresKeyStore(postgres)) as store, pytest.raises(StoreError, match="99"):
        store.list()


def test_gateways_that_start_at_once_make_the_tables_once(postgres):
    failures = []

    def begin():
        try:
            with closing(PostgresKeyStore(postgres)) as store:
                store.list()
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert ask(postgres, "SELECT version FROM taketurns_schema") == [(SCHEMA_VERSION,)]


def test_a_user_that_may_not_is_told_what_is_missing(postgres):
    with closing(PostgresKeyStore(postgres)) as store:
        store.list()
    ask(postgres, "DROP ROLE IF EXISTS reader", "CREATE ROLE reader LOGIN")
    with (
        closing(PostgresKeyStore(postgres.replace("tt@", "reader@"))) as store,
        pytest.raises(StoreError, match="can't be used") as caught,
    ):
        store.list()
    assert "taketurns_*" in caught.value.hint


def test_keys_of_memory_and_database_sort_alike(postgres):
    records = [replace(RECORD, public_id=name) for name in ("b_a", "ba", "B", "a-b", "ab")]
    with closing(PostgresKeyStore(postgres)) as store:
        for record in records:
            store.add(record)
        assert store.list() == MemoryKeyStore(records).list()
