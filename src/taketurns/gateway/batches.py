# SPDX-License-Identifier: Apache-2.0
"""Batches of texts: requests are split, batches mix tenants, vectors come back in order."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from taketurns.aio import TurnExpiredError, TurnRefusedError, Turns
from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.decision import Expired, Granted, Outcome
from taketurns.core.limit_rules import Amounts
from taketurns.core.model import Ticket
from taketurns.dialects import openai
from taketurns.dialects.openai import BYTES_PER_TOKEN, invalid
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
)
from taketurns.gateway.admission import Admission
from taketurns.gateway.availability import ATTEMPTS, Availability
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.pools import Caller, Pace, ServedModel
from taketurns.gateway.problems import CALLER_STATUSES
from taketurns.gateway.throttling import Throttle
from taketurns.ports.clock import Clock
from taketurns.ports.engine import EmbedCall, EmbeddingEngine, EmbedInput, Tokenizer
from taketurns.system import new_id
from taketurns.units import s_from_us

LOG = logging.getLogger(__name__)

TOKENIZE_INLINE_BYTES_MAX = 16 * 1024
"""Texts up to this size are tokenized on the event loop: at most a few milliseconds."""


@dataclass(slots=True, eq=False)
class _Work:
    """One request, from its split into texts to its answer.

    Attributes:
        inputs: Its texts, or their token ids.
        sizes: Tokens of each, counted or estimated.
        dimensions: Length of the vectors asked for.
        done: Set when all texts are done, or fails with the first error.
        vectors: Filled in as they come.
        left: Texts that aren't done.
        tokens: Tokens by the engine's count, as far as it counts.
        cost: Charged in the end.
        engine: Where the first text ran.
        dispatched_us: When that was, or None.
        attempts: Times that some of its texts met an engine that can't be reached.
    """

    inputs: Sequence[EmbedInput]
    sizes: Sequence[int]
    dimensions: int | None
    done: "asyncio.Future[None]"
    vectors: list[bytes] = field(init=False)
    left: int = field(init=False)
    tokens: int = 0
    cost: int = 0
    engine: str = ""
    dispatched_us: int | None = None
    attempts: int = 0

    def __post_init__(self) -> None:
        self.vectors = [b""] * len(self.inputs)
        self.left = len(self.inputs)

    def fail(self, error: Exception) -> None:
        """Let the request end with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(error)


class Embedded(NamedTuple):
    """The vectors of one request's texts, in their order, and the tokens of all."""

    vectors: Sequence[bytes]
    tokens: int


class EmbeddingPool:
    """A model that serves embeddings.

    Args:
        model: What it serves.
        facts: How it's scheduled.
        engines: By name.
        tokenizer: Counts tokens; None: they are estimated from the size of a text.
        tokens_max: Longest text that is taken, in tokens; None: any.
        admission: The gateway's limits.
        clock: The process's clock.
        on_late: Told of each request that the throttle refuses.
        on_batch: Told the model and the texts of each batch that is sent.
    """

    def __init__(  # noqa: PLR0913 - wired in one place, by name
        self,
        model: ServedModel,
        facts: PoolFacts,
        *,
        engines: Mapping[str, EmbeddingEngine],
        tokenizer: Tokenizer | None,
        tokens_max: int | None,
        admission: Admission,
        clock: Clock,
        on_late: Callable[[str, str, str], None],
        on_batch: Callable[[str, int], None],
    ) -> None:
        self.model = model
        self.engines = dict(engines)
        self.turns = Turns(
            facts.rules, facts.tiers, facts.tenants, clock=clock, on_decision=self._carry_out
        )
        self._throttle = Throttle(self.turns.scheduler, on_late)
        self.availability = Availability(self.turns.set_engine, clock)
        self.pace = Pace()
        self._tokenizer = tokenizer
        self._tokens_max = tokens_max
        self._admission = admission
        self._clock = clock
        self._on_batch = on_batch
        self._items: dict[str, tuple[_Work, int]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._batches: set[asyncio.Task[None]] = set()

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Begin: batches run as tasks of the group."""
        self._tasks = tasks
        for engine, config in zip(self.engines, self.model.section.engines, strict=True):
            self.availability.set_slots(engine, config.slots)

    async def aclose(self) -> None:
        """Stop deciding, and stop the engines with whatever runs there."""
        self.availability.close()
        self.turns.close()
        for engine in self.engines.values():
            await engine.aclose()
        for task in self._batches:
            task.cancel()

    async def embed(
        self,
        exchange: Exchange,
        texts: Sequence[EmbedInput],
        caller: Caller,
        *,
        dimensions: int | None = None,
        queries: int = 0,
        name_of: Callable[[int], str],
    ) -> Embedded:
        """Embed the texts of one request, in batches shared with others.

        Args:
            exchange: The request; what it took is noted in its record.
            texts: Texts or token ids, none of them empty.
            caller: Who sends it.
            dimensions: Length of the vectors asked for, or None.
            queries: How many of the texts are no inputs to limits.
            name_of: Returns the field that a text stands in, for errors.

        Raises:
            RequestError: 400, naming the text that is too long or isn't of the vocabulary.
            LimitedError, QuotaUnavailableError: Its limits refuse it.
            TurnRefusedError, TurnExpiredError, EngineError: See there.
        """
        if not self.availability.any:
            raise EngineUnavailableError(self.model.name, "no engine of this model can be reached")
        inputs, sizes = await self._count(texts, name_of)
        record = exchange.record
        record.items = len(inputs)
        record.input_tokens = sum(sizes)
        exchange.inputs = len(inputs) - queries
        amounts = Amounts(exchange.inputs, record.input_tokens)
        await self._admission.let_in(exchange, caller, self.model.name, amounts)
        work = _Work(inputs, sizes, dimensions, asyncio.get_running_loop().create_future())
        now_us = self._clock.now_us()
        tickets = self._tickets(work, record.request_id, caller, now_us)
        self._throttle.check(
            self.model,
            caller,
            tickets[-1],
            now_us=now_us,
            ahead=sum(ticket.cost for ticket in tickets[:-1]),
        )
        try:
            await self._run(work, tickets)
        finally:
            record.cost = work.cost
            # What is still an item here is in a batch that runs.
            exchange.executed = work.cost > 0 or any(t.id in self._items for t in tickets)
            record.engine = work.engine
            if work.tokens:
                record.input_tokens = work.tokens
            if work.dispatched_us is not None:
                record.wait_s = s_from_us(work.dispatched_us - now_us)
        return Embedded(work.vectors, record.input_tokens)

    async def _count(
        self, texts: Sequence[EmbedInput], name_of: Callable[[int], str]
    ) -> tuple[list[EmbedInput], list[int]]:
        """Return the inputs as the engines get them, and the tokens of each."""
        tokenizer = self._tokenizer
        inputs = list(texts)
        if tokenizer is None:
            # Bytes are counted in characters here; most texts are one byte a character.
            sizes = [
                -(-len(text) // BYTES_PER_TOKEN) if isinstance(text, str) else len(text)
                for text in inputs
            ]
        else:
            ids_max = tokenizer.vocabulary_size - 1
            for index, item in enumerate(inputs):
                if not isinstance(item, str) and max(item) > ids_max:
                    raise invalid(
                        name_of(index),
                        f"has token id {max(item)}, and this model's go up to {ids_max}",
                    )
            encoded = iter(await self._encode([item for item in inputs if isinstance(item, str)]))
            inputs = [next(encoded) if isinstance(item, str) else item for item in inputs]
            sizes = [len(item) for item in inputs]
        tokens_max = self._tokens_max
        if tokens_max is not None:
            for index, size in enumerate(sizes):
                if size > tokens_max:
                    raise invalid(
                        name_of(index),
                        f"has {size} tokens, and the most is {tokens_max}",
                        "Shorten it.",
                    )
        return inputs, sizes

    async def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._tokenizer is not None, "asked only where there is one"
        if sum(map(len, texts)) > TOKENIZE_INLINE_BYTES_MAX:
            return await asyncio.to_thread(self._tokenizer.encode, texts)
        return self._tokenizer.encode(texts)

    def _tickets(self, work: _Work, request_id: str, caller: Caller, now_us: int) -> list[Ticket]:
        deadline_us = caller.deadline_us(self.model, now_us)
        # Only what may share a call shares one.
        group = "" if work.dimensions is None else str(work.dimensions)
        return [
            Ticket(
                f"{request_id}-{index}",
                caller.tenant,
                caller.tier,
                self.model.cost.charge(size, 0),
                size,
                caller.priority,
                deadline_us,
                group,
                now_us,
            )
            for index, size in enumerate(work.sizes)
        ]

    async def _run(self, work: _Work, tickets: Sequence[Ticket]) -> None:
        """Queue a request's texts and wait until all are done."""
        for index, ticket in enumerate(tickets):
            self._items[ticket.id] = (work, index)
        try:
            self.turns.submit(tickets)
        except BaseException:
            for ticket in tickets:
                del self._items[ticket.id]
            raise
        try:
            await work.done
        finally:
            if work.left:
                # Failed, or the client is gone: what still waits leaves the queue,
                # what is in a batch ends there.
                for ticket in self.turns.cancel([ticket.id for ticket in tickets]):
                    del self._items[ticket.id]
                if not work.done.cancel() and not work.done.cancelled():
                    # Where the client went just then, nobody else looks at it.
                    work.done.exception()

    def _carry_out(self, decision: Granted | Expired) -> None:
        if isinstance(decision, Granted):
            assert self._tasks is not None, "the pool serves before it is asked"
            task = self._tasks.create_task(self._run_batch(decision), name="batch of texts")
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
        else:
            work, _ = self._items.pop(decision.ticket.id)
            work.fail(TurnExpiredError(decision.ticket))

    async def _run_batch(self, granted: Granted) -> None:
        """Send a batch to its engine, hand the vectors out, and settle each text."""
        now_us = self._clock.now_us()
        wanted: list[Ticket] = []
        for ticket in granted.tickets:
            work, _ = self._items[ticket.id]
            if work.done.done():
                self._finish(ticket, Outcome.CANCELLED, executed=False)
                continue
            wanted.append(ticket)
            if work.dispatched_us is None:
                work.dispatched_us = now_us
                work.engine = granted.engine
        if wanted:
            self._on_batch(self.model.name, len(wanted))
            await self._embed(self.engines[granted.engine], wanted, may_split=True)

    async def _embed(
        self, engine: EmbeddingEngine, tickets: Sequence[Ticket], *, may_split: bool
    ) -> None:
        work, _ = self._items[tickets[0].id]
        inputs = []
        for ticket in tickets:
            its_work, index = self._items[ticket.id]
            inputs.append(its_work.inputs[index])
        try:
            answer = await engine.embed(EmbedCall(inputs, work.dimensions, new_id("tt-")))
            if len(answer.vectors) != len(tickets):
                raise EngineBrokenError(
                    engine.name, f"{len(answer.vectors)} vectors came for {len(tickets)} texts"
                )
        except EngineError as error:
            await self._cope(engine, tickets, error, may_split=may_split)
        except asyncio.CancelledError:
            self._fail(tickets, EngineBrokenError(engine.name, "the batch was broken off"))
            raise
        except Exception:
            # This is the border of a task: a fault in an engine's code fails its batch only.
            LOG.exception("engine %s failed on a batch", engine.name)
            self._fail(tickets, EngineBrokenError(engine.name, "the engine failed"))
        else:
            self.availability.reached(engine.name)
            self._hand_out(tickets, answer.vectors, answer.tokens)

    async def _cope(
        self,
        engine: EmbeddingEngine,
        tickets: Sequence[Ticket],
        error: EngineError,
        *,
        may_split: bool,
    ) -> None:
        """Do what can be done for the requests of a batch that failed."""
        by_work = list(self._by_work(tickets).values())
        if isinstance(error, EngineUnavailableError):
            LOG.warning("a batch of %d texts: %s", len(tickets), error)
            self.availability.unreachable(engine.name)
            for its_tickets in by_work:
                self._send_again(its_tickets, error)
            return
        refused = isinstance(error, EngineRefusedError) and error.status in CALLER_STATUSES
        if not refused or not may_split or len(by_work) == 1:
            self._fail(tickets, error)
            return
        # One request's fault must not fail the others: each goes alone, once.
        try:
            while by_work:
                await self._embed(engine, by_work.pop(0), may_split=False)
        except asyncio.CancelledError:
            for its_tickets in by_work:
                self._fail(its_tickets, error)
            raise

    def _send_again(self, tickets: Sequence[Ticket], error: EngineUnavailableError) -> None:
        """Queue one request's texts again: nothing of them was sent."""
        work, _ = self._items[tickets[0].id]
        work.attempts += 1
        if work.done.done() or work.attempts >= ATTEMPTS or not self.availability.any:
            self._fail(tickets, error)
            return
        indices = [self._items[ticket.id][1] for ticket in tickets]
        for ticket in tickets:
            self._finish(ticket, Outcome.FAILED, executed=False)
        for ticket, index in zip(tickets, indices, strict=True):
            self._items[ticket.id] = (work, index)
        try:
            self.turns.submit(tickets)
        except TurnRefusedError as refused:
            for ticket in tickets:
                del self._items[ticket.id]
            work.fail(refused)

    def _by_work(self, tickets: Sequence[Ticket]) -> dict[_Work, list[Ticket]]:
        found: dict[_Work, list[Ticket]] = {}
        for ticket in tickets:
            found.setdefault(self._items[ticket.id][0], []).append(ticket)
        return found

    def _hand_out(
        self, tickets: Sequence[Ticket], vectors: Sequence[bytes], tokens: int | None
    ) -> None:
        sizes = [ticket.size for ticket in tickets]
        # With a tokenizer of the model the count is exact already.
        if tokens is None or tokens > openai.USAGE_TOKENS_MAX or self._tokenizer:
            counted = sizes
        else:
            counted = divide(tokens, sizes)
        for ticket, vector, size in zip(tickets, vectors, counted, strict=True):
            work, index = self._items[ticket.id]
            work.vectors[index] = vector
            work.tokens += size
            work.left -= 1
            work.cost += self._finish(ticket, Outcome.COMPLETED, cost=self.model.cost.used(size, 0))
            if work.left == 0 and not work.done.done():
                work.done.set_result(None)

    def _fail(self, tickets: Sequence[Ticket], error: EngineError) -> None:
        for ticket in tickets:
            work, _ = self._items[ticket.id]
            work.cost += self._finish(ticket, Outcome.FAILED, executed=error.executed)
            work.fail(error)

    def _finish(
        self, ticket: Ticket, outcome: Outcome, *, cost: int | None = None, executed: bool = True
    ) -> int:
        """Settle a text for good and return what it cost."""
        del self._items[ticket.id]
        ended = self.turns.finish(ticket.id, outcome, cost=cost, executed=executed)
        backlog = self.turns.scheduler.queued > 0
        self.pace.finished(1, self._clock.now_us(), backlog=backlog)
        return ended.cost


def divide(total: int, sizes: Sequence[int]) -> list[int]:
    """Divide a count among items in proportion to their sizes; each gets at least 1.

    The parts add up to ``total`` where that is at least one for each item.
    """
    parts = []
    size_left = sum(sizes)
    for number, size in enumerate(sizes):
        later = len(sizes) - number - 1
        part = max(1, min(total - later, total * size // size_left))
        parts.append(part)
        total -= part
        size_left -= size
    return parts
