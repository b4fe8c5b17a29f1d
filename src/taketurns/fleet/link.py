# SPDX-License-Identifier: Apache-2.0
"""The connection to the coordinator: scripts by their hash, bounded waits, a breaker.

Rules for whoever calls it:

* A call that fails may have been carried out all the same. So every script is
  idempotent, and what is not known to have happened is asked again or undone.
* A caller that is cancelled leaves its call running: it has a task of its own.
* While the breaker is open, calls fail at once, and a probe is sent each second.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from taketurns.errors import StartError, StoreUnavailableError
from taketurns.fleet.address import Address, close_client, make_client
from taketurns.fleet.breaker import Breaker
from taketurns.fleet.scripts import SHEBANG, Script
from taketurns.ports.clock import Clock, Timer

LOG = logging.getLogger(__name__)

CALL_S_MAX = 0.25
"""Longest wait for a call's answer: longer is a failure, and counts for the breaker."""

START_S_MAX = 5.0
"""Longest wait for each answer of the checks at the start."""

POP_S = 1.0
"""How long a read of a list waits on the server."""

POP_S_MAX = 3.0
"""Longest wait for its answer: without one, a half-open connection would hang for ever."""

CONNECTIONS_MAX = 64
"""Most connections for calls; those beyond wait for one."""

VERSION_MIN = (7, 0)

FAILURES = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,
    OSError,
    TimeoutError,
)
"""What a call may fail with."""

Arg = str | bytes | int


class Server(NamedTuple):
    """What the server says of itself.

    Attributes:
        name: ``redis`` or ``valkey``.
        version: As it writes it.
    """

    name: str
    version: str


class Link:
    """Calls to one coordinator.

    Args:
        address: Where it is.
        clock: The process's clock.
        call_s_max: Longest wait for a call's answer.

    Attributes:
        failures: Calls that failed, by kind: ``timeout``, ``connection``, or the
            first word of the server's error, such as ``OOM`` or ``READONLY``.
    """

    def __init__(self, address: Address, clock: Clock, *, call_s_max: float = CALL_S_MAX) -> None:
        self.address = address
        self.failures: Counter[str] = Counter()
        self._clock = clock
        self._call_s_max = call_s_max
        self._client = make_client(
            address, timeout_s=max(call_s_max, 1.0), connections_max=CONNECTIONS_MAX
        )
        self._reader = make_client(address, timeout_s=POP_S_MAX, connections_max=CONNECTIONS_MAX)
        self._room = asyncio.Semaphore(CONNECTIONS_MAX - 2)
        self._breaker = Breaker()
        self._timer: Timer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._listeners: list[Callable[[bool], None]] = []
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def up(self) -> bool:
        """False while the breaker is open: calls fail at once."""
        return not self._breaker.open

    def listen(self, on_change: Callable[[bool], None]) -> None:
        """Let a function be told whenever :attr:`up` changes, with its new value."""
        self._listeners.append(on_change)

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin: calls run as tasks of the group from here on."""
        self._tasks = tasks

    async def check(self) -> Server:
        """Ask the server whether it will do.

        Raises:
            StartError: It's too old, evicts keys, or refuses scripts that say ``#!lua``.
            StoreUnavailableError: It doesn't answer.
        """
        try:
            async with asyncio.timeout(START_S_MAX):
                server = await self._info("server")
                memory = await self._info("memory")
                await self._client.execute_command("EVAL", f"{SHEBANG}return 1", 1, "{tt}")
        except redis_errors.ResponseError as error:
            raise StartError(
                f"coordinator {self.address}: {error}", hint="It has to allow EVAL and INFO."
            ) from error
        except FAILURES as error:
            raise StoreUnavailableError(f"coordinator {self.address}: {told(error)}") from error
        name = "valkey" if "valkey_version" in server else "redis"
        version = str(server.get(f"{name}_version", "0"))
        if tuple(int(part) for part in version.split(".")[:2]) < VERSION_MIN:
            raise StartError(
                f"coordinator {self.address} is {name} {version}",
                hint="Redis 7.0 or later, or Valkey, is needed.",
            )
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StartError(
                f"coordinator {self.address} has maxmemory-policy {policy}: it may drop leases",
                hint="Set maxmemory-policy to noeviction there.",
            )
        return Server(name, version)

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script and return its answer.

        Args:
            script: Idempotent: it may be run again where its answer was lost.
            keys: All keys that it touches, of one hash tag.
            args: Further arguments.

        Raises:
            StoreUnavailableError: No answer in time, or an error; it may have run.
        """
        return await self._apart(self.ask(script, keys, args))

    async def ask(self, script: Script, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run a script as :meth:`run` does, in the caller's own task."""

        async def evaluate() -> Any:
            try:
                return await self._execute("EVALSHA", script.sha, len(keys), *keys, *args)
            except redis_errors.NoScriptError:
                # It was never run: the server was restarted, or its scripts flushed.
                # Not by EVAL: servers drop scripts that came that way sooner.
                await self._client.script_load(script.text)
                return await self._execute("EVALSHA", script.sha, len(keys), *keys, *args)

        return await self._guarded(evaluate)

    async def command(self, *parts: Arg) -> Any:
        """Send one command and return its answer.

        Raises:
            StoreUnavailableError: No answer in time, or an error; it may have been carried out.
        """
        return await self._apart(self._guarded(lambda: self._execute(*parts)))

    async def pop(self, key: str) -> bytes | None:
        """Take the first of a list, waiting a second for it; None where none came.

        Raises:
            StoreUnavailableError: No answer, or an error. What was taken is lost then.
        """
        if self._breaker.open:
            raise self._closed()
        try:
            found = await self._reader.execute_command("BLPOP", key, POP_S)
        except FAILURES as error:
            raise self._failure(error) from error
        return None if found is None else found[1]

    async def aclose(self) -> None:
        """Give the connections back, once the calls under way have ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._calls:
            await asyncio.wait(set(self._calls), timeout=self._call_s_max)
        for client in (self._client, self._reader):
            await close_client(client)

    async def _execute(self, *parts: Arg) -> Any:
        return await self._client.execute_command(*parts)

    async def _info(self, section: str) -> dict[str, Any]:
        answer = await self._client.execute_command("INFO", section)
        # A cluster's client answers with a mapping by node where it asks several.
        values = list(answer.values())
        return values[0] if values and isinstance(values[0], dict) else answer

    async def _guarded(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Await a call, in time, and tell the breaker how it went."""
        if self._breaker.open:
            raise self._closed()
        try:
            async with asyncio.timeout(self._call_s_max), self._room:
                answer = await call()
        except FAILURES as error:
            if self._breaker.failed(self._clock.now_us()):
                LOG.warning("coordinator %s: %s; going on without it", self.address, told(error))
                self._tell()
                self._probe_later()
            raise self._failure(error) from error
        self._succeeded()
        return answer

    def _succeeded(self) -> None:
        if self._breaker.succeeded():
            LOG.warning("coordinator %s answers again", self.address)
            self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.up)

    def _failure(self, error: BaseException) -> StoreUnavailableError:
        self.failures[kind_of(error)] += 1
        return StoreUnavailableError(f"coordinator {self.address}: {told(error)}")

    def _closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"coordinator {self.address} did not answer lately")

    async def _apart(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Await a call in a task of its own: it goes on where the caller is cancelled."""
        assert self._tasks is not None, "the link serves before it is asked"
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._tasks.create_task(_carry(call, done), name="call to the coordinator")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await done

    def _probe_later(self) -> None:
        now_us = self._clock.now_us()
        self._timer = self._clock.call_at(now_us + self._breaker.wait_us(now_us), self._probe)

    def _probe(self) -> None:
        assert self._tasks is not None, "the link serves before it is asked"
        self._breaker.probing(self._clock.now_us())
        task = self._tasks.create_task(self._ask(), name="probe of the coordinator")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _ask(self) -> None:
        """See whether the server takes writes again; an answer closes the breaker."""
        try:
            async with asyncio.timeout(self._call_s_max):
                await self._client.execute_command("SET", "{tt}:probe", "", "PX", 1000)
        except FAILURES as error:
            self.failures[kind_of(error)] += 1
            self._probe_later()
        else:
            self._succeeded()


async def _carry(call: Coroutine[Any, Any, Any], done: "asyncio.Future[Any]") -> None:
    """Await a call, and let its end be that of a future, unless nobody waits for it."""
    try:
        answer = await call
    except asyncio.CancelledError:
        done.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - a task's border: handed to who waits
        if not done.done():
            done.set_exception(error)
    else:
        if not done.done():
            done.set_result(answer)


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure: a label of few values."""
    code = getattr(error, "status_code", None)
    if code:
        return str(code)
    if isinstance(error, TimeoutError | redis_errors.TimeoutError):
        return "timeout"
    if isinstance(error, redis_errors.ConnectionError | OSError):
        return "connection"
    return "error"


def told(error: BaseException) -> str:
    """Return what is wrong, for people."""
    code = getattr(error, "status_code", None)
    text = str(error) or f"no answer in time ({type(error).__name__})"
    return f"{code} {text}" if code else text
