# SPDX-License-Identifier: Apache-2.0
"""Engines in process that answer from a script, wait at a gate and count what happened to them.

For an engine behind a real socket see :mod:`taketurns.testing.http_engine`.
"""

import asyncio
import hashlib
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from taketurns.errors import TaketurnsError
from taketurns.ports.engine import (
    EmbedAnswer,
    EmbedCall,
    EmbedInput,
    GenerationCall,
    ScoreAnswer,
    ScoreCall,
)

VECTOR_LENGTH = 8
"""Length of a fake vector where no other is asked for."""


def fake_vector(value: EmbedInput, length: int = VECTOR_LENGTH) -> bytes:
    """Return the vector that fake engines give to an input: little-endian float32, its own.

    Args:
        value: A text or token ids.
        length: How many numbers, 1 to 32.
    """
    text = value if isinstance(value, str) else ",".join(str(token) for token in value)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    # Sixty-fourths are exact in float32, and so survive decimal notation too.
    numbers = array("f", [(byte - 128) / 64 for byte in digest[:length]])
    return numbers.tobytes()


def fake_score(query: str, document: str) -> float:
    """Return the score that fake engines give to a pair: its own, from 0 to 1, exact in float32."""
    digest = hashlib.sha256(f"{query}\0{document}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:2], "big") / 65_536


def fake_tokens(value: EmbedInput) -> int:
    """Return how many tokens fake engines count in an input: words of a text, at least 1."""
    return max(1, len(value.split()) if isinstance(value, str) else len(value))


class Tally:
    """Ids in the order in which something happened to them, and a way to wait for more."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def add(self, request_id: str) -> None:
        """Note an id."""
        self._ids.append(request_id)
        for count, future in self._waiting:
            if count <= len(self._ids) and not future.done():
                future.set_result(None)
        self._waiting = [pair for pair in self._waiting if not pair[1].done()]

    async def reached(self, count: int) -> None:
        """Wait until at least ``count`` ids are noted."""
        if len(self._ids) < count:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((count, future))
            await future


class Gate:
    """Lets through, or holds until it is opened; open at first."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Hold whatever comes from here on."""
        self._open.clear()

    def release(self) -> None:
        """Let through what is held, and whatever comes after it."""
        self._open.set()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        await self._open.wait()


def chat_answer(text: str, *, prompt_tokens: int = 3) -> bytes:
    """Return a whole ``chat.completion`` that says ``text``; each word counts as a token."""
    tokens = len(text.split())
    return (
        b'{"id":"fake","object":"chat.completion","created":0,"model":"fake","choices":'
        b'[{"index":0,"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
        % (text.encode(), prompt_tokens, tokens, prompt_tokens + tokens)
    )


def chat_events(text: str, *, usage: bool = False, prompt_tokens: int = 3) -> list[bytes]:
    """Return the events of a streamed chat that says ``text``, one for each word.

    Args:
        text: Words without quotes or backslashes.
        usage: True for the event with token counts before the end.
        prompt_tokens: Tokens of the prompt, for that event.
    """
    head = b'data: {"id":"fake","object":"chat.completion.chunk","created":0,"model":"fake",'
    words = text.split()
    events = [
        head
        + b'"choices":[{"index":0,"delta":{"content":"%b "},"finish_reason":null}]}\n\n'
        % word.encode()
        for word in words
    ]
    events.append(head + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n')
    if usage:
        events.append(
            head
            + b'"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
            % (prompt_tokens, len(words), prompt_tokens + len(words))
            + b"\n\n"
        )
    events.append(b"data: [DONE]\n\n")
    return events


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """What a fake generation engine answers.

    Attributes:
        chunks: Pieces of the body.
        status: HTTP status.
        headers: Headers with lower-case names.
        open_error: Raised instead of an answer, or None.
        body_error: Raised after the last piece, or None.
    """

    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    open_error: TaketurnsError | None = None
    body_error: TaketurnsError | None = None


class FakeAnswer:
    """Implements :class:`taketurns.ports.engine.GenerationAnswer` from a script."""

    def __init__(
        self, script: ScriptedAnswer, engine: "FakeGenerationEngine", call_id: str
    ) -> None:
        self._script = script
        self._engine = engine
        self._call_id = call_id
        self._over = False

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._script.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers with lower-case names."""
        return self._script.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the scripted pieces, each once the body's gate lets it through."""
        try:
            for chunk in self._script.chunks:
                await self._engine.body_gate.passed()
                if self._over:
                    return
                yield chunk
            await self._engine.body_gate.passed()
            if self._script.body_error is not None:
                self._over = True
                raise self._script.body_error
            if not self._over:
                self._over = True
                self._engine.completed.add(self._call_id)
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Give the answer up; before its end the engine counts it as cancelled."""
        if not self._over:
            self._over = True
            self._engine.cancelled.add(self._call_id)


class FakeGenerationEngine:
    """Implements :class:`taketurns.ports.engine.GenerationEngine` from a script.

    Args:
        name: As the port has it.
        script: Answers by order of calls; afterwards a chat of three words.

    Attributes:
        calls: Every call, in order of arrival.
        executed: Ids of the calls that the engine began to compute.
        completed: Ids whose answer was read to its end.
        cancelled: Ids that were given up before their end.
        head_gate: Holds calls before their head.
        body_gate: Holds answers before each piece of their body and before its end.
    """

    def __init__(self, name: str = "fake", script: Iterable[ScriptedAnswer] = ()) -> None:
        self._name = name
        self._script = deque(script)
        self.calls: list[GenerationCall] = []
        self.executed = Tally()
        self.completed = Tally()
        self.cancelled = Tally()
        self.head_gate = Gate()
        self.body_gate = Gate()

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def hold(self) -> None:
        """Hold calls before their head, until :meth:`release`."""
        self.head_gate.hold()

    def release(self) -> None:
        """Let held calls go on."""
        self.head_gate.release()

    async def start(self) -> None:
        """Do nothing."""

    async def open(self, call: GenerationCall) -> FakeAnswer:
        """Answer with the next of the script."""
        self.calls.append(call)
        script = self._script.popleft() if self._script else _default_answer(call)
        error = script.open_error
        if error is None or getattr(error, "executed", True):
            self.executed.add(call.request_id)
        try:
            await self.head_gate.passed()
        except asyncio.CancelledError:
            self.cancelled.add(call.request_id)
            raise
        if error is not None:
            raise error
        return FakeAnswer(script, self, call.request_id)

    async def aclose(self) -> None:
        """Do nothing."""


def _default_answer(call: GenerationCall) -> ScriptedAnswer:
    text = "one two three"
    if call.stream:
        usage = b'"include_usage":true' in call.body.replace(b" ", b"")
        events = chat_events(text, usage=usage)
        return ScriptedAnswer(events, headers={"content-type": "text/event-stream"})
    return ScriptedAnswer([chat_answer(text)])


class FakeEmbeddingEngine:
    """Implements the ports for batches, with :func:`fake_vector` and :func:`fake_score`.

    Args:
        name: As the port has it.
        script: By order of calls, an error to raise or None to answer; afterwards all are answered.

    Attributes:
        calls: Every call, in order of arrival.
        executed: Ids of the calls that the engine began to compute.
        completed: Ids that were answered.
        cancelled: Ids that were given up.
        gate: Holds calls before their answer.
    """

    def __init__(self, name: str = "fake", script: Iterable[TaketurnsError | None] = ()) -> None:
        self._name = name
        self._script = deque(script)
        self.calls: list[EmbedCall | ScoreCall] = []
        self.executed = Tally()
        self.completed = Tally()
        self.cancelled = Tally()
        self.gate = Gate()

    @property
    def name(self) -> str:
        """As given."""
        return self._name

    def hold(self) -> None:
        """Hold calls before their answer, until :meth:`release`."""
        self.gate.hold()

    def release(self) -> None:
        """Let held calls go on."""
        self.gate.release()

    async def start(self) -> None:
        """Do nothing."""

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Answer each input with its fake vector, or raise the next error of the script."""
        await self._take(call)
        length = call.dimensions or VECTOR_LENGTH
        return EmbedAnswer(
            vectors=[fake_vector(value, length) for value in call.inputs],
            tokens=sum(fake_tokens(value) for value in call.inputs),
        )

    async def score(self, call: ScoreCall) -> ScoreAnswer:
        """Answer each pair with its fake score, or raise the next error of the script."""
        await self._take(call)
        return ScoreAnswer(
            scores=[fake_score(*pair) for pair in call.pairs],
            tokens=sum(fake_tokens(text) for pair in call.pairs for text in pair),
        )

    async def aclose(self) -> None:
        """Do nothing."""

    async def _take(self, call: EmbedCall | ScoreCall) -> None:
        self.calls.append(call)
        error = self._script.popleft() if self._script else None
        if error is None or getattr(error, "executed", True):
            self.executed.add(call.request_id)
        try:
            await self.gate.passed()
        except asyncio.CancelledError:
            self.cancelled.add(call.request_id)
            raise
        if error is not None:
            raise error
        self.completed.add(call.request_id)
