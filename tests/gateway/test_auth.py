# SPDX-License-Identifier: Apache-2.0
"""A key leads to its tenant; every other key leads to the same refusal."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from taketurns.config.load import parse
from taketurns.errors import RequestError, StoreUnavailableError
from taketurns.gateway.auth import (
    KEY_TTL_US,
    Authenticator,
    active_tenants,
    fingerprint,
    key_stores,
    mint,
)
from taketurns.ports.stores import KeyRecord
from taketurns.stores.memory import MemoryKeyStore
from taketurns.stores.sqlite import SqliteKeyStore


class CountingStore(MemoryKeyStore):
    """Counts look-ups, and can be out of reach."""

    def __init__(self, records=()):
        super().__init__(records)
        self.asked = []
        self.down = False

    def get(self, public_id):
        self.asked.append(public_id)
        if self.down:
            raise StoreUnavailableError("down")
        return super().get(public_id)


def record_of(minted, tenant="acme"):
    return KeyRecord(minted.public_id, tenant, minted.hash, created_s=0)


@pytest.fixture
def minted():
    return mint()


@pytest.fixture
def store(minted):
    return CountingStore([record_of(minted)])


@pytest.fixture
def auth(store):
    return Authenticator([store], {"acme", "globex"})


def refusal(auth, authorization, now_us=0):
    with pytest.raises(RequestError) as caught:
        auth.tenant_of(authorization, now_us=now_us)
    error = caught.value
    return (error.status, error.code, str(error), error.hint, error.param)


def test_a_key_has_an_id_of_60_and_a_secret_of_256_bits(minted):
    match = re.fullmatch(r"sk-tt-([a-z2-7]{12})-([A-Za-z0-9_-]{43})", minted.key)
    assert match[1] == minted.public_id
    assert len(base64.urlsafe_b64decode(match[2] + "=")) == 32


def test_keys_differ_in_both_parts():
    keys = [mint() for _ in range(200)]
    assert len({k.public_id for k in keys}) == 200
    assert len({k.key[-43:] for k in keys}) == 200


def test_what_is_kept_is_the_hash_of_the_whole_key(minted):
    assert minted.hash == fingerprint(minted.key) == hashlib.sha256(minted.key.encode()).hexdigest()
    assert minted.line == f"{minted.public_id}:{minted.hash}"
    assert minted.key not in repr(minted)
    assert minted.key not in repr(record_of(minted))


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_key_leads_to_its_tenant(auth, minted, scheme):
    assert auth.tenant_of(f"{scheme} {minted.key}", now_us=0) == "acme"
    assert auth.tenant_of(f"{scheme}  {minted.key} ", now_us=0) == "acme"


def test_every_wrong_key_meets_the_same_refusal(auth, store, minted):
    other = mint()
    revoked, suspended = mint(), mint()
    store.add(replace(record_of(revoked), revoked_s=1))
    store.add(record_of(suspended, tenant="stopped"))
    key, public_id = minted.key, minted.public_id
    wrong = [
        None,
        "",
        "Bearer",
        "Bearer ",
        key,
        f"Basic {key}",
        f"Bearer {key}x",
        f"Bearer {key[:-1]}",
        f"Bearer {key[:-1]}{'A' if key[-1] != 'A' else 'B'}",
        f"Bearer {key.upper()}",
        f"Bearer {key}\n",
        f"Bearer\t{key}",
        f"Bearer {key} {key}",
        f"Bearer sk-tt-{public_id}-{other.key[-43:]}",
        f"Bearer {other.key}",
        f"Bearer {revoked.key}",
        f"Bearer {suspended.key}",
        f"Bearer {minted.hash}",
        f"Bearer {minted.line}",
        "Bearer " + "x" * 10_000,
        "Bearer " + key * 200,
        "Bearer " + " " * 10_000 + key,
        "Bearer ' OR '1'='1' --",
        "Bearer sk-tt-ÀÀÀÀÀÀÀÀÀÀÀÀ-" + "A" * 43,
        "Bearer sk-tt-\udcff",
        "Bearer \0",
    ]
    refusals = {refusal(auth, authorization) for authorization in wrong}
    assert len(refusals) == 1
    status, code, message, _, _ = refusals.pop()
    assert (status, code) == (401, "invalid_api_key")
    assert "sk-" not in message


def test_what_is_no_key_costs_no_look_up(auth, store):
    for authorization in (None, "Bearer x", "Bearer " + "x" * 10_000, "Bearer sk-tt-a-b"):
        refusal(auth, authorization)
    assert store.asked == []


def test_the_hash_is_compared_for_unknown_ids_too(auth, minted, monkeypatch):
    """Else the time of the answer would tell which ids exist."""
    compared = []
    real = __import__("hmac").compare_digest

    def compare(one, other):
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("taketurns.gateway.auth.hmac.compare_digest", compare)
    auth.tenant_of(f"Bearer {minted.key}", now_us=0)
    for authorization in (f"Bearer {mint().key}", "Bearer x", None):
        refusal(auth, authorization)
    assert compared == [(64, 64)] * 4


def test_a_key_is_looked_up_once_in_five_seconds(auth, store, minted):
    for now_us in (0, 1, KEY_TTL_US - 1):
        auth.tenant_of(f"Bearer {minted.key}", now_us=now_us)
    assert len(store.asked) == 1
    auth.tenant_of(f"Bearer {minted.key}", now_us=KEY_TTL_US)
    assert len(store.asked) == 2


def test_a_revocation_takes_effect_within_five_seconds(auth, store, minted):
    authorization = f"Bearer {minted.key}"
    auth.tenant_of(authorization, now_us=100)
    store.revoke(minted.public_id, revoked_s=1)
    assert auth.tenant_of(authorization, now_us=100 + KEY_TTL_US - 1) == "acme"
    refusal(auth, authorization, now_us=100 + KEY_TTL_US)
    assert KEY_TTL_US == 5_000_000


def test_use_does_not_prolong_what_is_cached(auth, store, minted):
    for now_us in range(0, KEY_TTL_US + 1, KEY_TTL_US // 10):
        auth.tenant_of(f"Bearer {minted.key}", now_us=now_us)
    assert len(store.asked) == 2


def test_a_new_key_works_at_once_though_it_was_refused_before(auth, store):
    new = mint()
    refusal(auth, f"Bearer {new.key}")
    store.add(record_of(new, tenant="globex"))
    assert auth.tenant_of(f"Bearer {new.key}", now_us=0) == "globex"


def test_a_cached_id_does_not_let_another_secret_in(auth, minted):
    auth.tenant_of(f"Bearer {minted.key}", now_us=0)
    refusal(auth, f"Bearer sk-tt-{minted.public_id}-{mint().key[-43:]}")


def test_the_cache_is_bounded_and_guesses_push_nothing_out():
    keys = [mint() for _ in range(4)]
    store = CountingStore([record_of(k) for k in keys])
    auth = Authenticator([store], {"acme"}, cached_max=3)
    for key in keys[:3]:
        auth.tenant_of(f"Bearer {key.key}", now_us=0)
    for _ in range(10):
        refusal(auth, f"Bearer {mint().key}")
    store.asked.clear()
    for key in keys[:3]:
        auth.tenant_of(f"Bearer {key.key}", now_us=0)
    assert store.asked == []
    auth.tenant_of(f"Bearer {keys[3].key}", now_us=0)
    auth.tenant_of(f"Bearer {keys[1].key}", now_us=0)
    auth.tenant_of(f"Bearer {keys[0].key}", now_us=0)
    assert store.asked == [keys[3].public_id, keys[0].public_id]


def test_a_store_out_of_reach_is_no_wrong_key(auth, store, minted):
    auth.tenant_of(f"Bearer {minted.key}", now_us=0)
    store.down = True
    assert auth.tenant_of(f"Bearer {minted.key}", now_us=1) == "acme"
    with pytest.raises(StoreUnavailableError):
        auth.tenant_of(f"Bearer {mint().key}", now_us=1)


def test_keys_of_the_file_and_of_the_store_are_both_accepted(tmp_path, minted):
    stored, stopped = mint(), mint()
    config = parse(
        "tiers: {production: {rank: 0}}\n"
        'models: {chat: {endpoints: [chat], engines: [{url: "http://h:1"}]}}\n'
        f'tenants: {{acme: {{tier: production, keys: ["{minted.line}"]}}, '
        f"globex: {{tier: production}}, "
        f'stopped: {{tier: production, suspended: true, keys: ["{stopped.line}"]}}}}\n'
        f'store: "sqlite://{tmp_path}/t.db"\n',
        "test",
    )
    stores = key_stores(config)
    stores[1].add(record_of(stored, tenant="globex"))
    auth = Authenticator(stores, active_tenants(config))
    assert auth.tenant_of(f"Bearer {minted.key}", now_us=0) == "acme"
    assert auth.tenant_of(f"Bearer {stored.key}", now_us=0) == "globex"
    refusal(auth, f"Bearer {stopped.key}")
    assert isinstance(stores[1], SqliteKeyStore)
    stores[1].close()


def test_no_key_is_found_in_what_is_kept(tmp_path, minted):
    path = tmp_path / "t.db"
    store = SqliteKeyStore(path)
    store.add(record_of(minted))
    store.close()
    assert minted.key[-43:].encode() not in path.read_bytes()
    assert minted.hash.encode() in path.read_bytes()
