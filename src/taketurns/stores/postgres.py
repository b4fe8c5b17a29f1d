# SPDX-License-Identifier: Apache-2.0
"""API keys in PostgreSQL, for any number of gateways."""

import psycopg

from taketurns.errors import StoreError
from taketurns.ports.stores import KeyRecord
from taketurns.stores.postgres_database import PostgresDatabase

_COLUMNS = "public_id, tenant, hash, created_s, revoked_s, note"
_INSERT = f"INSERT INTO taketurns_api_key ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s)"  # noqa: S608
_SELECT = f"SELECT {_COLUMNS} FROM taketurns_api_key WHERE public_id = %s"  # noqa: S608
_SELECT_ALL = f'SELECT {_COLUMNS} FROM taketurns_api_key ORDER BY created_s, public_id COLLATE "C"'  # noqa: S608
_SELECT_CHANGED = f"""
SELECT {_COLUMNS} FROM taketurns_api_key
WHERE changed_at >= clock_timestamp() - make_interval(secs => %s)
"""  # noqa: S608
_REVOKE = """
UPDATE taketurns_api_key SET revoked_s = %s, changed_at = clock_timestamp()
WHERE public_id = %s AND revoked_s IS NULL
"""


class PostgresKeyStore:
    """Implements :class:`taketurns.ports.stores.KeyStore`.

    The first call connects. Where that fails, the next call tries again.

    Args:
        url: The database.
    """

    def __init__(self, url: str) -> None:
        self._database = PostgresDatabase(url)

    def add(self, record: KeyRecord) -> None:
        row = (
            record.public_id,
            record.tenant,
            record.hash,
            record.created_s,
            record.revoked_s,
            record.note,
        )
        with self._database.transaction() as connection:
            try:
                connection.execute(_INSERT, row)
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise StoreError(
                    f"the key with the public id {record.public_id} is refused: "
                    f"{str(error).splitlines()[0]}",
                    hint="Make another key.",
                ) from error

    def get(self, public_id: str) -> KeyRecord | None:
        if not _is_text(public_id):
            return None
        with self._database.transaction() as connection:
            row = connection.execute(_SELECT, [public_id]).fetchone()
        return KeyRecord(*row) if row else None

    def list(self) -> tuple[KeyRecord, ...]:
        with self._database.transaction() as connection:
            return tuple(KeyRecord(*row) for row in connection.execute(_SELECT_ALL))

    def changed(self, within_s: float) -> tuple[KeyRecord, ...]:
        """Return the keys that were added or revoked lately, by the database's clock.

        Args:
            within_s: Within how many seconds.
        """
        with self._database.transaction() as connection:
            rows = connection.execute(_SELECT_CHANGED, [within_s])
            return tuple(KeyRecord(*row) for row in rows)

    def revoke(self, public_id: str, *, revoked_s: int) -> KeyRecord | None:
        if not _is_text(public_id):
            return None
        with self._database.transaction() as connection:
            connection.execute(_REVOKE, [revoked_s, public_id])
        return self.get(public_id)

    def close(self) -> None:
        """Close the connection; the next call connects again."""
        self._database.close()


def _is_text(value: str) -> bool:
    """Tell whether the database can hold a text: anything else is on no record."""
    return "\0" not in value and value.isprintable()
