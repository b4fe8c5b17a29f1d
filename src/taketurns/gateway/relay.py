# SPDX-License-Identifier: Apache-2.0
"""Passes one engine's answer on to one client: event by event, or whole.

Nothing is sent before the engine's first event, so that whatever fails until
then is told with a status. Afterwards only whole events are sent, each byte as
it came; between two of them there's room for a comment, or for an error.
"""

from contextlib import aclosing
from typing import Protocol

from taketurns.core.decision import Outcome
from taketurns.errors import EngineBrokenError, EngineError
from taketurns.gateway.exchange import Answer, Exchange, Peer
from taketurns.gateway.metering import Meter
from taketurns.gateway.problems import problem_of
from taketurns.gateway.watch import RelayRules, Watch
from taketurns.ports.clock import Clock
from taketurns.ports.engine import GenerationAnswer, pour, read
from taketurns.wire.sse import EventCutter, EventTooLargeError

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Largest answer that is held whole."""

SENT_AT_ONCE_BYTES = 64 * 1024
"""Answers up to this size are sent without waiting, whatever the client reads."""

REFUSAL_BYTES_MAX = 64 * 1024
"""How much of an engine's error is kept."""

STREAM_HEADERS = {
    "Cache-Control": "no-cache",
    # nginx holds streams back otherwise.
    "X-Accel-Buffering": "no",
}


class Voice(Protocol):
    """How a client is answered, in its dialect; one object for each request.

    Attributes:
        stream_type: Content type of a stream.
        ping: A comment that clients skip, sent into a silent stream; empty: none.
        error_ends: An error is a proper end of its streams: clients don't take what came before
            for whole. Else the connection is closed before its end, so that none does.
    """

    @property
    def stream_type(self) -> str: ...

    @property
    def ping(self) -> bytes: ...

    @property
    def error_ends(self) -> bool: ...

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer: the engine's, in the client's dialect."""
        ...

    def events(self, events: bytes) -> bytes:
        """Return what the client gets for whole events of the engine; maybe nothing.

        Args:
            events: As they came, each with its blank line.
        """
        ...

    def finish(self) -> bytes:
        """Return what follows after the engine's last event; maybe nothing."""
        ...

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return what ends a stream that isn't whole."""
        ...


class StreamRelay:
    """Implements :class:`taketurns.gateway.watch.Watched` and the engines' ``Sink``: one stream.

    Args:
        exchange: The request.
        engine: Name of the engine.
        voice: The client's dialect.
        meter: Counts it.
        clock: The process's clock.
    """

    __slots__ = (
        "_clock",
        "_cutter",
        "_engine",
        "_exchange",
        "_held",
        "_looked",
        "_meter",
        "_peer",
        "_silent_us",
        "_tail",
        "_voice",
        "_writes",
        "_writing",
    )

    def __init__(
        self,
        exchange: Exchange,
        engine: str,
        voice: Voice,
        meter: Meter,
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self._peer = exchange.peer
        self._engine = engine
        self._voice = voice
        self._meter = meter
        self._clock = clock
        self._cutter = EventCutter()
        self._tail = b""
        # What is to be sent first, once the head of the answer is out.
        self._held = b""
        self._writing = False
        self._writes = self._looked = 0
        self._silent_us = 0

    async def run(self, answer: GenerationAnswer, watch: Watch) -> None:
        """Pass a stream on as it comes, and count it, to its end.

        Raises:
            ClientGoneError: The client left, or read nothing for too long.
            EngineError: The stream broke. Where something was sent before, the client was told
                and its connection closed.
        """
        exchange = self._exchange
        watch.add(self)
        try:
            await pour(answer, self)
            if (rest := self._cutter.finish()) and not self._pass(rest):
                await self.catch_up()
            self._check_end()
            if last := self._voice.finish():
                await self._write(last)
            self._writing = True
            await self._peer.finish()
        except EngineError as error:
            if exchange.sent_us is not None:
                await self._break_off(error)
            raise
        finally:
            watch.remove(self)
            self._meter.streamed()

    def look(self, passed_us: int, rules: RelayRules) -> None:
        if self._writes != self._looked:
            self._looked = self._writes
            self._silent_us = 0
            return
        self._silent_us += passed_us
        if self._writing:
            if self._silent_us >= rules.unread_us:
                # Whoever waits to write is told that the client is gone.
                self._peer.cut()
        elif self._writes and self._voice.ping:
            ping_us = rules.ping_us
            if ping_us is not None and self._silent_us >= ping_us:
                self._silent_us = 0
                self._peer.ping(self._voice.ping)

    async def _break_off(self, error: EngineError) -> None:
        """Tell the client in its stream that the answer isn't whole, and end it."""
        problem = problem_of(error)
        self._exchange.record.code = problem.code
        self._exchange.record.outcome = Outcome.FAILED.value
        await self._write(self._voice.error(problem.status, problem.code, problem.message))
        if self._voice.error_ends:
            await self._peer.finish()
        else:
            self._peer.abort()

    def take(self, data: bytes) -> bool:
        try:
            events = self._cutter.feed(data)
        except EventTooLargeError as error:
            raise EngineBrokenError(self._engine, f"engine {self._engine}: {error}") from error
        return not events or self._pass(events)

    async def catch_up(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            await self._write(data)
            return
        await self._peer.drain()
        self._writing = False
        self._writes += 1

    def _pass(self, events: bytes) -> bool:
        """Count whole events and send what the client gets of them; False: catch up first."""
        self._meter.read(events)
        self._tail = events
        data = self._voice.events(events)
        if not data:
            return True
        if self._exchange.sent_us is None:
            self._held = data
            return False
        if self._peer.write_now(data):
            self._writes += 1
            return True
        self._writing = True
        return False

    async def _write(self, data: bytes) -> None:
        exchange = self._exchange
        self._writing = True
        if exchange.sent_us is None:
            exchange.sent_us = self._clock.now_us()
            headers = {**STREAM_HEADERS, "Content-Type": self._voice.stream_type}
            await self._peer.start(200, headers)
        await self._peer.write(data)
        self._writing = False
        self._writes += 1

    def _check_end(self) -> None:
        """See that a stream is whole: engines, and proxies before them, may end one in good form.

        Raises:
            EngineBrokenError: Nothing came, or nothing that says that it's over.
        """
        if not self._tail:
            raise EngineBrokenError(self._engine, "the stream ended before it began")
        if not self._meter.form.over(self._tail):
            raise EngineBrokenError(self._engine, "the stream ended before the answer did")


class SendWatch:
    """Implements :class:`taketurns.gateway.watch.Watched`: a whole answer that is being sent.

    Args:
        peer: The client's side.
    """

    __slots__ = ("_idle_us", "_peer", "_unread")

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._unread = 0
        self._idle_us = 0

    def look(self, passed_us: int, rules: RelayRules) -> None:
        before, self._unread = self._unread, self._peer.unread
        self._idle_us = self._idle_us + passed_us if self._unread == before else 0
        if self._idle_us >= rules.unread_us:
            self._peer.cut()


class Produced(Protocol):
    """Says how many output tokens there are after so many microseconds."""

    def __call__(self, us: int, /) -> int: ...


class WholeWatch:
    """Implements :class:`taketurns.gateway.watch.Watched`: an answer that comes whole.

    Args:
        meter: Counts it.
        produced: Returns how many tokens an answer has that runs for so many microseconds.
    """

    __slots__ = ("_meter", "_produced", "_us")

    def __init__(self, meter: Meter, produced: Produced) -> None:
        self._meter = meter
        self._produced = produced
        self._us = 0

    def look(self, passed_us: int, rules: RelayRules) -> None:  # noqa: ARG002 - the port's
        self._us += passed_us
        self._meter.reached(self._produced(self._us))


async def read_whole(engine: str, answer: GenerationAnswer) -> bytes:
    """Read an answer to its end.

    Raises:
        EngineBrokenError: It's longer than ``ANSWER_BYTES_MAX``, or broke off.
    """
    whole = await read(answer, ANSWER_BYTES_MAX)
    if whole is None:
        raise EngineBrokenError(engine, f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return whole


async def send_whole(peer: Peer, answer: Answer, watch: Watch) -> None:
    """Send an answer whole; a client that reads nothing of it for too long is cut off.

    Raises:
        ClientGoneError: The client left, or was cut off.
    """
    watched = SendWatch(peer)
    watch.add(watched)
    try:
        await peer.send(answer)
    finally:
        watch.remove(watched)


async def refusal_of(answer: GenerationAnswer) -> bytes:
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
