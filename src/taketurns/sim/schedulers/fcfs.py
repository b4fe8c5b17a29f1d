# SPDX-License-Identifier: Apache-2.0
"""First come, first served."""

from collections import deque

from taketurns.sim.request import Request


class FirstCome:
    """Implements :class:`~taketurns.sim.schedulers.base.SimScheduler`: one queue, by arrival."""

    pushes = False
    keeps_head = True
    follows = False

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def arrived(self, request: Request) -> bool:
        self._queue.append(request)
        return True

    def head(self, engine: int) -> Request | None:  # noqa: ARG002 - one queue for all
        return self._queue[0] if self._queue else None

    def admitted(self, engine: int, request: Request) -> None:  # noqa: ARG002
        # Another engine may have taken what stood first when this one asked.
        if self._queue[0] is request:
            self._queue.popleft()
        else:
            self._queue.remove(request)

    def decoded(self, engine: int, step: int) -> None:
        pass

    def finished(self, request: Request) -> None:
        pass

    def figures(self) -> dict[str, float]:
        return {}
