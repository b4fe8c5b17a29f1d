# SPDX-License-Identifier: Apache-2.0
"""How engines are asked for vectors: OpenAI's ``/v1/embeddings``, and TEI's ``/embed``.

Source: OpenAI's API reference; vLLM's and text-embeddings-inference's (TEI) own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from taketurns.engines.vectors import in_order, vectors
from taketurns.ports.engine import EmbedAnswer, EmbedCall, Truncate


class Reply(NamedTuple):
    """What a server answered: the body, and headers with lower-case names."""

    body: bytes
    headers: Mapping[str, str]


class Usage(msgspec.Struct):
    """What OpenAI-compatible engines report of the tokens they read."""

    prompt_tokens: int | None = None

    @property
    def tokens(self) -> int | None:
        """The count, or None where it can't be one."""
        known = self.prompt_tokens
        return known if known is not None and known >= 0 else None


class _Vector(msgspec.Struct):
    index: int
    embedding: msgspec.Raw


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    usage: Usage | None = None


_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class OpenAiEmbeddings:
    """``POST /v1/embeddings``.

    Attributes:
        truncates: Ends that the engine can cut off a text that is too long.
        usage: Whether its counts are tokens.
    """

    truncates: frozenset[Truncate] = frozenset()
    usage: bool = True
    path: str = "/v1/embeddings"

    def body(self, model: str, call: EmbedCall) -> bytes:
        """Write a call."""
        # base64: a third of the bytes of decimal numbers, and nothing is rounded.
        body: dict[str, object] = {
            "model": model,
            "input": call.inputs,
            "encoding_format": "base64",
        }
        if call.dimensions is not None:
            body["dimensions"] = call.dimensions
        if call.truncate in self.truncates:
            body["truncate_prompt_tokens"] = -1
        return msgspec.json.encode(body)

    async def answer(self, reply: Reply, call: EmbedCall) -> EmbedAnswer:
        """Read and check an answer; its vectors are put in order.

        Raises:
            ValueError: It isn't one; the text says why, and quotes nothing of it.
        """
        answer = _EMBEDDINGS.decode(reply.body)
        items = [(item.index, item.embedding) for item in answer.data]
        found = await vectors(in_order(items, len(call.inputs)))
        tokens = answer.usage.tokens if answer.usage is not None and self.usage else None
        return EmbedAnswer(found, tokens)


@dataclass(frozen=True, slots=True)
class TeiEmbed:
    """``POST /embed`` of text-embeddings-inference, which answers with numbers only."""

    truncates: frozenset[Truncate] = frozenset({"start", "end"})
    path: str = "/embed"

    def body(self, model: str, call: EmbedCall) -> bytes:  # noqa: ARG002 - it serves one
        """Write a call."""
        body: dict[str, object] = {"inputs": call.inputs, **tei_truncation(call.truncate)}
        if call.dimensions is not None:
            body["dimensions"] = call.dimensions
        return msgspec.json.encode(body)

    async def answer(self, reply: Reply, call: EmbedCall) -> EmbedAnswer:
        """Read and check an answer, as :meth:`OpenAiEmbeddings.answer` does."""
        parts = _RAWS.decode(reply.body)
        if len(parts) != len(call.inputs):
            raise ValueError(f"{len(parts)} results came for {len(call.inputs)} items")
        return EmbedAnswer(await vectors(parts), tei_tokens(reply.headers))


def tei_truncation(truncate: Truncate | None) -> dict[str, object]:
    """Return the fields that say whether and where TEI cuts a text."""
    if truncate is None:
        return {"truncate": False}
    direction = "Right" if truncate == "end" else "Left"
    return {"truncate": True, "truncation_direction": direction}


def tei_tokens(headers: Mapping[str, str]) -> int | None:
    """Return the tokens that TEI counted: it tells them in a header only."""
    told = headers.get("x-compute-tokens", "")
    return int(told) if told.isascii() and told.isdigit() and len(told) < 16 else None
