# SPDX-License-Identifier: Apache-2.0
"""Chat and completions: waits for a turn, passes the request to an engine and the answer back."""

import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing

from taketurns.aio import Turn, Turns
from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.decision import Outcome
from taketurns.core.lengths import OutputLengths
from taketurns.core.limit_rules import Amounts
from taketurns.dialects import openai
from taketurns.dialects.openai import GenerationRequest
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
)
from taketurns.gateway.admission import Admission
from taketurns.gateway.availability import ATTEMPTS, Availability
from taketurns.gateway.exchange import JSON, Answer, ClientGoneError, Exchange
from taketurns.gateway.pools import Caller, Pace, ServedModel
from taketurns.gateway.problems import problem_of
from taketurns.gateway.throttling import Throttle
from taketurns.ports.clock import Clock
from taketurns.ports.engine import GenerationAnswer, GenerationCall, GenerationEngine
from taketurns.units import s_from_us
from taketurns.wire.sse import SseReader

LOG = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Largest answer that is held whole."""

REFUSAL_BYTES_MAX = 64 * 1024
"""How much of an engine's error is kept."""

STREAM_TYPE = "text/event-stream"
STREAM_HEADERS = {
    "Cache-Control": "no-cache",
    # nginx holds streams back otherwise.
    "X-Accel-Buffering": "no",
}

PARSERS: dict[str, Callable[[bytes], GenerationRequest]] = {
    "chat": openai.parse_chat,
    "completions": openai.parse_completions,
}
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


class GenerationPool:
    """A model that serves chat and completions.

    Args:
        model: What it serves.
        facts: How it's scheduled.
        engines: By name.
        upstream_models: Each engine's own name of the model.
        admission: The gateway's limits.
        clock: The process's clock.
        on_late: Told of each request that the throttle refuses.
    """

    def __init__(
        self,
        model: ServedModel,
        facts: PoolFacts,
        *,
        engines: Mapping[str, GenerationEngine],
        upstream_models: Mapping[str, str],
        admission: Admission,
        clock: Clock,
        on_late: Callable[[str, str, str], None],
    ) -> None:
        self.model = model
        self.engines = dict(engines)
        self.turns = Turns(facts.rules, facts.tiers, facts.tenants, clock=clock)
        self._throttle = Throttle(self.turns.scheduler, on_late)
        self.availability = Availability(self.turns.set_engine, clock)
        self.pace = Pace()
        self._admission = admission
        self._outputs = OutputLengths()
        self._upstream_models = dict(upstream_models)
        self._clock = clock

    def serve(self) -> None:
        """Begin: from here on turns are granted."""
        for engine, config in zip(self.engines, self.model.section.engines, strict=True):
            self.availability.set_slots(engine, config.slots)

    async def aclose(self) -> None:
        """Stop deciding, and stop the engines with whatever runs there."""
        self.availability.close()
        self.turns.close()
        for engine in self.engines.values():
            await engine.aclose()

    async def answer(self, exchange: Exchange, body: bytes, caller: Caller) -> Answer | None:
        """Answer a chat or completions request; None where the answer was streamed.

        Raises:
            RequestError: 400, naming the field that is wrong.
            LimitedError, QuotaUnavailableError: Its limits refuse it.
            TurnRefusedError, TurnExpiredError, EngineError: Before anything was sent.
        """
        record = exchange.record
        request = PARSERS[record.endpoint](body)
        record.stream = request.stream
        record.input_tokens = request.input_tokens
        # The request's own limit, or a guess.
        expected = request.output_tokens_max or self._outputs.expected(caller.tenant)
        await self._admission.let_in(
            exchange, caller, self.model.name, Amounts(1, request.input_tokens, expected)
        )
        now_us = self._clock.now_us()
        for attempt in range(ATTEMPTS):
            if not self.availability.any:
                break
            try:
                return await self._take_turn(
                    exchange, request, caller, now_us, expected=expected, first=attempt == 0
                )
            except EngineUnavailableError as error:
                # Not a byte was sent: another engine may have it.
                LOG.warning("request %s: %s", record.request_id, error)
                self.availability.unreachable(record.engine)
        raise EngineUnavailableError(self.model.name, "no engine of this model can be reached")

    async def _take_turn(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        caller: Caller,
        now_us: int,
        *,
        expected: int,
        first: bool,
    ) -> Answer | None:
        """Wait for a turn and use it.

        Args:
            exchange: The request.
            request: What was read of it.
            caller: Who sends it.
            now_us: When it arrived: its deadline counts from there.
            expected: Output tokens that it may have.
            first: It has met no dead engine yet; later it's throttled no more.
        """
        record = exchange.record
        turn = self.turns.turn(
            caller.tenant,
            tier=caller.tier,
            cost=self.model.cost.charge(request.input_tokens, expected),
            priority=caller.priority,
            deadline_us=caller.deadline_us(self.model, now_us),
            ticket_id=record.request_id,
        )
        if first:
            self._throttle.check(self.model, caller, turn.ticket, now_us=now_us)
        try:
            async with turn:
                record.engine = turn.engine
                record.wait_s = s_from_us(self._clock.now_us() - now_us)
                return await self._relay(exchange, request, turn, expected)
        finally:
            if turn.ended is not None:
                record.cost = turn.ended.cost
                if turn.ended.outcome is Outcome.COMPLETED:
                    self._outputs.seen(caller.tenant, record.output_tokens)
                backlog = self.turns.scheduler.queued > 0
                self.pace.finished(1, self._clock.now_us(), backlog=backlog)

    async def _relay(
        self, exchange: Exchange, request: GenerationRequest, turn: Turn, expected: int
    ) -> Answer | None:
        engine = self.engines[turn.engine]
        record = exchange.record
        call = GenerationCall(
            path=PATHS[record.endpoint],
            body=request.body_for(self._upstream_models[turn.engine]),
            stream=request.stream,
            request_id=record.request_id,
        )
        exchange.executed = True
        if not request.stream:
            # What a whole answer holds is known at its end, and only if the engine says so.
            record.output_tokens = expected
        try:
            answer = await engine.open(call)
            self.availability.reached(engine.name)
            try:
                if answer.status >= 400:
                    raise EngineRefusedError(engine.name, answer.status, await _refusal_of(answer))
                if not request.stream:
                    return await self._pass_whole(exchange, engine.name, answer, turn)
            except BaseException:
                await answer.aclose()
                raise
        except EngineError as error:
            # From here on the error itself says it.
            exchange.executed = False
            if not error.executed:
                turn.not_executed()
            raise
        await self._pass_stream(exchange, answer, turn)
        return None

    async def _pass_whole(
        self, exchange: Exchange, engine: str, answer: GenerationAnswer, turn: Turn
    ) -> Answer:
        body = await _whole(engine, answer, ANSWER_BYTES_MAX)
        usage = openai.usage_of(body)
        if usage is not None:
            self._settle(exchange, turn, *usage)
        kind = answer.headers.get("content-type", JSON)
        return Answer(answer.status, body, content_type=kind)

    async def _pass_stream(self, exchange: Exchange, answer: GenerationAnswer, turn: Turn) -> None:
        """Pass a stream on as it comes; read it beside the relay, to count its tokens."""
        record = exchange.record
        reader = SseReader()
        tokens = 0
        usage: tuple[int, int] | None = None
        try:
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    if exchange.sent_us is None:
                        exchange.sent_us = self._clock.now_us()
                        # An engine may answer whole though it was asked for a stream.
                        kind = answer.headers.get("content-type", STREAM_TYPE)
                        await exchange.peer.start(
                            answer.status, {**STREAM_HEADERS, "Content-Type": kind}
                        )
                    await exchange.peer.write(chunk)
                    for payload in reader.feed(chunk):
                        tokens += 1
                        if b'"usage"' in payload:
                            usage = openai.usage_of(payload) or usage
            if exchange.sent_us is None:
                raise EngineBrokenError(turn.engine, "the stream ended before it began")
            for payload in reader.finish():
                usage = openai.usage_of(payload) or usage
            await exchange.peer.finish()
        except ClientGoneError:
            turn.ends_as(Outcome.CANCELLED)
            raise
        except EngineError as error:
            if exchange.sent_us is None:
                raise
            turn.ends_as(Outcome.FAILED)
            await self._break_off(exchange, error)
        finally:
            await answer.aclose()
            # The first event, the last and [DONE] carry no token; an estimate will do here.
            self._settle(exchange, turn, *(usage or (record.input_tokens, max(0, tokens - 3))))

    async def _break_off(self, exchange: Exchange, error: EngineError) -> None:
        """Tell the client in its stream that the answer isn't whole, then cut the connection."""
        problem = problem_of(error)
        exchange.record.code = problem.code
        exchange.record.outcome = Outcome.FAILED.value
        event = openai.error_answer(problem.status, problem.code, problem.message)
        await exchange.peer.write(b"event: error\ndata: " + event + b"\n\n")
        exchange.peer.abort()

    def _settle(
        self, exchange: Exchange, turn: Turn, input_tokens: int, output_tokens: int
    ) -> None:
        record = exchange.record
        record.input_tokens = input_tokens
        record.output_tokens = output_tokens
        cost = self.model.cost.used(input_tokens, output_tokens)
        if cost is not None:
            turn.settle(cost)


async def _refusal_of(answer: GenerationAnswer) -> bytes:
    """Read what an engine says of an error, as far as it comes and is kept."""
    body = bytearray()
    try:
        async with aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= REFUSAL_BYTES_MAX:
                    break
    except EngineError:
        # The status is known; that its explanation broke off adds nothing.
        pass
    return bytes(body[:REFUSAL_BYTES_MAX])


async def _whole(engine: str, answer: GenerationAnswer, bytes_max: int) -> bytes:
    """Read an answer to its end.

    Raises:
        EngineBrokenError: It's longer than ``bytes_max``.
    """
    body = bytearray()
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > bytes_max:
                raise EngineBrokenError(engine, f"the answer is longer than {bytes_max} bytes")
    return bytes(body)
