# SPDX-License-Identifier: Apache-2.0
"""From the setting ``store`` to the stores that it means; nothing is opened yet.

What needs a package that may be missing is imported by whoever asks for it.
"""

# ruff: noqa: PLC0415 - see above

from pathlib import Path
from typing import TYPE_CHECKING

from taketurns.errors import StartError
from taketurns.ports.stores import KeyStore, QuotaStore, UsageStore
from taketurns.stores.sqlite import SqliteKeyStore
from taketurns.stores.sqlite_quotas import SqliteQuotaStore
from taketurns.stores.sqlite_usage import SqliteUsageStore

if TYPE_CHECKING:
    from taketurns.stores.postgres import PostgresKeyStore
    from taketurns.stores.postgres_quotas import PostgresQuotaStore
    from taketurns.stores.postgres_usage import PostgresUsageStore

SQLITE = "sqlite://"
POSTGRES = ("postgresql://", "postgres://")


def is_postgres(store: str) -> bool:
    """Tell whether a setting names a PostgreSQL database."""
    return store.startswith(POSTGRES)


def sqlite_path(store: str) -> Path | None:
    """Return the file that a setting names, or None where it names none."""
    return Path(store.removeprefix(SQLITE)) if store.startswith(SQLITE) else None


def key_store(store: str) -> KeyStore | None:
    """Return where keys are kept; None: only in the configuration.

    Raises:
        StartError: A package is missing.
    """
    path = sqlite_path(store)
    if path is not None:
        return SqliteKeyStore(path)
    return postgres_keys(store) if is_postgres(store) else None


def quota_store(store: str) -> QuotaStore | None:
    """Return where months are kept; None: nowhere.

    Raises:
        StartError: A package is missing.
    """
    path = sqlite_path(store)
    if path is not None:
        return SqliteQuotaStore(path)
    return _postgres_quotas(store) if is_postgres(store) else None


def usage_store(store: str) -> UsageStore | None:
    """Return where usage is kept; None: nowhere.

    Raises:
        StartError: A package is missing.
    """
    path = sqlite_path(store)
    if path is not None:
        return SqliteUsageStore(path)
    return _postgres_usage(store) if is_postgres(store) else None


def postgres_keys(store: str) -> "PostgresKeyStore":
    """Return where keys are kept in a PostgreSQL database.

    Raises:
        StartError: A package is missing.
    """
    try:
        from taketurns.stores.postgres import PostgresKeyStore
    except ImportError as error:
        raise _missing() from error
    return PostgresKeyStore(store)


def _postgres_quotas(store: str) -> "PostgresQuotaStore":
    try:
        from taketurns.stores.postgres_quotas import PostgresQuotaStore
    except ImportError as error:
        raise _missing() from error
    return PostgresQuotaStore(store)


def _postgres_usage(store: str) -> "PostgresUsageStore":
    try:
        from taketurns.stores.postgres_usage import PostgresUsageStore
    except ImportError as error:
        raise _missing() from error
    return PostgresUsageStore(store)


def _missing() -> StartError:
    return StartError(
        "a postgresql store needs the package psycopg",
        hint="Install it: pip install 'taketurns[postgres]'.",
    )
