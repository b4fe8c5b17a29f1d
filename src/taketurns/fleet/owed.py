# SPDX-License-Identifier: Apache-2.0
"""Calls that have to be made, whoever waits for them or not: now, or after an outage."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from taketurns.errors import StoreUnavailableError
from taketurns.fleet.link import Link

OWED_MAX = 10_000
"""Most calls that are kept to be made after an outage; what they would end ends by itself later."""

Call = Callable[[], Awaitable[Any]]


class Owed:
    """Idempotent calls that are made once the coordinator answers; the latest ``OWED_MAX``.

    Args:
        link: To the coordinator.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls: dict[str, Call] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin: calls run as tasks of the group from here on."""
        self._tasks = tasks

    def add(self, name: str, call: Call) -> None:
        """Make a call beside everything else; where it fails, again in :meth:`pay`."""
        if len(self._calls) >= OWED_MAX:
            del self._calls[next(iter(self._calls))]
        self._calls[name] = call
        if self._link.up:
            self.spawn(self._make(name, call))

    async def pay(self) -> None:
        """Make all calls that are left.

        Raises:
            StoreUnavailableError: The coordinator doesn't answer.
        """
        for name, call in list(self._calls.items()):
            await call()
            self._calls.pop(name, None)

    def spawn(self, call: Awaitable[Any]) -> None:
        """Make a call beside everything else; where it fails, that's it."""
        assert self._tasks is not None, "it serves before it's asked"
        self._tasks.create_task(quietly(call), name="limits")

    async def _make(self, name: str, call: Call) -> None:
        await call()
        self._calls.pop(name, None)


def later(call: Callable[..., Awaitable[Any]], *args: Any) -> Call:
    """Return a call that is yet to be made."""
    return lambda: call(*args)


async def quietly(call: Awaitable[Any]) -> None:
    """Await a call; where the coordinator doesn't answer, the link tells of it."""
    try:
        await call
    except StoreUnavailableError:
        return
