# SPDX-License-Identifier: Apache-2.0
"""What was used, day by day, in PostgreSQL: all gateways add to the same rows."""

from collections.abc import Mapping

from taketurns.ports.stores import Usage, UsageKey
from taketurns.stores.postgres_database import PostgresDatabase

_NEW = """
INSERT INTO taketurns_usage_writer AS w (writer, batch, day) VALUES (%(writer)s, %(batch)s, %(day)s)
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, day = excluded.day
WHERE w.batch < excluded.batch
"""
_ADD = """
INSERT INTO taketurns_usage AS u (day, tenant, model, endpoint,
                                  requests, refusals, input_tokens, output_tokens, cost)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (day, tenant, model, endpoint) DO UPDATE SET
  requests = u.requests + excluded.requests, refusals = u.refusals + excluded.refusals,
  input_tokens = u.input_tokens + excluded.input_tokens,
  output_tokens = u.output_tokens + excluded.output_tokens, cost = u.cost + excluded.cost
"""
_READ = """
SELECT day, tenant, model, endpoint, requests, refusals, input_tokens, output_tokens, cost
FROM taketurns_usage WHERE day BETWEEN %s AND %s
"""


class PostgresUsageStore:
    """Implements :class:`taketurns.ports.stores.UsageStore`.

    Args:
        url: The database.
    """

    def __init__(self, url: str) -> None:
        self._database = PostgresDatabase(url)

    def add(self, writer: str, number: int, used: Mapping[UsageKey, Usage]) -> None:
        day = max(key.day for key in used)
        with self._database.transaction() as connection:
            batch = {"writer": writer, "batch": number, "day": day}
            if connection.execute(_NEW, batch).rowcount:
                # In one order, so that two gateways never wait for each other.
                rows = [(*key, *usage) for key, usage in sorted(used.items())]
                connection.cursor().executemany(_ADD, rows)

    def read(self, since: str, until: str) -> dict[UsageKey, Usage]:
        with self._database.transaction() as connection:
            rows = connection.execute(_READ, [since, until])
            return {UsageKey(*row[:4]): Usage(*row[4:]) for row in rows}

    def forget_before(self, day: str) -> None:
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM taketurns_usage WHERE day < %s", [day])
            connection.execute("DELETE FROM taketurns_usage_writer WHERE day < %s", [day])

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        self._database.close()
