# SPDX-License-Identifier: Apache-2.0
"""Suites that every implementation of a port must pass: for ours, and for yours.

Each suite takes an implementation in its first state and raises
``AssertionError`` where it breaks its contract.
"""

from dataclasses import replace

from taketurns.errors import StoreError
from taketurns.ports.stores import (
    MONTHS_KEPT,
    KeyRecord,
    KeyStore,
    QuotaKey,
    QuotaStore,
    Raised,
    Usage,
    UsageKey,
    UsageStore,
)


def check_key_store(store: KeyStore) -> None:
    """Check the contract of :class:`taketurns.ports.stores.KeyStore`.

    Args:
        store: An empty store.
    """
    first = KeyRecord("abcdefghijkl", "acme", "0" * 64, created_s=20, note="laptop")
    second = KeyRecord("bbcdefghijkl", "acme", "1" * 64, created_s=10)
    third = KeyRecord("aacdefghijkl", "globex", "2" * 64, created_s=20, revoked_s=30, note="ü '\"")

    assert store.list() == (), "the suite wants an empty store"
    assert store.get(first.public_id) is None, "a key is known before it is added"
    for record in (first, second, third):
        store.add(record)
    for record in (first, second, third):
        assert store.get(record.public_id) == record, "a key is not kept as it was added"
    assert store.list() == (second, third, first), "keys are not listed by time and public id"

    _check_taken_id(store, first)
    _check_revocation(store, first, third)
    assert store.get("' OR '1'='1") is None, "a public id is taken for more than a text"
    assert store.get(first.public_id.upper()) is None, "public ids are compared without case"


def _check_taken_id(store: KeyStore, taken: KeyRecord) -> None:
    refused = False
    try:
        store.add(replace(taken, tenant="globex"))
    except StoreError:
        refused = True
    assert refused, "a public id can be taken twice"
    assert store.get(taken.public_id) == taken, "a refused key changed the one on record"


def _check_revocation(store: KeyStore, active: KeyRecord, revoked: KeyRecord) -> None:
    expected = replace(active, revoked_s=99)
    assert store.revoke(active.public_id, revoked_s=99) == expected, "a key is not revoked"
    assert store.get(active.public_id) == expected, "a revocation is not seen"
    assert store.revoke(active.public_id, revoked_s=100) == expected, "a second time is kept"
    assert store.revoke(revoked.public_id, revoked_s=100) == revoked, "a second time is kept"
    assert store.revoke("zzzzzzzzzzzz", revoked_s=100) is None, "an unknown key is revoked"
    assert len(store.list()) == 3, "a revoked key is gone"


def check_quota_store(store: QuotaStore) -> None:
    """Check the contract of :class:`taketurns.ports.stores.QuotaStore`.

    Args:
        store: An empty store.
    """
    each = QuotaKey("2026-11", "requests:trial", "acme")
    total = QuotaKey("2026-11", "requests:trial", "")
    odd = QuotaKey("2026-11", "tokens:ü '\"", "globex")
    later = QuotaKey("2026-12", "requests:trial", "acme")

    assert store.load("") == {}, "the suite wants an empty store"
    store.raise_to({})
    store.lower_to({each: 5})
    assert store.load("") == {}, "lowering makes a mark"
    marks = {each: 10, total: 2**53, odd: 0, later: 7}
    for _ in range(2):
        told = store.raise_to(marks)
        assert store.load("") == marks, "marks are not kept as they were raised"
        assert told == {key: Raised(mark) for key, mark in marks.items()}, (
            "it's not told how marks stand"
        )
    assert store.shifts("") == {}, "marks are moved by others where there are none"
    assert store.load("2026-11") == marks, (
        "marks of the month itself, or of later ones, are missing"
    )
    assert store.load("2026-12") == {later: 7}, "marks of earlier months are loaded"
    assert store.load("2027-01") == {}, "marks of earlier months are loaded"

    store.raise_to({each: 9, later: 8})
    assert store.load("") == {**marks, later: 8}, "raising lowers a mark"
    for _ in range(2):
        store.lower_to({each: 3, total: 2**53, later: 9})
        assert store.load("") == {**marks, each: 3, later: 8}, "lowering does not just lower"
    _check_forgetting(store)
    store.close()
    store.close()
    assert store.load("2099-01") == {}, "a closed store can't be used again"


def _check_forgetting(store: QuotaStore) -> None:
    months = [f"2027-{number:02}" for number in range(1, 10)]
    store.raise_to({QuotaKey(month, rule, ""): 1 for month in months for rule in ("a", "b")})
    # The months may be anything: a clock that went wrong must not cost the real ones.
    for now in ("2027-06", "2027-06", "2099-01"):
        store.forget_before(now)
        earlier = [month for month in months if month < now][-MONTHS_KEPT:]
        months = earlier + [month for month in months if month >= now]
        kept = sorted(key.month for key in store.load(""))
        assert kept == sorted(months * 2), "other months are forgotten than those long over"
    store.forget_before("2020-01")
    assert len(store.load("")) == 2 * MONTHS_KEPT, "months to come are forgotten"


def check_usage_store(store: UsageStore) -> None:
    """Check the contract of :class:`taketurns.ports.stores.UsageStore`.

    Args:
        store: An empty store.
    """
    first = UsageKey("2026-11-29", "acme", "chat", "chat")
    second = UsageKey("2026-11-30", "acme", "chat", "chat")
    odd = UsageKey("2026-11-30", "globex", "ü '\"", "embeddings")
    one = Usage(1, 2, 3, 4, 5)

    assert store.read("", "9") == {}, "the suite wants an empty store"
    for _ in range(2):
        store.add("a", 1, {first: one, odd: one})
        assert store.read("", "9") == {first: one, odd: one}, "a batch is not added once"
    store.add("a", 2, {first: one, second: Usage(requests=2**40)})
    store.add("b", 1, {first: one})
    store.add("a", 1, {first: one})
    total = {first: Usage(3, 6, 9, 12, 15), second: Usage(requests=2**40), odd: one}
    assert store.read("", "9") == total, "batches do not add up"
    assert store.read("2026-11-30", "2026-11-30") == {second: total[second], odd: one}, (
        "other days are read than those that were asked for"
    )
    store.forget_before("2026-11-30")
    assert store.read("", "9") == {second: total[second], odd: one}, "other days are forgotten"
    store.close()
    store.close()
    assert store.read("2099-01-01", "9") == {}, "a closed store can't be used again"
