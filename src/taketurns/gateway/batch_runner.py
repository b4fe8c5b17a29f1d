# SPDX-License-Identifier: Apache-2.0
"""Sends a pool's batches to its engines, hands the results out and settles each item."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from taketurns.aio import TurnExpiredError, TurnRefusedError
from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.decision import Expired, Granted, Outcome, Refused
from taketurns.core.model import Ticket
from taketurns.dialects.openai_stream import USAGE_TOKENS_MAX
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
)
from taketurns.gateway.availability import ATTEMPTS, NO_ROOM, Availability
from taketurns.gateway.bad_items import BadItems, blames_caller
from taketurns.gateway.batch_call import BatchEngine, call_engine
from taketurns.gateway.coordination import MakeTurns
from taketurns.gateway.counting import Counter, divide
from taketurns.gateway.pools import Pace, ServedModel
from taketurns.gateway.work import Work
from taketurns.ports.clock import Clock
from taketurns.ports.coordinator import CoordinatorDownError, Decision, Stranded

LOG = logging.getLogger(__name__)


class BatchRunner:
    """Runs the batches of one pool.

    Args:
        model: What the pool serves.
        facts: How it's scheduled.
        make_turns: Makes its turns.
        engines: By name.
        counter: Counts tokens, and learns from what engines count.
        clock: The process's clock.
        on_batch: Told the model and the items of each batch that is sent.
        on_mistrust: Told the model where an engine counts characters as tokens.

    Attributes:
        items: The work and place of each item that is queued or runs, by its ticket's id.
    """

    def __init__(
        self,
        model: ServedModel,
        facts: PoolFacts,
        *,
        make_turns: MakeTurns,
        engines: Mapping[str, BatchEngine],
        counter: Counter,
        clock: Clock,
        on_batch: Callable[[str, int], None],
        on_mistrust: Callable[[str], None],
    ) -> None:
        self.model = model
        self.engines = dict(engines)
        self.turns = make_turns(facts, self._carry_out)
        self.availability = Availability(
            self.turns.set_engine, clock, model.section, self.turns.finder, self._fail_waiting
        )
        self.pace = Pace()
        self.items: dict[str, tuple[Work, int]] = {}
        self._counter = counter
        self._clock = clock
        self._on_batch = on_batch
        self._on_mistrust = on_mistrust
        self._mistrusted = False
        self._tasks: asyncio.TaskGroup | None = None
        self._batches: set[asyncio.Task[None]] = set()

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin: batches run as tasks of the group."""
        self._tasks = tasks
        self.availability.configure(self.model.section)

    async def aclose(self) -> None:
        """Stop deciding, and stop the engines with whatever runs there."""
        self.availability.close()
        self.turns.close()
        for engine in self.engines.values():
            await engine.aclose()
        for task in self._batches:
            task.cancel()

    async def run(self, work: Work, tickets: Sequence[Ticket]) -> None:
        """Queue a request's items and wait until all are done.

        Raises:
            TurnRefusedError, TurnExpiredError, EngineError: See there.
        """
        for index, ticket in enumerate(tickets):
            self.items[ticket.id] = (work, index)
        try:
            self.turns.submit(tickets)
        except BaseException:
            for ticket in tickets:
                del self.items[ticket.id]
            raise
        try:
            await work.done
        finally:
            if work.left:
                # Failed, or the client is gone: what still waits leaves the queue,
                # what is in a batch ends there.
                for ticket in self.turns.cancel([ticket.id for ticket in tickets]):
                    del self.items[ticket.id]
                if not work.done.cancel() and not work.done.cancelled():
                    # Where the client went just then, nobody else looks at it.
                    work.done.exception()

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Granted):
            assert self._tasks is not None, "the pool serves before it is asked"
            task = self._tasks.create_task(self._run_batch(decision), name="batch")
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
            return
        work, _ = self.items.pop(decision.ticket.id)
        match decision:
            case Expired():
                work.fail(TurnExpiredError(decision.ticket))
            case Refused():
                work.fail(TurnRefusedError(decision))
            case Stranded():
                work.fail(CoordinatorDownError())

    async def _run_batch(self, granted: Granted) -> None:
        """Send a batch to its engine, without the items that nobody waits for any more."""
        now_us = self._clock.now_us()
        wanted: list[Ticket] = []
        for ticket in granted.tickets:
            work, _ = self.items[ticket.id]
            if work.done.done():
                self._finish(ticket, Outcome.CANCELLED, executed=False)
                continue
            wanted.append(ticket)
            if work.dispatched_us is None:
                work.dispatched_us = now_us
                work.engine = granted.engine
        if wanted:
            self._on_batch(self.model.name, len(wanted))
            engine = self.engines[granted.engine]
            error = await self._send(engine, wanted)
            if error is not None:
                await self._cope(engine, wanted, error)

    async def _send(self, engine: BatchEngine, tickets: Sequence[Ticket]) -> EngineError | None:
        """Send items as one call and hand the results out; return the error if that failed."""
        options = self.items[tickets[0].id][0].options
        items = []
        for ticket in tickets:
            work, index = self.items[ticket.id]
            items.append(work.items[index])
        try:
            with self.availability.call(engine.name, stream=False) as watch:
                results, tokens = await call_engine(engine, options, items)
                self._check_lengths(engine, tickets, results)
                watch.produced(tokens or sum(ticket.size for ticket in tickets))
        except EngineError as error:
            return error
        except asyncio.CancelledError:
            self._fail(tickets, EngineBrokenError(engine.name, "the batch was broken off"))
            raise
        except Exception:
            # This is the border of a task: a fault in an engine's code fails its batch only.
            LOG.exception("engine %s failed on a batch", engine.name)
            return EngineBrokenError(engine.name, "the engine failed")
        self._hand_out(tickets, results, tokens)
        return None

    def _check_lengths(
        self, engine: BatchEngine, tickets: Sequence[Ticket], results: Sequence[bytes | float]
    ) -> None:
        """See that no request gets vectors of two lengths, or of another than it asked for."""
        for ticket, result in zip(tickets, results, strict=True):
            work, _ = self.items[ticket.id]
            if isinstance(result, bytes):
                work.length = work.length or len(result)
                if len(result) != work.length:
                    fault = f"vectors of {len(result) // 4} numbers, not {work.length // 4}"
                    raise EngineBrokenError(engine.name, fault)

    async def _cope(
        self, engine: BatchEngine, tickets: Sequence[Ticket], error: EngineError
    ) -> None:
        """Do what can be done for the requests of a batch that failed."""
        requests = list(self._by_work(tickets).values())
        if isinstance(error, EngineUnavailableError):
            LOG.warning("a batch of %d items: %s", len(tickets), error)
        if blames_caller(error):
            search = BadItems(
                partial(self._send, engine), self._give_up, self._queue_alone, self._name_of
            )
            await search.search(tickets, requests, error)
        else:
            for request in requests:
                self._give_up(request, error)

    def _name_of(self, ticket: Ticket) -> str:
        work, index = self.items[ticket.id]
        return work.name_of(index)

    def _give_up(self, tickets: Sequence[Ticket], error: EngineError) -> None:
        """End one request's items with an error, or queue them again if nothing was sent."""
        work, _ = self.items[tickets[0].id]
        full = isinstance(error, EngineRefusedError) and error.status in NO_ROOM
        if full or isinstance(error, EngineUnavailableError):
            indices = [self.items[ticket.id][1] for ticket in tickets]
            for index in indices:
                work.attempts[index] += 1
            attempts = max(work.attempts[index] for index in indices)
            if not work.done.done() and attempts < ATTEMPTS and self.availability.any:
                self._queue_again(tickets)
                return
        self._fail(tickets, error)

    def _fail_waiting(self) -> None:
        """Let all that waits fail: no engine can be used."""
        for ticket in self.turns.cancel(list(self.items)):
            work, _ = self.items.pop(ticket.id)
            name = self.model.name
            work.fail(EngineUnavailableError(name, "no engine of this model can be used"))

    def _queue_alone(self, tickets: Sequence[Ticket]) -> None:
        group = f"{tickets[0].group} alone {tickets[0].id}"
        self._queue_again([ticket._replace(group=group) for ticket in tickets])

    def _queue_again(self, tickets: Sequence[Ticket]) -> None:
        """Queue one request's items again: nothing of them was executed."""
        places = [self.items[ticket.id] for ticket in tickets]
        work, _ = places[0]
        for ticket in tickets:
            self._finish(ticket, Outcome.FAILED, executed=False)
        if work.done.done():
            return
        for ticket, place in zip(tickets, places, strict=True):
            self.items[ticket.id] = place
        try:
            self.turns.submit(tickets)
        except TurnRefusedError as refused:
            for ticket in tickets:
                del self.items[ticket.id]
            work.fail(refused)

    def _by_work(self, tickets: Sequence[Ticket]) -> dict[Work, list[Ticket]]:
        found: dict[Work, list[Ticket]] = {}
        for ticket in tickets:
            found.setdefault(self.items[ticket.id][0], []).append(ticket)
        return found

    def _hand_out(
        self, tickets: Sequence[Ticket], results: Sequence[bytes | float], tokens: int | None
    ) -> None:
        counted = self._counted(tickets, tokens)
        for ticket, result, size in zip(tickets, results, counted, strict=True):
            work, index = self.items[ticket.id]
            work.results[index] = result
            work.tokens += size
            work.left -= 1
            work.cost += self._finish(ticket, Outcome.COMPLETED, cost=self.model.cost.used(size, 0))
            if work.left == 0 and not work.done.done():
                work.done.set_result(None)

    def _counted(self, tickets: Sequence[Ticket], tokens: int | None) -> Sequence[int]:
        """Return the tokens of each item: by the engine's count, where that is better than ours."""
        sizes = [ticket.size for ticket in tickets]
        # With a tokenizer of the model the count is exact already.
        if tokens is None or tokens > USAGE_TOKENS_MAX or self._counter.exact:
            return sizes
        places = (self.items[ticket.id] for ticket in tickets)
        if not self._counter.believe([work.items[index] for work, index in places], tokens):
            if not self._mistrusted:
                self._mistrusted = True
                LOG.warning(
                    "an engine of %s reports characters as tokens: such counts are not used",
                    self.model.name,
                )
            self._on_mistrust(self.model.name)
            return sizes
        return divide(tokens, sizes)

    def _fail(self, tickets: Sequence[Ticket], error: EngineError) -> None:
        for ticket in tickets:
            work, _ = self.items[ticket.id]
            work.cost += self._finish(ticket, Outcome.FAILED, executed=error.executed)
            work.fail(error)

    def _finish(
        self, ticket: Ticket, outcome: Outcome, *, cost: int | None = None, executed: bool = True
    ) -> int:
        """Settle an item for good and return what it cost."""
        del self.items[ticket.id]
        ended = self.turns.finish(ticket.id, outcome, cost=cost, executed=executed)
        backlog = self.turns.scheduler.queued > 0
        self.pace.finished(1, self._clock.now_us(), backlog=backlog)
        return ended.cost
