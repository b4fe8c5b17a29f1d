# SPDX-License-Identifier: Apache-2.0
"""What the gateway needs of an engine: generation as an exchange; vectors and scores in batches."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class GenerationCall(NamedTuple):
    """One generation, as it is sent to an engine.

    Attributes:
        path: Route at the engine, such as ``/v1/chat/completions``.
        body: JSON as the engine expects it, UTF-8; the model name is the engine's own.
        stream: True where the body asks for server-sent events.
        request_id: Our own unguessable id of the call, for the engine's log.
    """

    path: str
    body: bytes
    stream: bool
    request_id: str


class GenerationAnswer(Protocol):
    """An answer whose head has come and whose body is still to be read."""

    @property
    def status(self) -> int:
        """HTTP status, 200 to 599."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers with lower-case names."""
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes; call once.

        Raises:
            EngineBrokenError: The body ended before its end.
            EngineTimeoutError: Nothing came for longer than the limit between chunks.
        """
        ...

    async def aclose(self) -> None:
        """Stop reading. Before the body's end this tells the engine to stop working.

        May be called at any time and more than once.
        """
        ...


class Sink(Protocol):
    """Takes the pieces of a body."""

    def take(self, data: bytes) -> bool:
        """Take a piece; False: :meth:`catch_up` before the next. What it raises ends it."""
        ...

    async def catch_up(self) -> None:
        """Wait until more may come."""
        ...


class PouringAnswer(Protocol):
    """An answer that needs no task to wake up for each piece."""

    async def pour(self, sink: Sink) -> None:
        """Hand the body to a sink as it comes, to its end; leaving before that gives it up.

        Raises:
            EngineError: As in :meth:`GenerationAnswer.chunks`.
        """
        ...


async def pour(answer: GenerationAnswer, sink: Sink) -> None:
    """Hand an answer's body to a sink as it comes, by the shortest way that there is.

    Raises:
        EngineError: As in :meth:`GenerationAnswer.chunks`.
    """
    # Asking whether it's a PouringAnswer takes longer than all the rest.
    pours: Callable[[Sink], Awaitable[None]] | None = getattr(answer, "pour", None)
    if pours is not None:
        await pours(sink)
        return
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            if not sink.take(chunk):
                await sink.catch_up()


async def read(answer: GenerationAnswer, bytes_max: int) -> bytes | None:
    """Return an answer's whole body; None, and it's given up, where it's over ``bytes_max``.

    Raises:
        EngineError: As in :meth:`GenerationAnswer.chunks`.
    """
    reads: Callable[[int], Awaitable[bytes | None]] | None = getattr(answer, "read", None)
    if reads is not None:
        return await reads(bytes_max)
    pieces: list[bytes] = []
    size = 0
    async with aclosing(answer.chunks()) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            if size > bytes_max:
                return None
            pieces.append(chunk)
    return b"".join(pieces)


class GenerationEngine(Protocol):
    """Serves chat and completions.

    Contract: a cancelled ``open`` or an ``aclose`` reaches the engine at once;
    a call is never sent twice.
    """

    @property
    def name(self) -> str:
        """Unique in its pool; appears in logs and metrics."""
        ...

    async def start(self) -> None:
        """Get ready to serve. Raises ``StartError`` where that can't be."""
        ...

    async def open(self, call: GenerationCall) -> GenerationAnswer:
        """Send a call and wait for the head of its answer.

        Raises:
            EngineUnavailableError: Not one byte was sent.
            EngineTimeoutError, EngineBrokenError: Sent, and no head came.
        """
        ...

    async def aclose(self) -> None:
        """Stop, with whatever still runs."""
        ...


EmbedInput = str | Sequence[int]
"""A text, or its tokens' ids in the engine's own vocabulary."""

Truncate = Literal["start", "end"]
"""Which end of a text that is too long the engine cuts off."""


@dataclass(frozen=True, slots=True)
class EmbedCall:
    """One batch of texts to embed; they may belong to several tenants.

    Attributes:
        inputs: Texts or token ids, at least one.
        dimensions: Length of the vectors asked for, or None for the model's own.
        request_id: Our own unguessable id of the call.
        truncate: Which end of a text that is too long the engine is to cut off; None:
            it refuses the text.
    """

    inputs: Sequence[EmbedInput]
    dimensions: int | None
    request_id: str
    truncate: Truncate | None = None


@dataclass(frozen=True, slots=True)
class EmbedAnswer:
    """The vectors of one batch.

    Attributes:
        vectors: One for each input, in the order of the inputs, each as
            little-endian float32 bytes; all of one length.
        tokens: Tokens the engine counted over the whole batch, or None where it reports none.
    """

    vectors: Sequence[bytes]
    tokens: int | None


class EmbeddingEngine(Protocol):
    """Serves embeddings in batches.

    Contract: the answer has as many vectors as the call has inputs, in the
    same order, or the call raises.
    """

    @property
    def name(self) -> str:
        """Unique in its pool; appears in logs and metrics."""
        ...

    async def start(self) -> None:
        """Get ready to serve. Raises ``StartError`` where that can't be."""
        ...

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Embed one batch.

        Raises:
            EngineUnavailableError: Not one byte was sent.
            EngineRefusedError: The engine answered with an error status.
            EngineTimeoutError, EngineBrokenError: Sent, and no whole answer came.
        """
        ...

    async def aclose(self) -> None:
        """Stop, with whatever still runs."""
        ...


class Pair(NamedTuple):
    """A query, and a document whose relevance for it is asked."""

    query: str
    document: str


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """One batch of pairs to score; they may belong to several tenants.

    Attributes:
        pairs: At least one.
        request_id: Our own unguessable id of the call.
        truncate: As in :class:`EmbedCall`.
    """

    pairs: Sequence[Pair]
    request_id: str
    truncate: Truncate | None = None


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The scores of one batch.

    Attributes:
        scores: One for each pair, in the order of the pairs; finite, of any range.
        tokens: Tokens the engine counted over the whole batch, or None where it reports none.
    """

    scores: Sequence[float]
    tokens: int | None


class ScoringEngine(Protocol):
    """Scores pairs of query and document in batches.

    Contract: as that of :class:`EmbeddingEngine`. Some engines take the documents
    of one query a call: then all its pairs have the same query.
    """

    @property
    def name(self) -> str:
        """Unique in its pool; appears in logs and metrics."""
        ...

    async def start(self) -> None:
        """Get ready to serve. Raises ``StartError`` where that can't be."""
        ...

    async def score(self, call: ScoreCall) -> ScoreAnswer:
        """Score one batch; raises what :meth:`EmbeddingEngine.embed` does."""
        ...

    async def aclose(self) -> None:
        """Stop, with whatever still runs."""
        ...


class Tokenizer(Protocol):
    """Turns texts into the token ids of one model. Thread-safe.

    Attributes:
        vocabulary_size: Ids go from 0 to one less.
    """

    vocabulary_size: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, special tokens included, not truncated."""
        ...

    def spell(self, text: str) -> list[tuple[int, str]]:
        """Return id and text of each token, without special ones."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids of the vocabulary, without special tokens."""
        ...

    def cut(self, texts: Sequence[str], tokens_max: int, truncate: Truncate) -> list[str]:
        """Return each text, cut where it has over ``tokens_max`` tokens, special ones included.

        Args:
            texts: The texts.
            tokens_max: At least 1; where not even one token fits, an empty text comes back.
            truncate: Which end is cut off.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """How long an engine may take, and how much it may send.

    Attributes:
        connect_s: To connect.
        first_byte_s: From the last byte sent to the head of the answer.
        between_chunks_s: Between two pieces of the body.
        total_s: From the first byte sent to the last received.
        answer_bytes_max: Largest answer that is held in memory whole.
    """

    connect_s: float = 5.0
    first_byte_s: float = 120.0
    between_chunks_s: float = 60.0
    total_s: float = 900.0
    answer_bytes_max: int = field(default=256 * 1024 * 1024)


ENGINE_STATES = ("up", "starting", "trying", "paused", "broken", "unhealthy", "drained")
"""The states that an engine can be in, see :class:`EngineState`."""


class EngineState(NamedTuple):
    """How one engine fares, for people and metrics.

    Attributes:
        name: Unique in its pool.
        state: One of ``ENGINE_STATES``.
        slots: At present.
        limit: Slots by its setting, or those that ``auto`` has found.
        auto: Its slots are found.
        in_flight: Requests that run there.
        waiting: Requests thought to wait inside it; None: unknown.
        failures: Requests that failed by its fault so far, by reason.
        misfits: How many requests in a row it has answered 401, 403, 404 or 405.
    """

    name: str
    state: str
    slots: int
    limit: int
    auto: bool
    in_flight: int
    waiting: int | None
    failures: Mapping[str, int]
    misfits: int
