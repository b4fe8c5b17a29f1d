# SPDX-License-Identifier: Apache-2.0
"""Marks of month quotas in the SQLite file that holds the keys too."""

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.ports.stores import MONTHS_KEPT, NO_BOUNDS, Bound, QuotaKey, Raised
from taketurns.stores.sqlite_file import SqliteFile

_LOAD = "SELECT month, rule, tenant, mark FROM month_mark WHERE month >= ?"
_RAISE = """
INSERT INTO month_mark (mark, month, rule, tenant) VALUES (?, ?, ?, ?)
ON CONFLICT (month, rule, tenant) DO UPDATE SET mark = excluded.mark WHERE excluded.mark > mark
"""
_LOWER = """
UPDATE month_mark SET mark = ?1 WHERE month = ?2 AND rule = ?3 AND tenant = ?4 AND mark > ?1
"""
_FORGET = """
DELETE FROM month_mark WHERE month < ?1 AND month NOT IN
(SELECT DISTINCT month FROM month_mark WHERE month < ?1 ORDER BY month DESC LIMIT ?2)
"""


class SqliteQuotaStore:
    """Implements :class:`taketurns.ports.stores.QuotaStore`.

    The file is opened by the first call and belongs to that call's thread.
    Where opening or writing fails, the next call opens it anew.

    Args:
        path: The file; made where it doesn't exist, its directory isn't.
    """

    shared = False

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)

    def load(self, since: str) -> dict[QuotaKey, int]:
        with self._file.database() as database:
            return {QuotaKey(*row[:3]): row[3] for row in database.execute(_LOAD, (since,))}

    def raise_to(
        self,
        marks: Mapping[QuotaKey, int],
        bounds: Mapping[QuotaKey, Bound] = NO_BOUNDS,  # noqa: ARG002 - no one else raises them
    ) -> dict[QuotaKey, Raised]:
        self._write(_RAISE, [(mark, *key) for key, mark in marks.items()])
        return {key: Raised(mark) for key, mark in marks.items()}

    def lower_to(self, marks: Mapping[QuotaKey, int]) -> None:
        self._write(_LOWER, [(mark, *key) for key, mark in marks.items()])

    def shifts(self, since: str) -> dict[QuotaKey, int]:  # noqa: ARG002 - no one else moves them
        return {}

    def forget_before(self, month: str) -> None:
        self._write(_FORGET, [(month, MONTHS_KEPT)])

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._file.close()

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        try:
            self._write_once(statement, rows)
        except StoreUnavailableError as error:
            if not _is_full(error):
                raise
            # The write-ahead log takes space too: give it back, and try once more.
            with contextlib.suppress(StoreError), self._file.database() as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._write_once(statement, rows)

    def _write_once(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        with self._file.transaction() as database:
            database.executemany(statement, rows)


def _is_full(error: StoreUnavailableError) -> bool:
    cause = error.__cause__
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
