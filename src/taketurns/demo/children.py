# SPDX-License-Identifier: Apache-2.0
"""The demo's child processes: a gateway, and floods; none outlives the block that started it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from taketurns.demo.load import Flood, as_line
from taketurns.errors import StartError, TaketurnsError
from taketurns.gateway.auth import MintedKey, mint

START_TIMEOUT_S = 120.0
"""Longest that a gateway takes to load its model on a busy machine."""

STOP_TIMEOUT_S = 10.0

TENANTS = ("a", "b", "enterprise", "trial")

_ADDRESS = re.compile(r"on http://([0-9.]+):(\d+)\s*$")


class DemoError(TaketurnsError):
    """The demo could not be carried out: a child process failed, or a request was refused."""

    code = "demo_failed"


@dataclass(frozen=True, slots=True)
class Setting:
    """How a gateway is set up.

    Attributes:
        scheduler: ``round_robin`` or ``shared_queue``.
        trial_floor_percent: Share of the work that the trial tier gets in any case.
        items_max: Texts in a batch.
        quantum: Tokens a turn.
    """

    scheduler: str = "round_robin"
    trial_floor_percent: int = 0
    items_max: int = 5
    quantum: int = 41


@dataclass(frozen=True, slots=True)
class GatewayProcess:
    """A gateway that serves.

    Attributes:
        host: Its address, for clients and operators alike.
        port: For clients.
        admin_port: For its metrics.
        keys: Its tenants' keys.
        log: Its request log; complete once it has stopped.
    """

    host: str
    port: int
    admin_port: int
    keys: Mapping[str, str]
    log: Path


@contextlib.asynccontextmanager
async def gateway(setting: Setting, folder: Path) -> AsyncIterator[GatewayProcess]:
    """Run ``taketurns serve`` in a process of its own until the block ends.

    Args:
        setting: How it's set up.
        folder: For its configuration and logs; files of that name are replaced.

    Raises:
        StartError: It can't start here; the message is its own.
    """
    minted = {tenant: mint() for tenant in TENANTS}
    config, log, messages = folder / "demo.yaml", folder / "log.jsonl", folder / "messages.txt"
    config.write_text(files("taketurns.demo").joinpath("demo.yaml").read_text())
    log.unlink(missing_ok=True)
    with messages.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "taketurns", "serve", str(config), "--log", str(log)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stderr,
            env={**os.environ, **_variables(setting, minted)},
            # Ctrl-C reaches the demo alone, which then ends its children in order.
            start_new_session=True,
        )
        async with _ended_with_block(process):
            host, port, admin_port = await _addresses(process, messages)
            keys = {tenant: key.key for tenant, key in minted.items()}
            yield GatewayProcess(host, port, admin_port, keys, log)


def _variables(setting: Setting, minted: Mapping[str, MintedKey]) -> dict[str, str]:
    return {
        "DEMO_SCHEDULER": setting.scheduler,
        "DEMO_TRIAL_FLOOR": f"{setting.trial_floor_percent}%",
        "DEMO_ITEMS_MAX": str(setting.items_max),
        "DEMO_QUANTUM": str(setting.quantum),
        **{f"DEMO_KEY_{tenant.upper()}": key.line for tenant, key in minted.items()},
    }


async def _addresses(process: Process, messages: Path) -> tuple[str, int, int]:
    """Return the host and the two ports that a gateway prints once it serves."""
    assert process.stdout is not None, "it was asked for a pipe"
    found: list[tuple[str, str]] = []
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while len(found) < 2:
                line = await process.stdout.readline()
                if not line:
                    raise _start_error(messages)
                if match := _ADDRESS.search(line.decode()):
                    found.append((match[1], match[2]))
    except TimeoutError:
        raise StartError(
            f"the demo's gateway did not serve within {START_TIMEOUT_S:.0f} s",
            hint="Is the machine very busy? Try again when it is not.",
        ) from None
    (host, port), (_, admin_port) = found
    return host, int(port), int(admin_port)


def _start_error(messages: Path) -> StartError:
    """Return what a gateway said when it couldn't start."""
    lines = messages.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    told = [at for at, line in enumerate(lines) if line.startswith("taketurns: ")]
    if not told:
        return StartError(f"the demo's gateway can't start: {lines[-1]}")
    message = lines[told[-1]].removeprefix("taketurns: ")
    return StartError(message, hint=" ".join(line.strip() for line in lines[told[-1] + 1 :]))


class FloodProcess:
    """A flood that runs in a process of its own.

    Attributes:
        count: Its requests.
        answered: How many of them were answered, as far as it told.
    """

    def __init__(self, process: Process, count: int, on_progress: Callable[[int], None]) -> None:
        self.count = count
        self.answered = 0
        self._process = process
        self._on_progress = on_progress
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def reached(self, answered: int) -> None:
        """Wait until so many requests were answered."""
        if self.answered < answered:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((answered, future))
            await future

    async def watch(self) -> None:
        """Follow it to its end.

        Raises:
            DemoError: It failed, or some request was not answered 200.
        """
        assert self._process.stdout is not None, "it was asked for a pipe"
        assert self._process.stderr is not None, "it was asked for a pipe"
        statuses: dict[str, int] = {}
        async for line in self._process.stdout:
            told = json.loads(line)
            if isinstance(told, dict):
                statuses = told
            else:
                self._progressed(told)
        said = (await self._process.stderr.read()).decode(errors="replace").strip()
        await self._process.wait()
        if statuses != {"200": self.count}:
            what = said.splitlines()[-1] if said else f"answers by status: {statuses}"
            raise DemoError(
                f"not every request of the flood was answered: {what}",
                hint="Is the limit on open files at least 2,500? See `ulimit -n`.",
            )

    def _progressed(self, answered: int) -> None:
        self.answered = answered
        self._on_progress(answered)
        for least, future in self._waiting:
            if answered >= least and not future.done():
                future.set_result(None)
        self._waiting = [item for item in self._waiting if not item[1].done()]


@contextlib.asynccontextmanager
async def flood(what: Flood, on_progress: Callable[[int], None]) -> AsyncIterator[FloodProcess]:
    """Run a flood; at the block's end wait until it's through.

    Args:
        what: What it sends.
        on_progress: Told how many requests were answered.

    Raises:
        DemoError: Some request was not answered 200.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "taketurns.demo.load"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    async with _ended_with_block(process):
        assert process.stdin is not None, "it was asked for a pipe"
        process.stdin.write(as_line(what))
        await process.stdin.drain()
        running = FloodProcess(process, what.count, on_progress)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.watch(), name="flood")
                yield running
        except ExceptionGroup as group:
            raise first_fault(group) from None


@contextlib.asynccontextmanager
async def _ended_with_block(process: Process) -> AsyncIterator[None]:
    """End a process when the block ends, gently at first."""
    try:
        yield
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: Process) -> None:
    _tell(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        _tell(process, signal.SIGKILL)
        await process.wait()
    except asyncio.CancelledError:
        # Told twice to stop: then without waiting.
        _tell(process, signal.SIGKILL)
        raise


def _tell(process: Process, number: int) -> None:
    # Not Process.send_signal: it may collect a process that has just ended, and
    # the event loop then warns of a child that it can't find.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def first_fault(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first fault of a group of groups: what happened; the rest follow from it."""
    fault: BaseException = group
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault
