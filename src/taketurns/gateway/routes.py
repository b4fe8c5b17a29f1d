# SPDX-License-Identifier: Apache-2.0
"""What is served under which path: whose dialect, which endpoint, and who answers."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from taketurns.dialects.names import Dialect
from taketurns.gateway import cohere_chat, embeddings, generation, reranks, tokens
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.pools import Caller

TOKENIZE = "tokenize"
"""The endpoint that every model has for which the gateway has a tokenizer."""

Reply = Callable[[Any, Exchange, bytes, Caller], Awaitable[Answer | None]]
"""Answers a request: the pool of its model, the exchange, its body, and who sends it."""


@dataclass(frozen=True, slots=True)
class Route:
    """What ``POST`` to a path means.

    Attributes:
        dialect: Whose errors, headers and defaults it has.
        endpoint: What it counts as, for pools and limits.
        answer: Answers it.
        instead: A field, and the route that is meant where the body has it.
    """

    dialect: Dialect
    endpoint: str
    answer: Reply
    instead: "tuple[str, Route] | None" = None

    def for_body(self, fields: Collection[str]) -> "Route":
        """Return the route that a body with such fields is meant for."""
        if self.instead is not None and self.instead[0] in fields:
            return self.instead[1]
        return self


_COHERE_EMBED = Route(Dialect.COHERE, "embeddings", embeddings.answer_cohere_v1)
_TEI_RERANK = Route(Dialect.TEI, "rerank", reranks.answer_tei)
_SCORE = Route(Dialect.JINA, "rerank", reranks.answer_score)

ROUTES: Mapping[str, Route] = {
    "/v1/chat/completions": Route(Dialect.OPENAI, "chat", generation.answer_openai),
    "/v1/completions": Route(Dialect.OPENAI, "completions", generation.answer_openai),
    "/v1/responses": Route(Dialect.OPENAI, "responses", generation.answer_openai),
    "/v1/messages": Route(Dialect.ANTHROPIC, "messages", generation.answer_anthropic),
    "/v1/embeddings": Route(Dialect.OPENAI, "embeddings", embeddings.answer_openai),
    "/v1/chat": Route(Dialect.COHERE, "chat", cohere_chat.answer_v1),
    "/v2/chat": Route(Dialect.COHERE, "chat", cohere_chat.answer_v2),
    "/v1/embed": _COHERE_EMBED,
    "/v2/embed": Route(Dialect.COHERE, "embeddings", embeddings.answer_cohere_v2),
    "/embed": Route(
        Dialect.TEI, "embeddings", embeddings.answer_tei, instead=("texts", _COHERE_EMBED)
    ),
    "/v1/rerank": Route(Dialect.JINA, "rerank", reranks.answer_jina),
    "/rerank": Route(Dialect.JINA, "rerank", reranks.answer_jina, instead=("texts", _TEI_RERANK)),
    "/v2/rerank": Route(Dialect.COHERE, "rerank", reranks.answer_cohere_v2),
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/v1/tokenize": Route(Dialect.COHERE, TOKENIZE, tokens.answer_tokenize),
    "/v1/detokenize": Route(Dialect.COHERE, TOKENIZE, tokens.answer_detokenize),
}
"""All paths that requests are posted to."""

COHERE_V1_RERANK = Route(Dialect.COHERE, "rerank", reranks.answer_cohere_v1)

_COHERE_HEADERS = ("x-client-name", "x-fern-language", "x-fern-sdk-name")


def route_of(path: str, headers: Mapping[str, str]) -> Route | None:
    """Return the route of a path; None where nothing is posted to it.

    ``/v1/rerank`` is Jina's and Cohere's: there the client's own headers tell.
    """
    if path == "/v1/rerank" and is_cohere(headers):
        return COHERE_V1_RERANK
    return ROUTES.get(path)


def is_cohere(headers: Mapping[str, str]) -> bool:
    """True where headers say that a request comes from one of Cohere's own clients."""
    return any(name in headers for name in _COHERE_HEADERS)
