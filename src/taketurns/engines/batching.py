# SPDX-License-Identifier: Apache-2.0
"""Any HTTP server that embeds or scores, asked in the way that its kind understands."""

import contextlib
from typing import Protocol, TypeVar

from taketurns.engines.embed_formats import OpenAiEmbeddings, Reply, TeiEmbed
from taketurns.engines.openai import OpenAiEngine
from taketurns.engines.score_formats import RerankQuery, ScorePairs, TeiPredict, TeiRerank
from taketurns.engines.vectors import shortened
from taketurns.errors import EngineBrokenError, EngineError, EngineRefusedError
from taketurns.ports.engine import (
    EmbedAnswer,
    EmbedCall,
    GenerationAnswer,
    GenerationCall,
    ScoreAnswer,
    ScoreCall,
    Truncate,
)

Call_contra = TypeVar("Call_contra", EmbedCall, ScoreCall, contravariant=True)
Answer_co = TypeVar("Answer_co", EmbedAnswer, ScoreAnswer, covariant=True)


class Format(Protocol[Call_contra, Answer_co]):
    """How a server is asked and how it answers."""

    @property
    def path(self) -> str:
        """Route, such as ``/v1/embeddings``."""
        ...

    @property
    def truncates(self) -> frozenset[Truncate]:
        """Ends that the server can cut off what is too long."""
        ...

    def body(self, model: str, call: Call_contra) -> bytes:
        """Write a call."""
        ...

    async def answer(self, reply: Reply, call: Call_contra) -> Answer_co:
        """Read and check an answer. Raises ``ValueError`` where it isn't one."""
        ...


EmbedFormat = Format[EmbedCall, EmbedAnswer]
ScoreFormat = Format[ScoreCall, ScoreAnswer]

_END: frozenset[Truncate] = frozenset({"end"})

EMBED: dict[str, EmbedFormat] = {
    "vllm": OpenAiEmbeddings(truncates=_END),
    "tei": TeiEmbed(),
    # It reports characters as tokens.
    "infinity": OpenAiEmbeddings(usage=False),
}
"""How a kind of server is asked for vectors; the others: as OpenAI."""

PAIRS: dict[str, ScoreFormat] = {"vllm": ScorePairs(truncates=_END), "tei": TeiPredict()}
"""How a kind of server is asked to score pairs; the others: as vLLM."""

QUERY: dict[str, ScoreFormat] = {
    "vllm": RerankQuery(truncates=_END),
    "tei": TeiRerank(),
    "infinity": RerankQuery(usage=False),
}
"""How a kind of server is asked to score the documents of one query; the others: as vLLM."""


def embed_format(kind: str) -> EmbedFormat:
    """Return how a kind of server is asked for vectors."""
    return EMBED.get(kind) or OpenAiEmbeddings()


def score_format(kind: str, *, one_query: bool) -> ScoreFormat:
    """Return how a kind of server is asked for scores.

    Args:
        kind: As in the configuration.
        one_query: True for the documents of one query in a call, false for any pairs.
    """
    if one_query:
        return QUERY.get(kind) or RerankQuery()
    return PAIRS.get(kind) or ScorePairs()


REFUSAL_BYTES_MAX = 64 * 1024
"""How much of an error's body is kept."""


class BatchingEngine:
    """Implements the ports for batches over an HTTP server.

    Args:
        server: The server.
        model: The server's own name of the model.
        kind: What it is, as in the configuration.
        one_query: It's asked to score the documents of one query, not any pairs.
        answer_bytes_max: Largest answer that is taken.

    Attributes:
        server: As given.
    """

    def __init__(
        self,
        server: OpenAiEngine,
        model: str,
        *,
        kind: str = "openai",
        one_query: bool = False,
        answer_bytes_max: int = 256 * 1024 * 1024,
    ) -> None:
        self.server = server
        self._model = model
        self._embed = embed_format(kind)
        self._score = score_format(kind, one_query=one_query)
        self._answer_bytes_max = answer_bytes_max

    @property
    def name(self) -> str:
        """Unique in its pool."""
        return self.server.name

    async def start(self) -> None:
        """Do what :meth:`prepare` does."""
        self.prepare()

    def prepare(self) -> None:
        """Check the settings, see :meth:`OpenAiEngine.prepare`."""
        self.server.prepare()

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Embed one batch, see the port."""
        if not call.inputs:
            raise ValueError("a batch to embed has at least one input")
        reply = await self._ask(self._embed, call)
        try:
            answer = await self._embed.answer(reply, call)
        except (ValueError, RecursionError) as error:
            raise self._unusable("embeddings", error) from error
        if call.dimensions is None:
            return answer
        # Some servers leave the field unread.
        cut = [shortened(vector, call.dimensions) for vector in answer.vectors]
        return EmbedAnswer(cut, answer.tokens)

    async def score(self, call: ScoreCall) -> ScoreAnswer:
        """Score one batch, see the port."""
        if not call.pairs:
            raise ValueError("a batch to score has at least one pair")
        reply = await self._ask(self._score, call)
        try:
            return await self._score.answer(reply, call)
        except (ValueError, RecursionError) as error:
            raise self._unusable("scores", error) from error

    async def aclose(self) -> None:
        """Close every connection; what still runs breaks off."""
        await self.server.aclose()

    async def _ask(self, form: Format[Call_contra, Answer_co], call: Call_contra) -> Reply:
        """Send a call and return the whole answer."""
        body = form.body(self._model, call)
        answer = await self.server.open(
            GenerationCall(form.path, body, stream=False, request_id=call.request_id)
        )
        if answer.status >= 400:
            raise EngineRefusedError(self.name, answer.status, await _beginning(answer))
        text = await answer.read(self._answer_bytes_max)
        if text is None:
            raise self._broken(f"its answer is over {self._answer_bytes_max} bytes")
        return Reply(text, answer.headers)

    def _unusable(self, what: str, error: Exception) -> EngineBrokenError:
        fault = "the JSON is nested too deep" if isinstance(error, RecursionError) else error
        return self._broken(f"its {what} can't be used: {fault}")

    def _broken(self, fault: str) -> EngineBrokenError:
        return EngineBrokenError(self.name, f"engine {self.name}: {fault}")


async def _beginning(answer: GenerationAnswer) -> bytes:
    body = bytearray()
    # The status is known; that its explanation broke off adds nothing.
    with contextlib.suppress(EngineError):
        async with contextlib.aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= REFUSAL_BYTES_MAX:
                    break
    return bytes(body[:REFUSAL_BYTES_MAX])
