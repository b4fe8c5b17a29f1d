# SPDX-License-Identifier: Apache-2.0
"""One gateway's talk with the coordinator about one pool: joins, steps, heartbeats, comparisons.

Rules of this file:

* Calls about a pool follow each other: while one is under way, events gather, and go together.
* Any call that fails ends the talk: the owner goes on alone. It starts again with a join,
  after which the owner compares what it holds with what is held for it there.
* A grant is used only while the last good call is younger than a heartbeat's life, less a
  margin: after that the slot may be somebody else's.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from taketurns.core.model import PoolRules, Tier
from taketurns.errors import StoreUnavailableError
from taketurns.fleet.link import Link
from taketurns.fleet.pool import DECODER, Call, Event, Pool, decode
from taketurns.ports.clock import Clock, Timer
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

BEAT_US = US_PER_S
TTL_US = 4 * US_PER_S
MARGIN_US = US_PER_S
SYNC_US = 10 * US_PER_S

EVENTS_MAX = 32
"""Most events in one step."""

STEPS = 16
"""Most decisions in one step, so that the server is kept for about a millisecond at most."""

PAGE = 500
"""Ids in one page of a comparison."""

Done = Callable[[list[Any]], None]
"""Told an event's answer."""


class Owner(Protocol):
    """What holds the tickets."""

    def joined(self, theirs: dict[str, str], opens_us: int) -> None:
        """The talk begins: push what is missing there.

        Args:
            theirs: Ids held for this gateway there, and ``w`` or ``r``: it waits or runs.
            opens_us: How long nothing is granted there, so that others can join again.
        """
        ...

    def compare(self, theirs: dict[str, str]) -> None:
        """See whether what is held there is what is held here; nothing is under way."""
        ...

    def lost(self) -> None:
        """The coordinator doesn't answer; told again for as long as that lasts."""
        ...

    def decided(self, message: list[Any], *, fresh: bool) -> None:
        """A grant or an expiry came; one that isn't fresh must not be used."""
        ...

    def heard(self, summary: list[Any]) -> None:
        """A step's answer told of the whole pool."""
        ...


class Driver:
    """The talk of one gateway about one pool.

    Args:
        pool: The pool's calls.
        link: The connection.
        clock: The process's clock.
        owner: What holds the tickets.

    Attributes:
        talking: True between a join and the next failure.
        joins: How often it joined.
        rules: How the pool schedules, for the next join.
    """

    def __init__(
        self,
        pool: Pool,
        link: Link,
        clock: Clock,
        owner: Owner,
        *,
        rules: PoolRules,
        tiers: Sequence[Tier],
    ) -> None:
        self.pool = pool
        self.talking = False
        self.joins = 0
        self.rules = rules
        self.lag_us = 0
        self._tiers = tiers
        self._link = link
        self._clock = clock
        self._owner = owner
        self._events: deque[tuple[Event, Done | None]] = deque()
        self._top_ups: dict[str, int] = {}
        self._more = False
        self._closed = False
        self._good_us = 0
        self._due_us: int | None = None
        self._beat_us = 0
        self._sync_us = 0
        self._wake = asyncio.Event()
        self._change = asyncio.Event()
        self._timer: Timer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        link.listen(lambda _: self._change_seen())

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to talk."""
        if not self._tasks:
            self._tasks = [
                tasks.create_task(self._drive(), name="talk with the coordinator"),
                tasks.create_task(self._read(), name="grants from the coordinator"),
            ]

    def push(self, event: Event, done: Done | None = None) -> None:
        """Let an event happen, after those pushed before; without effect while not talking."""
        if self.talking:
            self._events.append((event, done))
            self._wake.set()

    def top_up(self, ticket_id: str, cost: int) -> None:
        """Let a charge stand at a cost, with the next call: the last word counts."""
        if self.talking:
            self._top_ups[ticket_id] = cost

    def forget_top_up(self, ticket_id: str) -> None:
        """Take back a top-up: the ticket ends."""
        self._top_ups.pop(ticket_id, None)

    def close(self) -> None:
        """Stop talking; what is to be said yet is said, and that this gateway leaves."""
        self._closed = True
        self._wake.set()
        self._change_seen()
        if len(self._tasks) > 1:
            self._tasks[1].cancel()

    async def wait_closed(self) -> None:
        """Wait until it has stopped."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
            for task in self._tasks:
                task.cancel()

    async def _drive(self) -> None:
        while not self._closed or self.talking:
            try:
                await self._talk()
            except StoreUnavailableError as error:
                await self._fail(str(error))
            except Exception:
                # The border of a task: without the talk, requests are served all the same.
                LOG.exception("pool %s: a fault in the talk with the coordinator", self.pool.base)
                await self._fail("a fault")

    async def _talk(self) -> None:
        """Make the call that is due, or wait until one is."""
        if not self.talking:
            await self._join()
        elif self._events or self._more or self._due:
            await self._step()
        elif self._closed:
            await self._beat(leaves=True)
        elif (now_us := self._clock.now_us()) >= self._beat_us:
            if self._top_ups:
                await self._step()
            await self._beat()
        elif now_us >= self._sync_us:
            await self._compare()
        else:
            await self._idle()

    async def _ask(self, call: Call) -> list[Any] | None:
        """Make a call; None where the pool isn't what it was, so that it has to be joined."""
        sent_us = self._clock.now_us()
        answer = decode(await self._link.ask(call.script, call.keys, call.args))
        self.lag_us = self._clock.now_us() - sent_us
        if answer[0] != "ok":
            # The pool is gone, or this gateway was given up: all is put in again at once.
            LOG.warning("pool %s has to be joined again: %s", self.pool.base, answer)
            self._end()
            return None
        self._good_us = sent_us
        return answer

    async def _join(self) -> None:
        answer = await self._ask(
            self.pool.join(self.rules, self._tiers, ttl_us=TTL_US, again=self.joins > 0)
        )
        if answer is None:
            return
        _, self.pool.epoch, _, members, opens_us = answer
        self._meet(members)
        theirs = await self._theirs()
        if theirs is None:
            return
        self.talking = True
        self.joins += 1
        self._beat_us = self._clock.now_us() + BEAT_US
        self._sync_us = self._clock.now_us() + SYNC_US
        self._owner.joined(theirs, opens_us)
        self._change_seen()

    async def _theirs(self) -> dict[str, str] | None:
        theirs: dict[str, str] = {}
        after = ""
        while True:
            answer = await self._ask(self.pool.held(after, PAGE))
            if answer is None:
                return None
            flat = answer[2]
            theirs.update(zip(flat[::2], flat[1::2], strict=True))
            if len(flat) < 2 * PAGE:
                return theirs
            after = flat[-2]

    async def _step(self) -> None:
        taken = list(islice(self._events, EVENTS_MAX))
        top_ups, self._top_ups = self._top_ups, {}
        events = [("settle", *item) for item in top_ups.items()] + [event for event, _ in taken]
        answer = await self._ask(self.pool.step(events, steps=STEPS))
        if answer is None:
            return
        for _ in taken:
            self._events.popleft()
        _, _, _, answers, own, ended, summary = answer
        self._hear(summary)
        for (_, done), told in zip(taken, answers[len(top_ups) :], strict=True):
            if done is not None:
                done(told)
        self._take(own, ended)

    async def _beat(self, *, leaves: bool = False) -> None:
        answer = await self._ask(self.pool.beat(ttl_us=0 if leaves else TTL_US, steps=STEPS))
        self._beat_us = self._clock.now_us() + BEAT_US
        if answer is None:
            return
        _, _, _, members, own, ended, summary, gone = answer
        self._meet(members)
        self._hear(summary)
        if gone and not leaves:
            LOG.warning("pool %s: gateway %s is gone", self.pool.base, gone)
        if leaves:
            self._end()
        else:
            self._take(own, ended)

    async def _compare(self) -> None:
        self._sync_us = self._clock.now_us() + SYNC_US
        theirs = await self._theirs()
        if theirs is not None and not self._events:
            self._owner.compare(theirs)

    @property
    def _due(self) -> bool:
        """True where what lingers there for a fuller batch has done so long enough."""
        return self._due_us is not None and self._clock.now_us() >= self._due_us

    def _hear(self, summary: list[Any]) -> None:
        *told, lingers_us = summary
        self._due_us = self._clock.now_us() + lingers_us if lingers_us else None
        self._owner.heard(told)

    def _take(self, own: list[list[Any]], ended: str) -> None:
        for message in own:
            self._owner.decided(message, fresh=self._fresh())
        self._more = ended == "more"
        if ended == "stale":
            self._beat_us = 0

    def _meet(self, members: list[str]) -> None:
        self.pool.members = tuple(sorted(members))

    def _fresh(self) -> bool:
        return self._clock.now_us() - self._good_us < TTL_US - MARGIN_US

    async def _fail(self, why: str) -> None:
        """Let the owner go on alone, until the coordinator may answer again."""
        if self.talking:
            LOG.warning("pool %s goes on without the coordinator: %s", self.pool.base, why)
        self._end()
        if not self._closed:
            self._owner.lost()
            await self._until_it_may_answer()

    def _end(self) -> None:
        """End the talk; what was to be said will be seen at the next join."""
        self.talking = False
        self._events.clear()
        self._top_ups.clear()
        self._more = False
        self._due_us = None

    async def _idle(self) -> None:
        """Wait for an event, or until the next call is due."""
        self._wake.clear()
        wakes = (self._beat_us, self._sync_us, self._due_us)
        timer = self._clock.call_at(min(us for us in wakes if us is not None), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _until_it_may_answer(self) -> None:
        """Wait until the link is up again, if it's down; and a moment in any case."""
        pause = asyncio.Event()
        timer = self._clock.call_at(self._clock.now_us() + US_PER_S // 20, pause.set)
        try:
            await pause.wait()
        finally:
            timer.cancel()
        while not self._link.up and not self._closed:
            await self._changed()

    def _change_seen(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _changed(self) -> None:
        await self._change.wait()

    async def _read(self) -> None:
        """Take what other gateways' steps have granted."""
        key = self.pool.out(self.pool.gateway)
        while not self._closed:
            if not self.talking:
                await self._changed()
                continue
            try:
                raw = await self._link.pop(key)
            except StoreUnavailableError:
                # What it had is lost; the comparison will show it.
                self._sync_us = 0
                await self._until_it_may_answer()
                continue
            if raw is None:
                continue
            epoch, message = DECODER.decode(raw)
            if self.talking and epoch == self.pool.epoch:
                self._owner.decided(message, fresh=self._fresh())
