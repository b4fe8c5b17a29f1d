# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for tests: in a folder of its own, on a Unix socket."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
"""Where Debian's packages put them."""

USER = "postgres"
"""Whom a test run as root starts it as: PostgreSQL refuses root."""

STOP_S = 30


class PostgresServer:
    """A server that listens on a Unix socket only; a context manager.

    Raises:
        FileNotFoundError: PostgreSQL isn't installed here.

    Attributes:
        pid: Of the server's first process.
    """

    def __init__(self) -> None:
        found = shutil.which("initdb")
        folders = [Path(found).resolve().parent] if found else BINARIES
        if not folders:
            raise FileNotFoundError("PostgreSQL is not installed: apt-get install postgresql")
        self._binaries = folders[0]
        self._folder = Path(tempfile.mkdtemp(prefix="taketurns-pg-"))
        self._prefix = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
        if self._prefix:
            shutil.chown(self._folder, USER, USER)
        self._databases = 0
        self.pid = 0

    def __enter__(self) -> Self:
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "tt", "-E", "UTF8")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        settings = f"-k {self._folder} -c listen_addresses= -c max_connections=100"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-o", settings, "-l", log, "-w", "start")
        self.pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def stop(self, *, how: str = "immediate") -> None:
        """Stop it: ``immediate`` is a crash, ``fast`` breaks connections off in good order."""
        if self.pid:
            self.resume()
            self._run("pg_ctl", "-D", str(self._data), "-m", how, "-w", "stop")
            self.pid = 0

    def pause(self) -> None:
        """Let all its processes stand still: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def url(self, name: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://tt@/{name}?host={self._folder}"

    def new_database(self) -> str:
        """Make an empty database and return its URL."""
        self._databases += 1
        name = f"tt{self._databases}"
        self._run("createdb", "-h", str(self._folder), "-U", "tt", name)
        return self.url(name)

    def _signal(self, number: signal.Signals) -> None:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            os.kill(pid, number)

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(  # noqa: S603
            [*self._prefix, str(self._binaries / name), *arguments],
            cwd=self._folder,
            check=True,
            capture_output=True,
            timeout=STOP_S,
        )
