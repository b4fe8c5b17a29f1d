# SPDX-License-Identifier: Apache-2.0
"""Suites that every implementation of a port must pass: for ours, and for yours.

Each suite takes an implementation in its first state and raises
``AssertionError`` where it breaks its contract.
"""

from dataclasses import replace

from taketurns.errors import StoreError
from taketurns.ports.stores import KeyRecord, KeyStore


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
