# SPDX-License-Identifier: Apache-2.0
"""One gateway at a time counts in a SQLite file: a lock beside it, given back by the system."""

import contextlib
import fcntl
import os
from pathlib import Path

from taketurns.errors import StartError, StoreUnavailableError


class SqliteLock:
    """The lock of one SQLite file.

    It ends with the process, however that ends. Commands that only look up or
    change keys don't need it.

    Args:
        path: The SQLite file; the lock's own file is beside it, ``PATH-lock``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        """Take it.

        Raises:
            StartError: Another process has it.
            StoreUnavailableError: The lock's file can't be made.
        """
        lock = self._path.with_name(f"{self._path.name}-lock")
        try:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailableError(
                f"the SQLite file {self._path} can't be locked: {error.strerror}",
                hint="Does its directory exist, and may this user write there?",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            raise StartError(
                f"another gateway (process {holder or 'unknown'}) uses the SQLite file "
                f"{self._path}: two would both count a month from its start",
                hint="Stop it, or let them share a database: store: postgresql://HOST/NAME.",
            ) from error
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file = file

    def release(self) -> None:
        """Give it back; without effect where it isn't held."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)
