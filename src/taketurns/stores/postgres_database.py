# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL database of taketurns: connected to when needed, tables made, errors in our words.

Every wait is bounded: for the connection, by the server for each statement, and
by a watch on this side for a server that says nothing at all.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

import psycopg

from taketurns.errors import StoreError, StoreUnavailableError

SCHEMA_VERSION = 1

CONNECT_S = 3
STATEMENT_MS = 2_000
"""Longest that the server works on a statement, or waits for a lock."""

SILENCE_S = 5.0
"""Longest that a transaction takes as seen from here; then its connection is cut."""

_MIGRATION_LOCK = 7_421_837_205_510_116
"""Gateways that start at once make the tables one after the other."""


def where(url: str) -> str:
    """Return a database's URL for people: without user, password and options."""
    parts = urlsplit(url)
    return f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


class PostgresDatabase:
    """A connection to one database, opened by the first use.

    Where opening or a statement fails, the next use connects anew. One thread uses it.

    Args:
        url: ``postgresql://USER:PASSWORD@HOST:PORT/NAME``, with libpq's options.
        silence_s: Longest that a transaction takes.
    """

    def __init__(self, url: str, *, silence_s: float = SILENCE_S) -> None:
        self._url = url
        self._silence_s = silence_s
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def connected(self) -> bool:
        """True while there is a connection, as far as is known."""
        return self._connection is not None

    def close(self) -> None:
        """Close the connection; the next use connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    @contextlib.contextmanager
    def transaction(self) -> "Iterator[psycopg.Connection[Any]]":
        """Lend the connection for several statements: all of them hold, or none.

        Where the connection breaks at the very end they may hold all the same.

        Raises:
            StoreUnavailableError: The database could not do it at this time.
            StoreError: It's no database that can be used.
        """
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._watched(self._connection), self._connection.transaction():
                yield self._connection
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            self.close()
            raise StoreUnavailableError(
                f"the database {where(self._url)} did not answer: {_told(error)}",
                hint="Does it run, can it be reached from here, and is there space left?",
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self.close()
            raise StoreUnavailableError(
                f"the database {where(self._url)} takes no writes: {_told(error)}",
                hint="Is it a standby?",
            ) from error
        except psycopg.Error as error:
            self.close()
            raise StoreError(
                f"the database {where(self._url)} can't be used: {_told(error)}",
                hint="May this user read and write the tables taketurns_*, and create them?",
            ) from error

    @contextlib.contextmanager
    def _watched(self, connection: "psycopg.Connection[Any]") -> Iterator[None]:
        """Cut a connection on which nothing comes."""
        timer = threading.Timer(self._silence_s, _cut, [connection])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _open(self) -> "psycopg.Connection[Any]":
        options = psycopg.conninfo.conninfo_to_dict(self._url)
        given = f"-c statement_timeout={STATEMENT_MS} {options.pop('options', '')}".strip()
        defaults: dict[str, Any] = {
            "application_name": "taketurns",
            "connect_timeout": CONNECT_S,
            "keepalives_idle": 10,
            "tcp_user_timeout": STATEMENT_MS,
        }
        conninfo = psycopg.conninfo.make_conninfo(**{**defaults, **options, "options": given})
        connection = psycopg.connect(conninfo, autocommit=True)
        try:
            with self._watched(connection):
                self._migrate(connection)
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                connection.close()
            raise
        return connection

    def _migrate(self, connection: "psycopg.Connection[Any]") -> None:
        version = _version(connection)
        if version < SCHEMA_VERSION:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
                # Another gateway may have made them while this one waited.
                version = _version(connection)
                if version == 0:
                    connection.execute("CREATE TABLE taketurns_schema (version integer NOT NULL)")
                    connection.execute("INSERT INTO taketurns_schema VALUES (0)")
                for number in range(version + 1, SCHEMA_VERSION + 1):
                    connection.execute(_schema(number))
                if version < SCHEMA_VERSION:
                    connection.execute("UPDATE taketurns_schema SET version = %s", [SCHEMA_VERSION])
        elif version > SCHEMA_VERSION:
            raise StoreError(
                f"the database {where(self._url)} has version {version}, "
                f"and this release knows {SCHEMA_VERSION}",
                hint="Use the release that wrote it, or a newer one.",
            )


def _version(connection: "psycopg.Connection[Any]") -> int:
    # Not by to_regclass: within a transaction it may remember that there was no such table.
    found = connection.execute(
        "SELECT FROM pg_class WHERE relname = 'taketurns_schema' AND pg_table_is_visible(oid)"
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT version FROM taketurns_schema").fetchone()
    return int(row[0]) if row else 0


def _schema(number: int) -> bytes:
    name = f"postgres_schema_{number}.sql"
    return resources.files("taketurns.stores").joinpath(name).read_bytes()


def _cut(connection: "psycopg.Connection[Any]") -> None:
    """Shut a connection's socket: whoever waits on it is told that it's gone."""
    with (
        contextlib.suppress(psycopg.Error, OSError),
        socket.socket(fileno=os.dup(connection.fileno())) as twin,
    ):
        twin.shutdown(socket.SHUT_RDWR)


def _told(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
