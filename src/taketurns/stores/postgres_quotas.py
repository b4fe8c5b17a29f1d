# SPDX-License-Identifier: Apache-2.0
"""Marks of month quotas in PostgreSQL, which any number of gateways raise together.

A mark is the sum of what all gateways have taken of it. Each gateway's own part
is kept beside it as an absolute number, so a write whose answer was lost can be
repeated. The caller thinks in sums: ``x`` is its own part and what it was last
told of the others', so its part is ``x`` less that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from taketurns.ports.stores import MONTHS_KEPT, NO_BOUNDS, Bound, QuotaKey, Raised
from taketurns.stores.postgres_database import PostgresDatabase
from taketurns.system import new_id

_LOAD = """
SELECT m.month, m.rule, m.tenant, m.mark, coalesce(s.mark, 0)
FROM taketurns_month_mark m LEFT JOIN taketurns_month_share s
  ON (s.month, s.rule, s.tenant, s.holder) = (m.month, m.rule, m.tenant, %s)
WHERE m.month >= %s
"""
_MAKE = """
INSERT INTO taketurns_month_mark (month, rule, tenant, mark)
SELECT month, rule, tenant, 0
FROM unnest(%s::text[], %s::text[], %s::text[]) AS k (month, rule, tenant)
ON CONFLICT DO NOTHING
"""
# Rows are locked in one order, whoever comes: two gateways never wait for each other.
_LOCK = """
SELECT m.month, m.rule, m.tenant, m.mark, coalesce(s.mark, 0)
FROM unnest(%s::text[], %s::text[], %s::text[]) AS k (month, rule, tenant)
JOIN taketurns_month_mark m USING (month, rule, tenant)
LEFT JOIN taketurns_month_share s
  ON (s.month, s.rule, s.tenant, s.holder) = (m.month, m.rule, m.tenant, %s)
ORDER BY m.month, m.rule, m.tenant
FOR UPDATE OF m
"""
_SET_MARK = """
UPDATE taketurns_month_mark SET mark = %s WHERE month = %s AND rule = %s AND tenant = %s
"""
_SET_SHARE = """
INSERT INTO taketurns_month_share (mark, month, rule, tenant, holder)
VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (month, rule, tenant, holder) DO UPDATE SET mark = excluded.mark
"""
_LEAVE = """
DELETE FROM taketurns_month_share WHERE holder = %s RETURNING month, rule, tenant, mark
"""
_FORGET = """
DELETE FROM taketurns_month_mark WHERE month < %(month)s AND month NOT IN
(SELECT DISTINCT month FROM taketurns_month_mark WHERE month < %(month)s
 ORDER BY month DESC LIMIT %(kept)s)
RETURNING month, rule, tenant
"""


class PostgresQuotaStore:
    """Implements :class:`taketurns.ports.stores.QuotaStore`, shared by several gateways.

    The first call connects. Where connecting or writing fails, the next call connects anew.

    Args:
        url: The database.
    """

    shared = True

    def __init__(self, url: str) -> None:
        self._database = PostgresDatabase(url)
        self._holder = new_id("gw_")
        # What others had taken of each mark when it was last seen.
        self._others: dict[QuotaKey, int] = {}

    def load(self, since: str) -> dict[QuotaKey, int]:
        marks: dict[QuotaKey, int] = {}
        with self._database.transaction() as connection:
            for *key, mark, own in connection.execute(_LOAD, [self._holder, since]):
                marks[QuotaKey(*key)] = mark
                self._others[QuotaKey(*key)] = mark - own
        return marks

    def raise_to(
        self, marks: Mapping[QuotaKey, int], bounds: Mapping[QuotaKey, Bound] = NO_BOUNDS
    ) -> dict[QuotaKey, Raised]:
        raised: dict[QuotaKey, Raised] = {}
        with self._database.transaction() as connection:
            keys = _columns(marks)
            if marks:
                connection.execute(_MAKE, keys)
            rows = []
            for key, mark, own in self._locked(connection, keys):
                known = self._others.get(key, 0)
                wanted = marks[key] - known
                bound = bounds.get(key)
                if bound is not None:
                    wanted = max(min(wanted, bound.limit - (mark - own)), bound.spent - known)
                wanted = max(wanted, own)
                others = mark - own
                raised[key] = Raised(others + wanted, others - known)
                if wanted != own:
                    rows.append((key, others + wanted, wanted))
            self._set(connection, rows)
        for key, told in raised.items():
            self._others[key] = self._others.get(key, 0) + told.shift
        return raised

    def lower_to(self, marks: Mapping[QuotaKey, int]) -> None:
        with self._database.transaction() as connection:
            rows = []
            for key, mark, own in self._locked(connection, _columns(marks)):
                wanted = max(0, marks[key] - self._others.get(key, 0))
                if wanted < own:
                    rows.append((key, mark - own + wanted, wanted))
            self._set(connection, rows)

    def shifts(self, since: str) -> dict[QuotaKey, int]:
        before = dict(self._others)
        self.load(since)
        moved = {key: known - before.get(key, 0) for key, known in self._others.items()}
        return {key: shift for key, shift in moved.items() if shift}

    def forget_before(self, month: str) -> None:
        with self._database.transaction() as connection:
            gone = connection.execute(_FORGET, {"month": month, "kept": MONTHS_KEPT}).fetchall()
        for row in gone:
            self._others.pop(QuotaKey(*row), None)

    def close(self) -> None:
        """Leave the marks as they are to the others, and close the connection."""
        if self._database.connected and self._others:
            # What was taken stays in the marks, and counts as others' from here on.
            with self._database.transaction() as connection:
                left = connection.execute(_LEAVE, [self._holder]).fetchall()
            for *key, own in left:
                self._others[QuotaKey(*key)] += own
        self._database.close()

    def _locked(
        self, connection: "psycopg.Connection[Any]", keys: Sequence[list[str]]
    ) -> list[tuple[QuotaKey, int, int]]:
        """Return each mark that there is, and the own part of it; no one else changes them now."""
        rows = connection.execute(_LOCK, [*keys, self._holder])
        return [(QuotaKey(*key), mark, own) for *key, mark, own in rows]

    def _set(
        self, connection: "psycopg.Connection[Any]", rows: Sequence[tuple[QuotaKey, int, int]]
    ) -> None:
        if rows:
            cursor = connection.cursor()
            cursor.executemany(_SET_MARK, [(mark, *key) for key, mark, _ in rows])
            cursor.executemany(_SET_SHARE, [(own, *key, self._holder) for key, _, own in rows])


def _columns(marks: Mapping[QuotaKey, int]) -> list[list[str]]:
    keys = sorted(marks)
    return [[key[at] for key in keys] for at in range(3)]
