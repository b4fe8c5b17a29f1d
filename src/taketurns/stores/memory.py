# SPDX-License-Identifier: Apache-2.0
"""Stores in the process's own memory: the reference for all others."""

from collections.abc import Iterable
from dataclasses import replace

from taketurns.errors import StoreError
from taketurns.ports.stores import KeyRecord


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
