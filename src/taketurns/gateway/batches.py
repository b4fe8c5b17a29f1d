# SPDX-License-Identifier: Apache-2.0
"""A model that works in batches: splits requests into items and puts their answers together."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.limit_rules import Amounts
from taketurns.core.model import Ticket
from taketurns.dialects.openai import too_large
from taketurns.errors import EngineUnavailableError
from taketurns.gateway.admission import Admission
from taketurns.gateway.batch_call import BatchEngine
from taketurns.gateway.batch_runner import BatchRunner
from taketurns.gateway.coordination import MakeTurns
from taketurns.gateway.cosine import scores_of
from taketurns.gateway.counting import Counter
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.items import Embedded, EmbedRequest, NameOf, Scored, ScoreRequest
from taketurns.gateway.pools import Caller, ServedModel
from taketurns.gateway.throttling import Throttle
from taketurns.gateway.work import Item, Options, Work
from taketurns.ports.clock import Clock
from taketurns.ports.engine import Truncate
from taketurns.system import give_way
from taketurns.units import s_from_us

ITEMS_AT_ONCE = 256
"""Requests of more items have others take their turn before they are queued."""


class EmbeddingPool:
    """A model that serves embeddings or rerank. This is what dialects build on.

    Args:
        model: What it serves.
        facts: How it's scheduled.
        make_turns: Makes its turns.
        engines: By name.
        counter: Counts tokens.
        truncates: Ends that its engines can cut off a text that is too long.
        admission: The gateway's limits.
        clock: The process's clock.
        on_late: Told of each request that the throttle refuses.
        on_batch: Told the model and the texts of each batch that is sent.
        on_mistrust: Told the model where an engine counts characters as tokens.
    """

    def __init__(  # noqa: PLR0913 - wired in one place, by name
        self,
        model: ServedModel,
        facts: PoolFacts,
        *,
        make_turns: MakeTurns,
        engines: Mapping[str, BatchEngine],
        counter: Counter,
        truncates: frozenset[Truncate],
        admission: Admission,
        clock: Clock,
        on_late: Callable[[str, str, str], None],
        on_batch: Callable[[str, int], None],
        on_mistrust: Callable[[str], None],
    ) -> None:
        self.counter = counter
        self.truncates = truncates
        self._runner = BatchRunner(
            model,
            facts,
            make_turns=make_turns,
            engines=engines,
            counter=counter,
            clock=clock,
            on_batch=on_batch,
            on_mistrust=on_mistrust,
        )
        self.engines = self._runner.engines
        self.turns = self._runner.turns
        self.availability = self._runner.availability
        self.pace = self._runner.pace
        self.serve = self._runner.serve
        self.aclose = self._runner.aclose
        self._throttle = Throttle(self.turns.scheduler, on_late)
        self._admission = admission
        self._clock = clock

    @property
    def model(self) -> ServedModel:
        """What it serves."""
        return self._runner.model

    @model.setter
    def model(self, model: ServedModel) -> None:
        self._runner.model = model

    @property
    def items(self) -> int:
        """Items that are queued or run."""
        return len(self._runner.items)

    async def embed(self, exchange: Exchange, request: EmbedRequest, caller: Caller) -> Embedded:
        """Embed the texts of one request, in batches shared with others.

        Args:
            exchange: The request as it came; what it took is noted in its record.
            request: The texts.
            caller: Who sends them.

        Raises:
            RequestError: 400, naming the text that is too long or isn't of the vocabulary.
            LimitedError, QuotaUnavailableError: Its limits refuse it.
            TurnRefusedError, TurnExpiredError, EngineError: See there.
        """
        return await self._embed(exchange, request, caller, len(request.inputs))

    async def score(self, exchange: Exchange, request: ScoreRequest, caller: Caller) -> Scored:
        """Score each document against its query, in batches shared with others.

        Args:
            exchange: The request as it came; what it took is noted in its record.
            request: Queries and documents.
            caller: Who sends them.

        Raises:
            As :meth:`embed`.
        """
        way = self.model.section.rerank_or_default
        if way == "cosine":
            return await self._compare(exchange, request, caller)
        self._check_available()
        pairs, sizes = await self.counter.pairs(request)
        options = Options(
            score=True,
            truncate=self._passed_on(request.truncate),
            alone=exchange.record.request_id if way == "query" else "",
        )
        work = self._work(pairs, sizes, options, request.document_name)
        if way == "query" and not request.one_query:
            work.groups = [f"{options.group} {index}" for index in range(len(pairs))]
        await self._run(exchange, work, caller, len(pairs))
        return Scored(cast("Sequence[float]", work.results), exchange.record.input_tokens)

    async def _compare(self, exchange: Exchange, request: ScoreRequest, caller: Caller) -> Scored:
        """Score by the cosine of vectors."""
        queries = len(request.queries)
        texts = EmbedRequest(
            [*request.queries, *request.documents],
            lambda index: (
                request.query_name(index)
                if index < queries
                else request.document_name(index - queries)
            ),
            truncate=request.truncate,
        )
        embedded = await self._embed(exchange, texts, caller, len(request.documents))
        return Scored(await scores_of(embedded.vectors, queries), embedded.tokens)

    async def _embed(
        self, exchange: Exchange, request: EmbedRequest, caller: Caller, counted: int
    ) -> Embedded:
        self._check_available()
        prefix = self.model.section.input_types.get(request.input_type, "")
        if prefix:
            inputs = [prefix + text if isinstance(text, str) else text for text in request.inputs]
            request = replace(request, inputs=inputs)
        items, sizes = await self.counter.inputs(request)
        total, most = sum(sizes), request.total_tokens_max
        if most is not None and total > most:
            raise too_large(
                "input",
                f"has {total} tokens in all, and the most is {most}",
                "Send it in several requests.",
            )
        options = Options(dimensions=request.dimensions, truncate=self._passed_on(request.truncate))
        work = self._work(items, sizes, options, request.name_of)
        await self._run(exchange, work, caller, counted)
        return Embedded(cast("Sequence[bytes]", work.results), exchange.record.input_tokens)

    def _work(
        self, items: Sequence[Item], sizes: Sequence[int], options: Options, name_of: NameOf
    ) -> Work:
        done = asyncio.get_running_loop().create_future()
        return Work(items, sizes, options, name_of, done)

    def _passed_on(self, truncate: Truncate | None) -> Truncate | None:
        """Return what engines are told to cut: with a tokenizer it was cut here."""
        if self.counter.exact or truncate not in self.truncates:
            return None
        return truncate

    def _check_available(self) -> None:
        if not self.availability.any:
            raise EngineUnavailableError(self.model.name, "no engine of this model can be reached")

    async def _run(self, exchange: Exchange, work: Work, caller: Caller, counted: int) -> None:
        """Let a request in and run it; ``counted`` of its items are inputs to limits."""
        record = exchange.record
        record.items = len(work.items)
        record.input_tokens = sum(work.sizes)
        exchange.inputs = counted
        amounts = Amounts(counted, record.input_tokens)
        await self._admission.let_in(exchange, caller, self.model.name, amounts)
        if len(work.items) > ITEMS_AT_ONCE:
            # To read and count them took a while, and to queue them does too.
            await give_way()
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
            await self._runner.run(work, tickets)
        finally:
            record.cost = work.cost
            # What is still an item here is in a batch that runs.
            exchange.executed = work.cost > 0 or any(t.id in self._runner.items for t in tickets)
            record.engine = work.engine
            if work.tokens:
                record.input_tokens = work.tokens
            if work.dispatched_us is not None:
                record.wait_s = s_from_us(work.dispatched_us - now_us)

    def _tickets(self, work: Work, request_id: str, caller: Caller, now_us: int) -> list[Ticket]:
        deadline_us = caller.deadline_us(self.model, now_us)
        groups = work.groups or [work.options.group] * len(work.sizes)
        return [
            Ticket(
                f"{request_id}-{index}",
                caller.tenant,
                caller.tier,
                self.model.cost.charge(size, 0),
                size,
                caller.priority,
                deadline_us,
                groups[index],
                now_us,
            )
            for index, size in enumerate(work.sizes)
        ]
