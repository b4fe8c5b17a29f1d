# SPDX-License-Identifier: Apache-2.0
"""API keys in one SQLite file, which several processes on one machine may share."""

import sqlite3
from pathlib import Path

from taketurns.errors import StoreError
from taketurns.ports.stores import KeyRecord
from taketurns.stores.sqlite_file import SqliteFile

_COLUMNS = "public_id, tenant, hash, created_s, revoked_s, note"
_INSERT = f"INSERT INTO api_key ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_SELECT = f"SELECT {_COLUMNS} FROM api_key WHERE public_id = ?"  # noqa: S608
_SELECT_ALL = f"SELECT {_COLUMNS} FROM api_key ORDER BY created_s, public_id"  # noqa: S608
_REVOKE = "UPDATE api_key SET revoked_s = ? WHERE public_id = ? AND revoked_s IS NULL"


class SqliteKeyStore:
    """Implements :class:`taketurns.ports.stores.KeyStore`.

    The file is opened by the first call and belongs to that call's thread.
    Where opening fails, the next call tries again.

    Args:
        path: The file; made where it doesn't exist, its directory isn't.
    """

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)

    def add(self, record: KeyRecord) -> None:
        row = (
            record.public_id,
            record.tenant,
            record.hash,
            record.created_s,
            record.revoked_s,
            record.note,
        )
        with self._file.database() as database:
            try:
                database.execute(_INSERT, row)
            except sqlite3.IntegrityError as error:
                raise StoreError(
                    f"the key with the public id {record.public_id} is refused: {error}",
                    hint="Make another key.",
                ) from error

    def get(self, public_id: str) -> KeyRecord | None:
        with self._file.database() as database:
            row = database.execute(_SELECT, (public_id,)).fetchone()
        return KeyRecord(*row) if row else None

    def list(self) -> tuple[KeyRecord, ...]:
        with self._file.database() as database:
            return tuple(KeyRecord(*row) for row in database.execute(_SELECT_ALL))

    def revoke(self, public_id: str, *, revoked_s: int) -> KeyRecord | None:
        with self._file.database() as database:
            database.execute(_REVOKE, (revoked_s, public_id))
        return self.get(public_id)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._file.close()
