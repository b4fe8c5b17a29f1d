# SPDX-License-Identifier: Apache-2.0
"""API keys: made, hashed, and traced back to their tenant.

A key is ``sk-tt-<public id>-<secret>``. The public id (60 random bits) finds
the record; the secret (256 random bits) proves the key. Kept is only the
SHA-256 of the whole key: with that much entropy a slow hash gains nothing.

Whoever presents a wrong key learns nothing from the answer: one status, one
body, and the same work for every cause.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from taketurns.config.model import Config
from taketurns.config.quantities import PUBLIC_ID_PATTERN
from taketurns.config.stored import Stored
from taketurns.errors import RequestError
from taketurns.ports.stores import KeyRecord
from taketurns.stores import choose
from taketurns.stores.memory import MemoryKeyStore
from taketurns.system import random_bytes
from taketurns.units import US_PER_S

KEY_PREFIX = "sk-tt-"
PUBLIC_ID_LEN = 12

KEY_TTL_US = 5 * US_PER_S
"""How long a record is trusted without a look at the store: the longest that a
revoked key is still accepted."""

CACHED_KEYS_MAX = 10_000
"""Most records in the cache; the oldest leaves first."""

_KEY = re.compile(rf"{KEY_PREFIX}({PUBLIC_ID_PATTERN})-[A-Za-z0-9_-]{{43}}")
_AUTHORIZATION_MAX = 256

# Compared with where there is no record. Nothing has this SHA-256, and a match would not count.
_NO_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class MintedKey:
    """A new key: the only time that it exists in the clear.

    Attributes:
        key: What the tenant's client sends.
        public_id: By which it is found, listed and revoked.
        hash: What is kept of it.
    """

    key: str = field(repr=False)
    public_id: str
    hash: str

    @property
    def line(self) -> str:
        """The key's line under ``tenants.NAME.keys`` in the configuration."""
        return f"{self.public_id}:{self.hash}"


def mint() -> MintedKey:
    """Make a key that can't be guessed."""
    public_id = base64.b32encode(random_bytes(8)).decode().lower()[:PUBLIC_ID_LEN]
    secret = base64.urlsafe_b64encode(random_bytes(32)).decode().rstrip("=")
    key = f"{KEY_PREFIX}{public_id}-{secret}"
    return MintedKey(key, public_id, fingerprint(key))


def fingerprint(key: str) -> str:
    """Return the SHA-256 of a whole key, in hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def configured_keys(config: Config | Stored) -> tuple[KeyRecord, ...]:
    """Return the keys that stand in the configuration itself."""
    records: list[KeyRecord] = []
    for name, tenant in config.tenants.items():
        for line in tenant.keys:
            public_id, _, known_hash = line.partition(":")
            records.append(KeyRecord(public_id, name, known_hash, created_s=0))
    return tuple(records)


class KeyLookup(Protocol):
    """Where keys are looked up: a :class:`KeyStore`, or what stands for one."""

    def get(self, public_id: str) -> KeyRecord | None:
        """Return the key with a public id, revoked or not; None where there is none."""
        ...

    def close(self) -> None:
        """Give back what is held open; the next call opens it again."""
        ...


def key_stores(config: Config, directory: KeyLookup | None = None) -> tuple[KeyLookup, ...]:
    """Return the stores in which to look for a key, in this order; nothing is opened yet.

    Args:
        config: The configuration.
        directory: Stands for the store that it names; None: that store itself.
    """
    configured = MemoryKeyStore(configured_keys(config))
    store = directory or choose.key_store(config.store)
    return (configured,) if store is None else (configured, store)


def active_tenants(config: Config) -> frozenset[str]:
    """Return the tenants whose keys are accepted."""
    return frozenset(name for name, tenant in config.tenants.items() if not tenant.suspended)


class _Cached(NamedTuple):
    record: KeyRecord
    expires_us: int


class Authenticator:
    """Says which tenant a request belongs to, by its key alone.

    Args:
        stores: Where to look for a key, in this order; the first that knows it counts.
        tenants: The tenants whose keys are accepted.
        ttl_us: How long a record is trusted without a look at the stores.
        cached_max: Most records in the cache, at least 1.
    """

    def __init__(
        self,
        stores: Sequence[KeyLookup],
        tenants: Collection[str],
        *,
        ttl_us: int = KEY_TTL_US,
        cached_max: int = CACHED_KEYS_MAX,
    ) -> None:
        self._stores = tuple(stores)
        self._tenants = frozenset(tenants)
        self._ttl_us = ttl_us
        self._cached_max = cached_max
        # In the order of arrival, which is the order of expiry.
        self._cache: dict[str, _Cached] = {}
        # Tenants by the SHA-256 of headers that were accepted, while their records are trusted.
        self._accepted: dict[bytes, tuple[str, int]] = {}

    def tenant_of(self, authorization: str | None, *, now_us: int) -> str:
        """Return the tenant whose key a request carries.

        Args:
            authorization: The ``Authorization`` header, or None where there is none.
            now_us: Monotonic time in microseconds.

        Raises:
            RequestError: 401, the same for every cause.
            StoreUnavailableError: The key isn't cached, and a store did not answer.
        """
        digest = b""
        if authorization is not None and len(authorization) <= _AUTHORIZATION_MAX:
            digest = hashlib.sha256(authorization.encode("utf-8", "surrogatepass")).digest()
            known = self._accepted.get(digest)
            if known is not None and now_us < known[1]:
                return known[0]
        key, public_id = _parsed(authorization)
        record = self._record(public_id, now_us) if public_id else None
        known_hash = record.hash if record is not None else _NO_HASH
        matches = hmac.compare_digest(fingerprint(key), known_hash)
        if record is None or not matches or record.revoked_s is not None:
            raise _refusal()
        if record.tenant not in self._tenants:
            raise _refusal()
        if len(self._accepted) >= self._cached_max:
            self._accepted.clear()
        self._accepted[digest] = (record.tenant, self._cache[public_id].expires_us)
        return record.tenant

    def close(self) -> None:
        """Close the stores; the next look-up opens them again."""
        for store in self._stores:
            store.close()

    def _record(self, public_id: str, now_us: int) -> KeyRecord | None:
        cached = self._cache.get(public_id)
        if cached is not None and now_us < cached.expires_us:
            return cached.record
        self._cache.pop(public_id, None)
        record = _first(store.get(public_id) for store in self._stores)
        if record is not None:
            # Unknown ids stay out: guesses must not push out the keys in use,
            # and a key that was just made is to work at once.
            if len(self._cache) >= self._cached_max:
                del self._cache[next(iter(self._cache))]
            self._cache[public_id] = _Cached(record, now_us + self._ttl_us)
        return record


def _first(records: Iterable[KeyRecord | None]) -> KeyRecord | None:
    return next((record for record in records if record is not None), None)


def _parsed(authorization: str | None) -> tuple[str, str]:
    """Return key and public id of a header; both empty where it holds no key of our form."""
    if authorization is None or len(authorization) > _AUTHORIZATION_MAX:
        return "", ""
    scheme, _, key = authorization.partition(" ")
    match = _KEY.fullmatch(key.strip(" "))
    if scheme.lower() != "bearer" or match is None:
        return "", ""
    return match[0], match[1]


def _refusal() -> RequestError:
    return RequestError(
        401,
        "invalid_api_key",
        "Incorrect API key provided.",
        hint="Send `Authorization: Bearer KEY` with a key that your operator gave you.",
    )
