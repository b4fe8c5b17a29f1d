# SPDX-License-Identifier: Apache-2.0
"""What was used, day by day, in the SQLite file that holds the keys too."""

from collections.abc import Mapping
from pathlib import Path

from taketurns.ports.stores import Usage, UsageKey
from taketurns.stores.sqlite_file import SqliteFile

_NEW = """
INSERT INTO usage_writer (writer, batch, day) VALUES (?1, ?2, ?3)
ON CONFLICT (writer) DO UPDATE SET batch = ?2, day = ?3 WHERE batch < ?2
"""
_ADD = """
INSERT INTO usage (day, tenant, model, endpoint,
                   requests, refusals, input_tokens, output_tokens, cost)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, tenant, model, endpoint) DO UPDATE SET
  requests = requests + excluded.requests, refusals = refusals + excluded.refusals,
  input_tokens = input_tokens + excluded.input_tokens,
  output_tokens = output_tokens + excluded.output_tokens, cost = cost + excluded.cost
"""
_READ = """
SELECT day, tenant, model, endpoint, requests, refusals, input_tokens, output_tokens, cost
FROM usage WHERE day BETWEEN ? AND ?
"""


class SqliteUsageStore:
    """Implements :class:`taketurns.ports.stores.UsageStore`.

    Args:
        path: The file; made where it doesn't exist, its directory isn't.
    """

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path)

    def add(self, writer: str, number: int, used: Mapping[UsageKey, Usage]) -> None:
        day = max(key.day for key in used)
        with self._file.transaction() as database:
            if database.execute(_NEW, (writer, number, day)).rowcount:
                database.executemany(_ADD, [(*key, *usage) for key, usage in used.items()])

    def read(self, since: str, until: str) -> dict[UsageKey, Usage]:
        with self._file.database() as database:
            rows = database.execute(_READ, (since, until))
            return {UsageKey(*row[:4]): Usage(*row[4:]) for row in rows}

    def forget_before(self, day: str) -> None:
        with self._file.transaction() as database:
            database.execute("DELETE FROM usage WHERE day < ?", (day,))
            database.execute("DELETE FROM usage_writer WHERE day < ?", (day,))

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._file.close()
