# SPDX-License-Identifier: Apache-2.0
"""Worker threads for engines that compute in this process, with a bound on what waits for them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from taketurns.errors import EngineUnavailableError

T = TypeVar("T")


class Workers:
    """Runs at most ``threads`` pieces of work at once and lets a few more wait.

    Args:
        engine: Name of the engine, for messages.
        threads: Most pieces of work that run at once, at least 1.
        waiting_max: Most pieces that wait for a thread; 0 lets none wait.
    """

    def __init__(self, engine: str, *, threads: int, waiting_max: int) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"taketurns-{engine}")
        self._room = BoundedSemaphore(threads + waiting_max)
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have ``work`` run in a thread.

        Raises:
            EngineUnavailableError: Closed, or as much waits as may.
        """
        if self._closed:
            raise EngineUnavailableError(self._engine, "engine is closed")
        if not self._room.acquire(blocking=False):
            message = "engine has as many calls waiting as it takes"
            raise EngineUnavailableError(
                self._engine, message, hint="Give it no more calls at once than it has slots."
            )
        future = self._executor.submit(work)
        future.add_done_callback(lambda _: self._room.release())
        return future

    async def aclose(self) -> None:
        """Take nothing more and return when what was taken has run to its end.

        Whoever wants that to be soon stops the work before.
        """
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown, wait=True)
