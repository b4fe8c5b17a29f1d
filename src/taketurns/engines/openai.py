# SPDX-License-Identifier: Apache-2.0
"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, TGI and others."""

import asyncio
import base64
import binascii
import contextlib
import math
import ssl
import sys
from array import array
from collections.abc import Sequence

import msgspec

from taketurns.engines.client import CONNECTIONS_MAX, IDLE_S, HttpClient, parse_base_url
from taketurns.engines.connection import Answer
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineUnavailableError,
    StartError,
)
from taketurns.ports.engine import EmbedAnswer, EmbedCall, EngineLimits, GenerationCall

REFUSAL_BYTES_MAX = 64 * 1024
"""How much of an error's body is kept."""

DECODE_IN_THREAD_BYTES = 64 * 1024
"""JSON larger than this is decoded in a thread, so that the loop isn't held up."""

_HEADS_MAX = 64


class _Vector(msgspec.Struct):
    index: int
    embedding: str | list[float]


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Embeddings(msgspec.Struct):
    data: list[_Vector]
    usage: _Usage | None = None


def _float32(embedding: str | list[float]) -> bytes:
    """Return a vector as little-endian float32 bytes; raises ``ValueError`` where it can't be."""
    if isinstance(embedding, str):
        # validate=True: otherwise what isn't base64 would be skipped in silence.
        data = base64.b64decode(embedding, validate=True)
        if len(data) % 4:
            raise ValueError("the length of a vector in base64 is no multiple of 4 bytes")
        numbers = array("f", data)
        if sys.byteorder == "big":
            numbers.byteswap()
    else:
        numbers = array("f", embedding)
    if not numbers:
        raise ValueError("a vector is empty")
    # Doubles can't overflow on a sum of float32, so only what isn't finite spoils it.
    if not math.isfinite(sum(numbers)):
        raise ValueError("a vector holds a number that isn't finite")
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def decode_embeddings(body: bytes, count: int) -> EmbedAnswer:
    """Decode and check an answer to ``/v1/embeddings``; its vectors are put in order.

    Args:
        body: JSON, with vectors in base64 or as numbers.
        count: How many vectors it must have.

    Raises:
        ValueError: The body isn't such an answer; the text says why, and quotes nothing of it.
    """
    try:
        answer = msgspec.json.decode(body, type=_Embeddings)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error
    if len(answer.data) != count:
        raise ValueError(f"{len(answer.data)} vectors came for {count} inputs")
    vectors: list[bytes | None] = [None] * count
    for item in answer.data:
        if not 0 <= item.index < count or vectors[item.index] is not None:
            raise ValueError("an index is out of range or there twice")
        try:
            vectors[item.index] = _float32(item.embedding)
        except binascii.Error as error:
            raise ValueError("a vector is not valid base64") from error
    whole = [vector for vector in vectors if vector is not None]
    if len({len(vector) for vector in whole}) != 1:
        raise ValueError("the vectors are of different lengths")
    tokens = answer.usage.prompt_tokens if answer.usage is not None else None
    if tokens is not None and tokens < 0:
        tokens = None
    return EmbedAnswer(vectors=whole, tokens=tokens)


class OpenAiEngine:
    """Implements both ports of :mod:`taketurns.ports.engine` over an OpenAI-compatible server.

    A generation's answer is handed on whatever its status from 200 to 299 and
    400 to 599; a redirect, or a body that is compressed although that wasn't
    asked for, is an :class:`EngineBrokenError`.

    Args:
        name: Unique in its pool.
        url: Where it is, with or without the ``/v1`` at its end.
        key: Bearer key that the engine asks for, or empty.
        embed_model: The engine's own name of the model that embeds; needed by ``embed`` only.
        limits: How long it may take and how much it may send.
        connections_max: Most connections at once; at least the engine's slots.
        idle_s: How long an unused connection is kept; less than the engine keeps it.
        tls: For ``https``; None: the system's certificates.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        key: str = "",
        embed_model: str = "",
        limits: EngineLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
        idle_s: float = IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._url = url
        self._key = key
        self._embed_model = embed_model
        self._limits = limits or EngineLimits()
        self._connections_max = connections_max
        self._idle_s = idle_s
        self._tls = tls
        self._client: HttpClient | None = None
        self._head_by_route: dict[tuple[str, bool], bytes] = {}

    @property
    def name(self) -> str:
        """Unique in its pool."""
        return self._name

    @property
    def connections(self) -> int:
        """Connections at present: idle, busy and being made."""
        return 0 if self._client is None else self._client.connections

    async def start(self) -> None:
        """Check the settings; the engine itself may come later.

        Raises:
            StartError: The URL or the key can't be used.
        """
        try:
            base = parse_base_url(self._url)
            # Routes begin with /v1 themselves.
            base = base._replace(prefix=base.prefix.removesuffix("/v1"))
            client = HttpClient(
                base,
                engine=self._name,
                limits=self._limits,
                connections_max=self._connections_max,
                idle_s=self._idle_s,
                tls=self._tls,
            )
            self._build_head(client, "/v1/models", stream=False)
        except ValueError as error:
            raise StartError(
                f"engine {self._name}: its URL or key can't be used: {error}",
                hint="Write the URL as http://host:port, and the key without spaces around it.",
            ) from error
        self._client = client

    async def open(self, call: GenerationCall) -> Answer:
        """Send a call and wait for the head of its answer, see the port."""
        return await self._send(call.path, call.body, call.request_id, stream=call.stream)

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        """Embed one batch, see the port."""
        count = len(call.inputs)
        if count == 0:
            raise ValueError("a batch to embed has at least one input")
        body = _embed_body(self._embed_model, call.inputs, call.dimensions)
        answer = await self._send("/v1/embeddings", body, call.request_id, stream=False)
        if answer.status >= 400:
            raise await self._refusal(answer)
        text = await answer.read(self._limits.answer_bytes_max)
        if text is None:
            raise self._broken(f"its answer is over {self._limits.answer_bytes_max} bytes")
        try:
            if len(text) > DECODE_IN_THREAD_BYTES:
                return await asyncio.to_thread(decode_embeddings, text, count)
            return decode_embeddings(text, count)
        except ValueError as error:
            raise self._broken(f"its embeddings can't be used: {error}") from error

    async def aclose(self) -> None:
        """Close every connection; what still runs breaks off."""
        if self._client is not None:
            await self._client.aclose()

    async def _send(self, path: str, body: bytes, request_id: str, *, stream: bool) -> Answer:
        client = self._client
        if client is None:
            raise EngineUnavailableError(self._name, f"engine {self._name} was not started")
        head = self._head_by_route.get((path, stream))
        if head is None:
            head = self._build_head(client, path, stream=stream)
            if len(self._head_by_route) < _HEADS_MAX:
                self._head_by_route[path, stream] = head
        answer = await client.open(head, body, (("X-Request-Id", request_id),))
        if 300 <= answer.status < 400:
            await answer.aclose()
            raise self._broken(
                f"it answered with a redirect ({answer.status}), which is not followed",
                hint="Configure the URL that the engine is found at.",
            )
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            await answer.aclose()
            raise self._broken("its answer is compressed, though that was not asked for")
        return answer

    def _build_head(self, client: HttpClient, path: str, *, stream: bool) -> bytes:
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "text/event-stream" if stream else "application/json"),
            ("User-Agent", "taketurns"),
        ]
        if self._key:
            headers.append(("Authorization", f"Bearer {self._key}"))
        return client.head("POST", path, headers)

    async def _refusal(self, answer: Answer) -> EngineRefusedError:
        body = bytearray()
        try:
            async with contextlib.aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) >= REFUSAL_BYTES_MAX:
                        break
        except EngineError:
            # The status is known; that its explanation broke off adds nothing.
            pass
        return EngineRefusedError(self._name, answer.status, bytes(body[:REFUSAL_BYTES_MAX]))

    def _broken(self, fault: str, *, hint: str = "") -> EngineBrokenError:
        return EngineBrokenError(self._name, f"engine {self._name}: {fault}", hint=hint)


def _embed_body(model: str, inputs: Sequence[str | Sequence[int]], dimensions: int | None) -> bytes:
    # base64: a third of the bytes of decimal numbers, and nothing is rounded.
    body: dict[str, object] = {"model": model, "input": inputs, "encoding_format": "base64"}
    if dimensions is not None:
        body["dimensions"] = dimensions
    return msgspec.json.encode(body)
