# SPDX-License-Identifier: Apache-2.0
"""A model that works in batches: splits requests into items and puts their answers together."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.limit_rules import Amounts
from taketurns.core.model import Ticket
from taketurns.errors import EngineUnavailableError
from taketurns.gateway.admission import Admission
from taketurns.gateway.batch_call import BatchEngine
from taketurns.gateway.batch_runner import BatchRunner
from taketurns.gateway.cosine import scores_of
from taketurns.gateway.counting import Counter
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.items import Embedded, EmbedRequest, Scored, ScoreRequest
from taketurns.gateway.pools import Caller, ServedModel
from taketurns.gateway.throttling import Throttle
from taketurns.gateway.work import Options, Work
from taketurns.ports.clock import Clock
from taketurns.ports.engine import Tokenizer
from taketurns.units import s_from_us


class EmbeddingPool:
    """A model that serves embeddings or rerank. This is what dialects build on.

    Args:
        model: What it serves.
        facts: How it's scheduled.
        engines: By name.
        tokenizer: Counts tokens; None: they are estimated from the size of a text.
        as_ids: With a tokenizer, engines get the ids that were counted, not the texts.
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
        engines: Mapping[str, BatchEngine],
        tokenizer: Tokenizer | None,
        as_ids: bool,
        tokens_max: int | None,
        admission: Admission,
        clock: Clock,
        on_late: Callable[[str, str, str], None],
        on_batch: Callable[[str, int], None],
    ) -> None:
        self.counter = Counter(tokenizer, tokens_max=tokens_max, as_ids=as_ids)
        self._runner = BatchRunner(
            model, facts, engines=engines, counter=self.counter, clock=clock, on_batch=on_batch
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
        """Score each document against its query; here by the cosine of their vectors.

        Args:
            exchange: The request as it came; what it took is noted in its record.
            request: Queries and documents.
            caller: Who sends them.

        Raises:
            As :meth:`embed`.
        """
        queries = len(request.queries)
        embedded = await self._embed(
            exchange,
            EmbedRequest(
                [*request.queries, *request.documents],
                lambda index: (
                    request.query_name(index)
                    if index < queries
                    else request.document_name(index - queries)
                ),
                truncate=request.truncate,
            ),
            caller,
            len(request.documents),
        )
        return Scored(await scores_of(embedded.vectors, queries), embedded.tokens)

    async def _embed(
        self, exchange: Exchange, request: EmbedRequest, caller: Caller, counted: int
    ) -> Embedded:
        self._check_available()
        inputs, sizes = await self.counter.inputs(request)
        options = Options(dimensions=request.dimensions)
        done = asyncio.get_running_loop().create_future()
        work = Work(inputs, sizes, options, request.name_of, done)
        await self._run(exchange, work, caller, counted)
        return Embedded(cast("Sequence[bytes]", work.results), exchange.record.input_tokens)

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
        group = work.options.group
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
