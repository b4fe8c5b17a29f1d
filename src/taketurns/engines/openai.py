# SPDX-License-Identifier: Apache-2.0
"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, TGI and others."""

import ssl

from taketurns.engines.client import CONNECTIONS_MAX, IDLE_S, HttpClient, parse_base_url
from taketurns.engines.connection import Answer
from taketurns.errors import EngineBrokenError, EngineUnavailableError, StartError
from taketurns.ports.engine import EngineLimits, GenerationCall

_HEADS_MAX = 64


class OpenAiEngine:
    """Implements :class:`taketurns.ports.engine.GenerationEngine` over an OpenAI-compatible server.

    A generation's answer is handed on whatever its status from 200 to 299 and
    400 to 599; a redirect, or a body that is compressed although that wasn't
    asked for, is an :class:`EngineBrokenError`.

    Args:
        name: Unique in its pool.
        url: Where it is, with or without the ``/v1`` at its end.
        key: Bearer key that the engine asks for, or empty.
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
        limits: EngineLimits | None = None,
        connections_max: int = CONNECTIONS_MAX,
        idle_s: float = IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._url = url
        self._key = key
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
        """Do what :meth:`prepare` does."""
        self.prepare()

    def prepare(self) -> None:
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

    async def aclose(self) -> None:
        """Close every connection; what still runs breaks off."""
        if self._client is not None:
            await self._client.aclose()

    async def open(self, call: GenerationCall) -> Answer:
        """Send a call and wait for the head of its answer, see the port."""
        path, body, stream, request_id = call
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
        coding = answer.headers.get("content-encoding")
        if coding is not None and coding.lower() != "identity":
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

    def _broken(self, fault: str, *, hint: str = "") -> EngineBrokenError:
        return EngineBrokenError(self._name, f"engine {self._name}: {fault}", hint=hint)
