# SPDX-License-Identifier: Apache-2.0
"""The border of a request: whatever happens inside, it's answered, settled and recorded once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from taketurns.core.decision import Outcome
from taketurns.core.limit_rules import Amounts
from taketurns.dialects.names import Dialect
from taketurns.dialects.openai import TooLargeError
from taketurns.errors import EngineBrokenError, TaketurnsError
from taketurns.gateway.build import Pools
from taketurns.gateway.exchange import Answer, ClientGoneError, Exchange
from taketurns.gateway.problems import DrainingError, problem_of
from taketurns.gateway.relay import SENT_AT_ONCE_BYTES, send_whole
from taketurns.gateway.usage import UsageLedger
from taketurns.ports.clock import Clock
from taketurns.telemetry.metrics import Metrics
from taketurns.telemetry.records import LogWriter, NoLog
from taketurns.units import US_PER_S, s_from_us

LOG = logging.getLogger(__name__)

Handle = Callable[[Exchange], Awaitable[Answer | None]]
"""Answers a request; None where the answer was streamed."""

CANCELLED = Outcome.CANCELLED.value
COMPLETED = Outcome.COMPLETED.value


class Border:
    """Where requests enter, and where each ends once.

    Args:
        handle: Answers a request, or raises what is to be told.
        pools: The pools.
        clock: The process's clock.
        metrics: Count what has ended.
        usage: Adds it up, where that is kept.

    Attributes:
        active: Exchanges under way, by the task that handles each.
        log: Where each is written.
    """

    def __init__(
        self,
        handle: Handle,
        pools: Pools,
        clock: Clock,
        metrics: Metrics,
        usage: UsageLedger | None,
    ) -> None:
        self.active: dict[asyncio.Task[object], Exchange] = {}
        self.log: LogWriter = NoLog()
        self._handle = handle
        self._pools = pools
        self._clock = clock
        self._metrics = metrics
        self._usage = usage
        self._stopped = False

    def break_off(self) -> None:
        """End what is still under way: who waits is told so, what runs is cut off."""
        self._stopped = True
        for task in list(self.active):
            task.cancel()

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever happens."""
        task = asyncio.current_task()
        assert task is not None, "a request is handled in a task of its own"
        self.active[task] = exchange
        record = exchange.record
        try:
            try:
                answer = await self._handle(exchange)
                record.outcome = record.outcome or COMPLETED
                record.status = 200 if answer is None else answer.status
            except asyncio.CancelledError:
                if not self._stopped or exchange.sent_us is not None:
                    raise
                task.uncancel()
                answer = self._tell(exchange, _broken_off(exchange))
            except Exception as error:  # noqa: BLE001 - the border of a request
                answer = self._failed(exchange, error)
            if answer is not None:
                # A part of the request: a gateway that stops waits for it.
                if len(answer.body) <= SENT_AT_ONCE_BYTES:
                    await exchange.peer.send(answer)
                else:
                    await send_whole(exchange.peer, answer, self._pools.watch)
        except ClientGoneError:
            record.outcome, record.status = CANCELLED, 499
        except asyncio.CancelledError:
            record.outcome, record.status = CANCELLED, 499
            raise
        finally:
            del self.active[task]
            self._settle(exchange)
            self._record(exchange)

    def _failed(self, exchange: Exchange, error: Exception) -> Answer | None:
        """Return what a client is told of an error; None where it's too late to say so.

        Raises:
            ClientGoneError: There is nobody to tell.
        """
        if isinstance(error, ClientGoneError):
            raise error
        answer = self._tell(exchange, error)
        if exchange.sent_us is None:
            return answer
        # The head of the answer is out.
        exchange.record.status = 200
        exchange.peer.abort()
        return None

    def _tell(self, exchange: Exchange, error: Exception) -> Answer:
        record = exchange.record
        pool = self._pools.of(record.model)
        retry_after_us = US_PER_S
        if pool is not None:
            retry_after_us *= pool.pace.retry_after_s(pool.turns.scheduler.queued)
        problem = problem_of(error, retry_after_us=retry_after_us)
        if exchange.executed:
            problem = replace(problem, executed=True)
        if isinstance(error, TooLargeError) and exchange.dialect is Dialect.TEI:
            problem = replace(problem, status=413)
        if problem.code == "insufficient_quota" and exchange.dialect is Dialect.COHERE:
            # Which its clients don't try again, as they do a 429.
            problem = replace(problem, status=402)
        if problem.code == "internal_error":
            LOG.error("request %s failed", record.request_id, exc_info=error)
        elif problem.status in {502, 503, 504}:
            told = ". ".join(filter(None, (str(error), getattr(error, "hint", ""))))
            LOG.warning("request %s: %s", record.request_id, told)
        record.outcome = problem.outcome
        record.code = problem.code
        record.status = problem.status
        return problem.answer(exchange.dialect, record.request_id)

    def _settle(self, exchange: Exchange) -> None:
        """Correct what a request's limits were charged to what it took: on every way out."""
        if exchange.admittance is not None:
            record = exchange.record
            executed = exchange.executed or record.cost > 0
            used = Amounts(exchange.inputs, record.input_tokens, record.output_tokens)
            exchange.admittance.settle(used if executed else None)

    def _record(self, exchange: Exchange) -> None:
        record = exchange.record
        if record.endpoint == "health":
            return
        arrived_us, sent_us = exchange.arrived_us, exchange.sent_us
        record.total_s = s_from_us(self._clock.now_us() - arrived_us)
        if sent_us is not None:
            record.first_byte_s = s_from_us(sent_us - arrived_us)
        self._metrics.count(record)
        if self._usage is not None:
            self._usage.count(record)
        self.log.write(record)


def _broken_off(exchange: Exchange) -> TaketurnsError:
    """Return why a request ends that was under way when the gateway stopped."""
    if exchange.executed:
        return EngineBrokenError(exchange.record.engine, "the gateway stopped before the answer")
    return DrainingError("draining")
