# SPDX-License-Identifier: Apache-2.0
"""Stores in one SQLite file, which several processes on one machine may share."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.ports.stores import KeyRecord

SCHEMA_VERSION = 1

BUSY_MS = 250
"""Longest wait for another process's write. The gateway's loop stands still meanwhile; reads,
which are all that it does, never wait in WAL mode."""

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
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def add(self, record: KeyRecord) -> None:
        row = (
            record.public_id,
            record.tenant,
            record.hash,
            record.created_s,
            record.revoked_s,
            record.note,
        )
        with self._database() as database:
            try:
                database.execute(_INSERT, row)
            except sqlite3.IntegrityError as error:
                raise StoreError(
                    f"the key with the public id {record.public_id} is refused: {error}",
                    hint="Make another key.",
                ) from error

    def get(self, public_id: str) -> KeyRecord | None:
        with self._database() as database:
            row = database.execute(_SELECT, (public_id,)).fetchone()
        return KeyRecord(*row) if row else None

    def list(self) -> tuple[KeyRecord, ...]:
        with self._database() as database:
            return tuple(KeyRecord(*row) for row in database.execute(_SELECT_ALL))

    def revoke(self, public_id: str, *, revoked_s: int) -> KeyRecord | None:
        with self._database() as database:
            database.execute(_REVOKE, (revoked_s, public_id))
        return self.get(public_id)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection; say what went wrong in our own words."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(
                f"the SQLite file {self._path} did not answer: {error}",
                hint="Does its directory exist, may this user write there, is there space left, "
                "and does no other process hold it locked?",
            ) from error
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"the SQLite file {self._path} can't be used: {error}",
                hint="Is it a file of taketurns? Move it away, or name another one under store.",
            ) from error

    def _open(self) -> sqlite3.Connection:
        # Autocommit: every statement here is a transaction of its own.
        connection = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # A key that was shown to its owner must outlive a power cut.
            connection.execute("PRAGMA synchronous = FULL")
            self._make_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the SQLite file {self._path} has version {version}, "
                f"and this release knows {SCHEMA_VERSION}",
                hint="Use the release that wrote it, or a newer one.",
            )
        if version < SCHEMA_VERSION:
            schema = resources.files("taketurns.stores").joinpath("schema.sql")
            connection.executescript(schema.read_text("utf-8"))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
