# SPDX-License-Identifier: Apache-2.0
"""One SQLite file of taketurns: opened when needed, its tables made, its errors in our words."""

import contextlib
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from taketurns.errors import StoreError, StoreUnavailableError

SCHEMA_VERSION = 3

BUSY_MS = 250
"""Longest wait for another process's write. Reads never wait in WAL mode: that is all that the
gateway's loop does here; its writes are made in a thread."""

WAL_BYTES_MAX = 1024 * 1024
"""What is left of the write-ahead log after each checkpoint."""


class SqliteFile:
    """A connection to one file, opened by the first use and bound to that use's thread.

    Where opening fails, the next use tries again.

    Args:
        path: The file; made where it doesn't exist, its directory isn't.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    @contextlib.contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection; each statement is a transaction of its own.

        Raises:
            StoreUnavailableError: SQLite could not do it at this time.
            StoreError: It's no file that can be used.
        """
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

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for several statements: all of them hold, or none.

        Raises:
            StoreUnavailableError, StoreError: As :meth:`database`; nothing was written.
        """
        try:
            with self.database() as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        except BaseException:
            # Closing takes back what was begun, and the next use starts from a clean state.
            with contextlib.suppress(sqlite3.Error):
                self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
            # A key that was shown to its owner, or a mark that was granted up to, must outlive
            # a power cut.
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
            schema = resources.files("taketurns.stores").joinpath("schema.sql").read_text("utf-8")
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{schema}\nPRAGMA user_version = {SCHEMA_VERSION};\nCOMMIT;"
            )
