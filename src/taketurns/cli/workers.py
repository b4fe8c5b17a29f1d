# SPDX-License-Identifier: Apache-2.0
"""Several gateway processes on one port of one machine, and the one that looks after them.

Each worker listens on the same port (SO_REUSEPORT), so that the system spreads
connections over them. A worker that ends unasked is started anew, sooner at
first and more slowly where it keeps ending. Signals are passed on. A worker
whose supervisor is gone stops as if it had been told to.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence

from taketurns.cli.output import EXIT_CONFIG, EXIT_FAILED
from taketurns.errors import StartError

LOG = logging.getLogger(__name__)

WORKER = "TAKETURNS_WORKER"
"""Tells a process in its environment that it's a worker, and which."""

WORKERS_MAX = 256

AGAIN_S = 0.5
AGAIN_S_MAX = 30.0
"""How long until a worker that ended is started anew: twice as long each time, at most so long."""

LIVED_S = 10.0
"""One that ran so long was well: the next is started at once."""


@contextlib.contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """Hold a port for the workers without listening on it; yield its number.

    Raises:
        StartError: It can't be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            held.bind((host, port))
        except OSError as error:
            raise StartError(
                f"server.port: can't listen on {host}:{port}: {error.strerror or error}.",
                hint="Is something else running there? Set server.port to another port, or to 0.",
            ) from error
        yield int(held.getsockname()[1])


async def supervise(commands: Sequence[Sequence[str]]) -> int:
    """Run a worker for each command until told to stop; return the exit code.

    Args:
        commands: What starts each worker.
    """
    supervisor = _Supervisor(commands)
    loop = asyncio.get_running_loop()
    for asked in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(asked, supervisor.stop)
    loop.add_signal_handler(signal.SIGHUP, supervisor.pass_on, signal.SIGHUP)
    async with asyncio.TaskGroup() as tasks:
        for number in range(len(commands)):
            tasks.create_task(supervisor.keep(number), name=f"worker {number + 1}")
    return supervisor.code


class _Supervisor:
    """Looks after workers.

    Attributes:
        code: The exit code: the worst of the workers' last ones.
    """

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self.code = 0
        self._commands = [list(command) for command in commands]
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let all workers drain; a second time: let them stop at once."""
        self._stopping.set()
        self.pass_on(signal.SIGTERM)

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to every worker."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def keep(self, number: int) -> None:
        """Run one worker, and run it anew when it ends unasked."""
        loop = asyncio.get_running_loop()
        wait_s = AGAIN_S
        lived = False
        while not self._stopping.is_set():
            began_s = loop.time()
            code = await self._run(number)
            if self._stopping.is_set():
                self.code = max(self.code, EXIT_FAILED if code < 0 else code)
                return
            if code == EXIT_CONFIG and not lived:
                # It has said why; another one could not start either.
                self.code = EXIT_CONFIG
                self.stop()
                return
            if loop.time() - began_s >= LIVED_S:
                lived = True
                wait_s = AGAIN_S
            LOG.error("worker %d ended (%s): starting it anew", number + 1, _told(code))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)
            wait_s = min(2 * wait_s, AGAIN_S_MAX)

    async def _run(self, number: int) -> int:
        process = await asyncio.create_subprocess_exec(
            *self._commands[number],
            # It ends when this process does, whatever way.
            stdin=subprocess.PIPE,
            env={**os.environ, WORKER: str(number + 1)},
            # Ctrl-C is for this process, which passes it on.
            start_new_session=True,
        )
        self._processes[number] = process
        if self._stopping.is_set():
            self.pass_on(signal.SIGTERM)
        code = await process.wait()
        self._processes.pop(number, None)
        return code


def _told(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
