# SPDX-License-Identifier: Apache-2.0
"""How engines are asked for scores: pair by pair, or the documents of one query.

Source: vLLM's ``/v1/score`` and ``/v1/rerank``, which Jina, llama.cpp and
infinity have too, and text-embeddings-inference's (TEI) ``/predict`` and ``/rerank``.
"""

from dataclasses import dataclass

import msgspec

from taketurns.engines.embed_formats import Reply, Usage, tei_tokens, tei_truncation
from taketurns.engines.vectors import finite, in_order
from taketurns.ports.engine import ScoreAnswer, ScoreCall, Truncate


class _Score(msgspec.Struct):
    index: int
    score: float


class _Scores(msgspec.Struct):
    data: list[_Score]
    usage: Usage | None = None


class _Relevance(msgspec.Struct):
    index: int
    relevance_score: float


class _Results(msgspec.Struct):
    results: list[_Relevance]
    usage: Usage | None = None


class _Prediction(msgspec.Struct):
    score: float


_SCORES = msgspec.json.Decoder(_Scores)
_RESULTS = msgspec.json.Decoder(_Results)
_RANKS = msgspec.json.Decoder(list[_Score])
_PREDICTIONS = msgspec.json.Decoder(list[list[_Prediction]])


def _tokens(usage: Usage | None) -> int | None:
    return None if usage is None else usage.tokens


@dataclass(frozen=True, slots=True)
class ScorePairs:
    """``POST /v1/score``: any pairs in one call.

    Attributes:
        truncates: Ends that the engine can cut off a pair that is too long.
    """

    truncates: frozenset[Truncate] = frozenset()
    path: str = "/v1/score"

    def body(self, model: str, call: ScoreCall) -> bytes:
        """Write a call."""
        queries, documents = zip(*call.pairs, strict=True)
        body: dict[str, object] = {"model": model, "text_1": queries, "text_2": documents}
        if call.truncate in self.truncates:
            body["truncate_prompt_tokens"] = -1
        return msgspec.json.encode(body)

    async def answer(self, reply: Reply, call: ScoreCall) -> ScoreAnswer:
        """Read and check an answer; its scores are put in order.

        Raises:
            ValueError: It isn't one; the text says why, and quotes nothing of it.
        """
        answer = _SCORES.decode(reply.body)
        scores = in_order([(item.index, item.score) for item in answer.data], len(call.pairs))
        return ScoreAnswer(finite(scores), _tokens(answer.usage))


@dataclass(frozen=True, slots=True)
class RerankQuery:
    """``POST /v1/rerank``: the documents of one query in one call.

    Attributes:
        truncates: As in :class:`ScorePairs`.
        usage: Whether its counts are tokens.
    """

    truncates: frozenset[Truncate] = frozenset()
    usage: bool = True
    path: str = "/v1/rerank"

    def body(self, model: str, call: ScoreCall) -> bytes:
        """Write a call."""
        body: dict[str, object] = {
            "model": model,
            "query": call.pairs[0].query,
            "documents": [pair.document for pair in call.pairs],
            "top_n": len(call.pairs),
            "return_documents": False,
        }
        if call.truncate in self.truncates:
            body["truncate_prompt_tokens"] = -1
        return msgspec.json.encode(body)

    async def answer(self, reply: Reply, call: ScoreCall) -> ScoreAnswer:
        """Read and check an answer, as :meth:`ScorePairs.answer` does."""
        answer = _RESULTS.decode(reply.body)
        items = [(item.index, item.relevance_score) for item in answer.results]
        scores = in_order(items, len(call.pairs))
        return ScoreAnswer(finite(scores), _tokens(answer.usage) if self.usage else None)


@dataclass(frozen=True, slots=True)
class TeiPredict:
    """``POST /predict`` of a re-ranker in text-embeddings-inference: any pairs in one call."""

    truncates: frozenset[Truncate] = frozenset({"start", "end"})
    path: str = "/predict"

    def body(self, model: str, call: ScoreCall) -> bytes:  # noqa: ARG002 - it serves one
        """Write a call."""
        return msgspec.json.encode({"inputs": call.pairs, **tei_truncation(call.truncate)})

    async def answer(self, reply: Reply, call: ScoreCall) -> ScoreAnswer:
        """Read and check an answer, as :meth:`ScorePairs.answer` does."""
        found = _PREDICTIONS.decode(reply.body)
        if len(found) != len(call.pairs):
            raise ValueError(f"{len(found)} results came for {len(call.pairs)} items")
        if any(len(labels) != 1 for labels in found):
            raise ValueError("a pair has not one score but one for each of several labels")
        return ScoreAnswer(finite([labels[0].score for labels in found]), tei_tokens(reply.headers))


@dataclass(frozen=True, slots=True)
class TeiRerank:
    """``POST /rerank`` of text-embeddings-inference: the documents of one query in one call."""

    truncates: frozenset[Truncate] = frozenset({"start", "end"})
    path: str = "/rerank"

    def body(self, model: str, call: ScoreCall) -> bytes:  # noqa: ARG002 - it serves one
        """Write a call."""
        texts = [pair.document for pair in call.pairs]
        body = {"query": call.pairs[0].query, "texts": texts, **tei_truncation(call.truncate)}
        return msgspec.json.encode(body)

    async def answer(self, reply: Reply, call: ScoreCall) -> ScoreAnswer:
        """Read and check an answer, as :meth:`ScorePairs.answer` does."""
        items = [(item.index, item.score) for item in _RANKS.decode(reply.body)]
        return ScoreAnswer(finite(in_order(items, len(call.pairs))), tei_tokens(reply.headers))
