# SPDX-License-Identifier: Apache-2.0
"""Chat and completions: waits for a turn, sends the request to an engine, has the answer passed on.

A request comes in parsed, in the form that engines understand, with a voice
that knows how its client is answered: so every dialect takes the same way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from taketurns.aio import Turn
from taketurns.config.pools import Pool as PoolFacts
from taketurns.core.decision import Outcome
from taketurns.core.limit_rules import Amounts
from taketurns.core.model import Ticket
from taketurns.dialects.answer_forms import form_of
from taketurns.dialects.openai_generation import (
    Fields,
    GenerationRequest,
    parse_chat,
    parse_completions,
)
from taketurns.dialects.openai_stream import OpenAiVoice
from taketurns.dialects.passing import MessagesVoice, parse_messages, parse_responses
from taketurns.errors import EngineError, EngineRefusedError, EngineUnavailableError
from taketurns.gateway.admission import Admission
from taketurns.gateway.affinity import affinity_of
from taketurns.gateway.availability import ATTEMPTS, NO_ROOM, Availability, EngineCall
from taketurns.gateway.coordination import MakeTurns
from taketurns.gateway.exchange import JSON, Answer, ClientGoneError, Exchange
from taketurns.gateway.metering import Estimates, Foreseen, Meter, stride
from taketurns.gateway.pools import Caller, Pace, ServedModel
from taketurns.gateway.relay import (
    StreamRelay,
    Voice,
    WholeWatch,
    read_whole,
    refusal_of,
)
from taketurns.gateway.throttling import Throttle
from taketurns.gateway.upstream import Bounds, Upstream
from taketurns.gateway.watch import Watch
from taketurns.ports.clock import Clock
from taketurns.ports.engine import GenerationCall, GenerationEngine
from taketurns.units import s_from_us

LOG = logging.getLogger(__name__)

Parse = Callable[[bytes, Fields | None], GenerationRequest]

PARSERS: dict[str, Parse] = {
    "chat": parse_chat,
    "completions": parse_completions,
    "responses": parse_responses,
}


class _Job(NamedTuple):
    """One request on its way to an answer.

    Attributes:
        exchange: The exchange with its client.
        request: What was read of it.
        caller: Who sends it.
        voice: How its client is answered.
        foreseen: What it will take.
        arrived_us: When it arrived: its deadline counts from there.
    """

    exchange: Exchange
    request: GenerationRequest
    caller: Caller
    voice: Voice
    foreseen: Foreseen
    arrived_us: int


class GenerationPool:
    """A model that serves chat and completions.

    Args:
        model: What it serves.
        facts: How it's scheduled.
        make_turns: Makes its turns.
        engines: By name.
        upstreams: How each engine is asked.
        admission: The gateway's limits.
        clock: The process's clock.
        watch: Looks at the answers under way.
        on_late: Told of each request that the throttle refuses.
    """

    def __init__(  # noqa: PLR0913 - wired in one place, by name
        self,
        model: ServedModel,
        facts: PoolFacts,
        *,
        make_turns: MakeTurns,
        engines: Mapping[str, GenerationEngine],
        upstreams: Mapping[str, Upstream],
        admission: Admission,
        clock: Clock,
        watch: Watch,
        on_late: Callable[[str, str, str], None],
    ) -> None:
        self.model = model
        self.engines = dict(engines)
        self.turns = make_turns(facts)
        self._view = self.turns.scheduler
        self._throttle = Throttle(self._view, on_late)
        self.availability = Availability(
            self.turns.set_engine,
            clock,
            model.section,
            self.turns.finder,
            lambda: self.turns.fail_waiting(self._none),
        )
        self.pace = Pace()
        self._admission = admission
        self._estimates = Estimates()
        self.upstreams = dict(upstreams)
        self._bounds = Bounds(model.section)
        self._clock = clock
        self._watch = watch
        self._stride = stride(facts.rules.quantum, model.output_weight)

    def serve(self) -> None:
        """Begin: from here on turns are granted."""
        self.availability.configure(self.model.section)

    async def aclose(self) -> None:
        """Stop deciding, and stop the engines with whatever runs there."""
        self.availability.close()
        self.turns.close()
        for engine in self.engines.values():
            await engine.aclose()

    async def answer(
        self, exchange: Exchange, request: GenerationRequest, caller: Caller, voice: Voice
    ) -> Answer | None:
        """Answer a request; None where the answer was streamed.

        Args:
            exchange: The exchange with the client; nothing was sent yet.
            request: What it asks, as engines understand it.
            caller: Who asks.
            voice: How the client is answered, a stream's end and errors in it included.

        Raises:
            LimitedError, QuotaUnavailableError: Its limits refuse it.
            RequestError: 400: it asks what is refused here, or more than a limit allows at all.
            TurnRefusedError, TurnExpiredError, EngineError: Before anything was sent.
        """
        self._bounds.check(request)
        record = exchange.record
        record.stream = request.stream
        foreseen = self._estimates.foresee(request, caller.tenant)
        record.input_tokens = foreseen.input_tokens
        await self._admission.let_in(
            exchange,
            caller,
            self.model.name,
            Amounts(1, foreseen.input_tokens, foreseen.output_tokens_max),
        )
        job = _Job(exchange, request, caller, voice, foreseen, self._clock.now_us())
        for attempt in range(1, ATTEMPTS + 1):
            if not self.availability.any:
                break
            try:
                return await self._take_turn(job, first=attempt == 1)
            except EngineUnavailableError as error:
                # Not a byte was sent: another engine may have it.
                LOG.warning("request %s: %s", record.request_id, error)
            except EngineRefusedError as error:
                # The engine is full and did nothing.
                if error.status not in NO_ROOM or attempt == ATTEMPTS:
                    raise
        raise self._none()

    def _none(self) -> EngineUnavailableError:
        return EngineUnavailableError(self.model.name, "no engine of this model can be used")

    async def _take_turn(self, job: _Job, *, first: bool) -> Answer | None:
        """Wait for a turn and use it.

        Args:
            job: The request.
            first: It was on no engine yet; later it isn't throttled, and goes before the
                others of its tenant.
        """
        exchange, request, caller, _, foreseen, arrived_us = job
        record, model = exchange.record, self.model
        ticket = Ticket(
            record.request_id,
            caller.tenant,
            caller.tier,
            model.cost.charge(foreseen.input_tokens, foreseen.output_tokens),
            priority=caller.priority if first else 0,
            deadline_us=caller.deadline_us(model, arrived_us),
            arrived_us=arrived_us,
            affinity=affinity_of(model.section.sticky, caller.tenant, request.body),
        )
        if first:
            self._throttle.check(model, caller, ticket, now_us=arrived_us)
        turn = Turn(self.turns, ticket)
        granted = turn.enter()
        if granted is not None:
            await turn.wait(granted)
        record.engine = turn.engine
        record.charged = ticket.cost
        outcome, executed = Outcome.FAILED, True
        try:
            answer = await self._ask(job, turn)
            outcome = Outcome.COMPLETED
            return answer
        except EngineError as error:
            if exchange.sent_us is not None:
                # The client was told in its stream.
                return None
            # From here on the error itself says it.
            exchange.executed = False
            executed = error.executed
            raise
        except (ClientGoneError, asyncio.CancelledError):
            outcome = Outcome.CANCELLED
            raise
        finally:
            record.cost = turn.leave(outcome, executed=executed).cost
            backlog = self._view.queued > 0
            self.pace.finished(1, self._clock.now_us(), backlog=backlog)

    async def _ask(self, job: _Job, turn: Turn) -> Answer | None:
        """Send a request to the engine of a turn, have its answer passed on, and learn of it."""
        exchange, request, caller, _, foreseen, arrived_us = job
        name, stream, record = turn.engine, request.stream, exchange.record
        call = GenerationCall(
            request.path, self.upstreams[name].body(request, caller), stream, record.request_id
        )
        exchange.executed = True
        with self.availability.call(name, stream=stream) as seen:
            begun_us = seen.begun_us
            record.wait_s = s_from_us(begun_us - arrived_us)
            form = form_of(request.path)
            meter = Meter(turn, record, self.model.cost, foreseen, self._stride, seen, form)
            watched = None if stream else WholeWatch(meter, self._estimates.produced)
            if watched is not None:
                self._watch.add(watched)
            try:
                answer = await self._pass(job, call, meter, seen)
            finally:
                took_us = self._clock.now_us() - begun_us
                if watched is not None:
                    self._watch.remove(watched)
                    if meter.usage is None:
                        meter.ended_after(self._estimates.produced(took_us))
                meter.settle()
        self._estimates.learn(request, caller.tenant, meter.produced, usage=meter.usage, us=took_us)
        return answer

    async def _pass(
        self, job: _Job, call: GenerationCall, meter: Meter, seen: EngineCall
    ) -> Answer | None:
        name = job.exchange.record.engine
        answer = await self.engines[name].open(call)
        try:
            if answer.status >= 400:
                raise EngineRefusedError(name, answer.status, await refusal_of(answer))
            seen.answered()
            # An engine may answer whole though it was asked for a stream.
            kind = answer.headers.get("content-type", JSON)
            if call.stream and not kind.startswith(JSON):
                relay = StreamRelay(job.exchange, name, job.voice, meter, self._clock)
                await relay.run(answer, self._watch)
                return None
            said = await read_whole(name, answer)
            meter.said(said)
            return Answer(answer.status, job.voice.whole(said), kind)
        except BaseException:
            # Read to its end there is nothing to be given up.
            await answer.aclose()
            raise


def answer_openai(
    pool: GenerationPool, exchange: Exchange, body: bytes, caller: Caller
) -> Awaitable[Answer | None]:
    """Answer chat, completions or responses of OpenAI's dialect; None where it was streamed.

    Raises:
        RequestError: 400, naming the field that is wrong; else as :meth:`GenerationPool.answer`.
    """
    request = PARSERS[exchange.record.endpoint](body, exchange.fields)
    voice = OpenAiVoice(keep_usage=request.include_usage)
    return pool.answer(exchange, request, caller, voice)


def answer_anthropic(
    pool: GenerationPool, exchange: Exchange, body: bytes, caller: Caller
) -> Awaitable[Answer | None]:
    """Answer Anthropic's ``POST /v1/messages``; raises as :func:`answer_openai`."""
    voice = MessagesVoice(exchange.record.request_id)
    return pool.answer(exchange, parse_messages(body, exchange.fields), caller, voice)
