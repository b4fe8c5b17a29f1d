# SPDX-License-Identifier: Apache-2.0
"""Pooled HTTP/1.1 connections to one engine.

Rules:

* A request is written once. Before its first byte is handed to the transport
  every failure is an :class:`EngineUnavailableError`; from then on it is an
  :class:`EngineBrokenError` or :class:`EngineTimeoutError`, also where a kept
  connection turns out to be closed: the engine may have read the request.
* Giving up an answer before its end closes its connection, at once, and no other.
* After an answer in chunks a connection isn't used again before the engine has shown that it
  keeps such connections open: llama.cpp closes its own right after each and doesn't say so.
* Redirects are not followed; proxies of the environment are not used.
* What arrives faster than it's read is held to 64 KiB and a read of the
  transport; then reading pauses.
"""

import asyncio
import re
import ssl
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from taketurns.engines.connection import Answer, Connection
from taketurns.errors import EngineBrokenError, EngineUnavailableError
from taketurns.ports.engine import EngineLimits
from taketurns.wire.http1 import request_head

IDLE_S = 4.0
"""How long an unused connection is kept; common servers close theirs after 5 s or more."""

TRIAL_S = 1.0
"""How long a connection must stay open after an answer in chunks until the engine is trusted to
keep such connections; one that is closed sooner takes that trust away."""

REST_S = 0.005
"""How long a connection rests after an answer in chunks of an engine that is trusted."""

CONNECTIONS_MAX = 1024
"""Most connections to one engine, busy and idle."""

_HOST = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]+")
_PREFIX = re.compile(r"(/[0-9A-Za-z._~!$&'()*+,;=:@%-]+)*")


class BaseUrl(NamedTuple):
    """Where an engine is.

    Attributes:
        tls: True for ``https``.
        host: Name or address, without brackets.
        port: 1 to 65,535.
        authority: Host and port as the ``Host`` header has them.
        prefix: Path before the routes, without a slash at its end; may be empty.
    """

    tls: bool
    host: str
    port: int
    authority: str
    prefix: str


def parse_base_url(url: str) -> BaseUrl:
    """Read an engine's URL, such as ``http://10.0.0.7:8000``.

    Raises:
        ValueError: It can't be used; the text says what to write instead.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError("it must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("it holds a user or password; give the engine's key as a setting instead")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ValueError("it holds a query or fragment; only host, port and path can be given")
    host = parts.hostname or ""
    if not _HOST.fullmatch(host):
        raise ValueError("its host must be a name or an address in ASCII")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("its port must be 1 to 65535")
    prefix = parts.path.rstrip("/")
    if not _PREFIX.fullmatch(prefix) or url != url.strip():
        raise ValueError("its path holds characters that a URL can't have")
    tls = parts.scheme == "https"
    authority = f"[{host}]" if ":" in host else host
    if port is not None:
        authority = f"{authority}:{port}"
    return BaseUrl(tls, host, port or (443 if tls else 80), authority, prefix)


class HttpClient:
    """Connections to one engine, kept and used again, the latest first. For one event loop.

    Args:
        base: Where the engine is.
        engine: Its name, for errors.
        limits: How long it may take.
        connections_max: Most connections at once, busy and idle. A call beyond
            is refused, not queued: queues belong where they are fair.
        idle_s: How long an unused connection is kept; 0: not at all.
        trial_s: How long one must stay open after an answer in chunks, see ``TRIAL_S``.
        tls: For ``https``; None: the system's certificates.
    """

    def __init__(
        self,
        base: BaseUrl,
        *,
        engine: str,
        limits: EngineLimits,
        connections_max: int = CONNECTIONS_MAX,
        idle_s: float = IDLE_S,
        trial_s: float = TRIAL_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.place = f"{base.host}:{base.port}"
        self._base = base
        self._connections_max = connections_max
        self._idle_s = idle_s
        self._trial_s = trial_s
        self._keeps_after_chunks = False
        self._tls = (tls or ssl.create_default_context()) if base.tls else None
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._connecting = 0
        self._closed = False
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Connections at present: idle, busy and being made."""
        return len(self._open) + self._connecting

    @property
    def connections_idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    def head(self, method: str, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
        """Build a request's head for :meth:`open`; worth keeping where it is the same for many.

        Raises:
            ValueError: Something in it can't be sent.
        """
        return request_head(method, self._base.prefix + path, self._base.authority, headers)

    async def open(
        self, head: bytes, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """Send a request and wait for the head of its answer; cancel it to give it up.

        Args:
            head: From :meth:`head`.
            body: The body.
            headers: Headers of this request alone.

        Raises:
            EngineUnavailableError: Not one byte was sent.
            EngineTimeoutError, EngineBrokenError: Sent, and no head came.
            ValueError: A header can't be sent; nothing was.
        """
        connection = self._take_idle()
        if connection is None:
            connection = await self._connect()
        try:
            answer = connection.begin(head, body, headers)
        except BaseException:
            connection.abort(None)
            raise
        try:
            while not answer.begun():
                await answer.news()
        except BaseException:
            answer.abort()
            raise
        return answer

    async def aclose(self) -> None:
        """Close every connection; answers that aren't complete break off."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        for connection in list(self._open):
            connection.abort(EngineBrokenError(self.engine, f"{self.place}: the client was closed"))

    def _take_idle(self) -> Connection | None:
        idle = self._idle
        now_s = asyncio.get_running_loop().time() if idle else 0.0
        while idle:
            connection = idle.pop()
            if now_s - connection.idle_since_s < self._idle_s and connection.reusable():
                return connection
            self.closed_idle(connection)
            connection.abort(None)
        return None

    async def _connect(self) -> Connection:
        if self._closed:
            raise EngineUnavailableError(self.engine, f"{self.place}: the client is closed")
        if self.connections >= self._connections_max:
            raise EngineUnavailableError(
                self.engine,
                f"{self.place}: all {self._connections_max} connections are in use",
                hint="Give the engine fewer slots, or allow more connections.",
            )
        loop = asyncio.get_running_loop()
        connection = Connection(self, loop, engine=self.engine, limits=self.limits, at=self.place)
        self._connecting += 1
        try:
            async with asyncio.timeout(self.limits.connect_s):
                await loop.create_connection(
                    lambda: connection, self._base.host, self._base.port, ssl=self._tls
                )
        except BaseException as error:
            connection.abort(None)
            if isinstance(error, TimeoutError):
                fault = f"no connection within {self.limits.connect_s:g} s"
            elif isinstance(error, (OSError, UnicodeError)):
                fault = str(error)
            else:
                raise
            raise EngineUnavailableError(self.engine, f"{self.place}: {fault}") from error
        finally:
            self._connecting -= 1
        if self._closed or not connection.open:
            connection.abort(None)
            raise EngineUnavailableError(self.engine, f"{self.place}: closed before a request")
        self._open.add(connection)
        return connection

    # What follows is called by connections.

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next request; not at once after an answer in chunks."""
        if not connection.after_chunks:
            self._keep(connection)
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        if self._keeps_after_chunks:
            loop.call_later(REST_S, self._keep, connection)
        else:
            loop.call_later(self._trial_s, self._end_trial, connection)

    def closed_idle(self, connection: Connection) -> None:
        """Note that the engine closed a connection without a word since its last answer."""
        idle_s = asyncio.get_running_loop().time() - connection.idle_since_s
        if connection.after_chunks and idle_s < self._trial_s:
            self._keeps_after_chunks = False

    def forget(self, connection: Connection) -> None:
        """Drop a connection that is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _end_trial(self, connection: Connection) -> None:
        if connection.open:
            self._keeps_after_chunks = True
            self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        if not connection.open:
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(self._idle_s, self._sweep)

    def _sweep(self) -> None:
        # The list is ordered by the time of release: the oldest come first.
        self._sweep_timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._idle and self._idle[0].idle_since_s + self._idle_s <= now_s:
            self._idle[0].abort(None)
        if self._idle:
            due_s = self._idle[0].idle_since_s + self._idle_s
            self._sweep_timer = loop.call_at(due_s, self._sweep)
