# SPDX-License-Identifier: Apache-2.0
"""Stores in the process's own memory: the reference for all others."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from taketurns.errors import StoreError
from taketurns.ports.stores import (
    MONTHS_KEPT,
    NO_BOUNDS,
    Bound,
    KeyRecord,
    QuotaKey,
    Raised,
    Usage,
    UsageKey,
)


class MemoryKeyStore:
    """Implements :class:`taketurns.ports.stores.KeyStore`; lost at exit.

    Bounded by what is added: nothing that a client does adds a key.

    Args:
        records: Keys that are on record from the start.
    """

    def __init__(self, records: Iterable[KeyRecord] = ()) -> None:
        self._record_by_id: dict[str, KeyRecord] = {}
        for record in records:
            self.add(record)

    def add(self, record: KeyRecord) -> None:
        if record.public_id in self._record_by_id:
            raise StoreError(
                f"a key with the public id {record.public_id} is on record",
                hint="Make another key.",
            )
        self._record_by_id[record.public_id] = record

    def get(self, public_id: str) -> KeyRecord | None:
        return self._record_by_id.get(public_id)

    def list(self) -> tuple[KeyRecord, ...]:
        return tuple(sorted(self._record_by_id.values(), key=lambda r: (r.created_s, r.public_id)))

    def close(self) -> None:
        """Do nothing: what is in memory stays."""

    def revoke(self, public_id: str, *, revoked_s: int) -> KeyRecord | None:
        record = self._record_by_id.get(public_id)
        if record is not None and record.revoked_s is None:
            record = self._record_by_id[public_id] = replace(record, revoked_s=revoked_s)
        return record


class MemoryQuotaStore:
    """Implements :class:`taketurns.ports.stores.QuotaStore`; lost at exit.

    Bounded by rules x tenants x the months that are kept.
    """

    shared = False

    def __init__(self) -> None:
        self._mark_by_key: dict[QuotaKey, int] = {}

    def load(self, since: str) -> dict[QuotaKey, int]:
        return {key: mark for key, mark in self._mark_by_key.items() if key.month >= since}

    def raise_to(
        self,
        marks: Mapping[QuotaKey, int],
        bounds: Mapping[QuotaKey, Bound] = NO_BOUNDS,  # noqa: ARG002 - no one else raises them
    ) -> dict[QuotaKey, Raised]:
        for key, mark in marks.items():
            self._mark_by_key[key] = max(mark, self._mark_by_key.get(key, 0))
        return {key: Raised(self._mark_by_key[key]) for key in marks}

    def lower_to(self, marks: Mapping[QuotaKey, int]) -> None:
        for key, mark in marks.items():
            if key in self._mark_by_key:
                self._mark_by_key[key] = min(mark, self._mark_by_key[key])

    def shifts(self, since: str) -> dict[QuotaKey, int]:  # noqa: ARG002 - no one else moves them
        return {}

    def forget_before(self, month: str) -> None:
        earlier = sorted({key.month for key in self._mark_by_key if key.month < month})
        gone = set(earlier[:-MONTHS_KEPT])
        for key in [key for key in self._mark_by_key if key.month in gone]:
            del self._mark_by_key[key]

    def close(self) -> None:
        """Do nothing: what is in memory stays."""


class MemoryUsageStore:
    """Implements :class:`taketurns.ports.stores.UsageStore`; lost at exit."""

    def __init__(self) -> None:
        self._used: dict[UsageKey, Usage] = {}
        self._last: dict[str, int] = {}

    def add(self, writer: str, number: int, used: Mapping[UsageKey, Usage]) -> None:
        if number > self._last.get(writer, 0):
            self._last[writer] = number
            for key, usage in used.items():
                self._used[key] = self._used.get(key, Usage()).plus(usage)

    def read(self, since: str, until: str) -> dict[UsageKey, Usage]:
        return {key: used for key, used in self._used.items() if since <= key.day <= until}

    def forget_before(self, day: str) -> None:
        self._used = {key: used for key, used in self._used.items() if key.day >= day}

    def close(self) -> None:
        """Do nothing: what is in memory stays."""
