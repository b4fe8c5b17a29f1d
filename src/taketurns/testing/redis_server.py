# SPDX-License-Identifier: Apache-2.0
"""A private Redis server, for tests and benchmarks: real, on a port and a socket of its own."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

START_S_MAX = 10.0
"""Longest wait for it to answer."""


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on.

    It's none that outgoing connections are given, so that it's free a moment later too.
    """
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port was found on 127.0.0.1")


class RedisServer:
    """A process of ``redis-server``, in a directory of its own that goes with it.

    Args:
        program: Path of the server's program, or a name that is looked up; "": what
            TAKETURNS_REDIS says, or ``redis-server``.
        settings: Further lines of its configuration, by name.
        sentinel: Run it as a sentinel; the settings say what it watches.

    Attributes:
        port: Where it listens on 127.0.0.1; the same after a restart.
        process: Or None while it doesn't run.
    """

    def __init__(
        self,
        program: str = "",
        *,
        sentinel: bool = False,
        settings: "dict[str, str] | None" = None,
    ) -> None:
        program = program or os.environ.get("TAKETURNS_REDIS", "redis-server")
        found = shutil.which(program)
        if found is None:
            raise FileNotFoundError(f"{program} isn't installed: apt-get install redis-server")
        self._program = found
        self._sentinel = sentinel
        self._folder = Path(tempfile.mkdtemp(prefix="tt-redis-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        lines = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self._folder)}
        if not sentinel:
            lines |= {"unixsocket": str(self._folder / "s"), "save": '""', "appendonly": "no"}
        lines |= settings or {}
        self._config = self._folder / "redis.conf"
        self._config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Its URL by TCP."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        """Its URL by its socket."""
        return f"unix://{self._folder / 's'}"

    def start(self) -> None:
        """Start it, and wait until it answers; what it held before is gone."""
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - a program of the caller's choice
                [self._program, str(self._config), *(["--sentinel"] if self._sentinel else [])],
                stdout=log,
                stderr=log,
            )
        with contextlib.closing(self._connect()) as peer:
            peer.sendall(b"PING\r\n")
            peer.recv(64)

    def kill(self) -> None:
        """Kill it, as ``kill -9`` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Stop it: connections stay, and nothing is answered."""
        assert self.process is not None, "it runs"
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None, "it runs"
        os.kill(self.process.pid, signal.SIGCONT)

    def ask(self, *parts: str) -> bytes:
        """Send one command by a connection of its own; return the answer's first bytes, raw."""
        with contextlib.closing(self._connect()) as peer:
            encoded = [part.encode() for part in parts]
            frame = b"*%d\r\n" % len(encoded)
            for part in encoded:
                frame += b"$%d\r\n%b\r\n" % (len(part), part)
            peer.sendall(frame)
            return peer.recv(65_536)

    def close(self) -> None:
        """Kill it and remove its directory."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> socket.socket:
        """Connect to it, again and again while it starts."""
        assert self.process is not None, "it runs"
        for _ in range(int(START_S_MAX / 0.01)):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", self.port), timeout=START_S_MAX)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
                break
        log = (self._folder / "log").read_text("utf-8", "replace")
        raise RuntimeError(f"redis-server did not start:\n{log[-2000:]}")
