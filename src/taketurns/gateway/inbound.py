# SPDX-License-Identifier: Apache-2.0
"""One connection of a client, read by aiohttp: how much may come on it, and in what time.

A client that sends the head of a request byte by byte holds memory and a file
descriptor as long as it likes, and a middleware would never hear of it: so the
time is kept here, where the bytes arrive.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong

from taketurns.errors import RequestError
from taketurns.gateway.peer import Sent, write_refusal

LOG = logging.getLogger(__name__)


FRAMING_BYTES_MAX = 16 * 1024
FRAMING_RATIO_MAX = 8
"""So many bytes of a body in chunks may be no content (sizes, extensions), and so many for each
byte of content: the smallest chunk has six bytes for one."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """What clients may send.

    Attributes:
        connections_max: Most connections at once; more are answered 503.
        address_connections_max: Most of them from one address; None: as many as in all.
        head_timeout_s: From the first byte of a request's head to its last.
        body_timeout_s: From the end of the head to the end of the body.
        idle_timeout_s: How long a connection is kept on which nothing comes.
        head_bytes_max: Largest head, and largest header.
        headers_max: Most headers of a request.
        target_bytes_max: Longest URL, without scheme and host; less than ``head_bytes_max``.
    """

    connections_max: int
    address_connections_max: int | None = None
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    head_bytes_max: int = 16 * 1024
    headers_max: int = 100
    target_bytes_max: int = 8 * 1024


class FramingError(web.RequestPayloadError):
    """A body of chunks is hardly more than sizes and extensions."""


class Inbound(web.RequestHandler):
    """A connection whose malformed requests are answered in our form, and logged without a word.

    aiohttp quotes what it can't read, in its answer and in the log, and a key may be part of that.

    Args:
        manager: aiohttp's server.
        receiving: What may be sent.
        by_address: Counts connections by address; shared by all of them.

    Attributes:
        address: The client's.
        behind: The client is behind with reading.
    """

    __slots__ = (
        "_body",
        "_body_bytes",
        "_by_address",
        "_head_bytes",
        "_head_timer",
        "_receiving",
        "address",
        "behind",
    )

    def __init__(
        self, manager: web.Server, receiving: Receiving, by_address: dict[str, int]
    ) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # None is what turns it off
            keepalive_timeout=receiving.idle_timeout_s,
            max_line_size=receiving.target_bytes_max,
            max_field_size=receiving.head_bytes_max,
            max_headers=receiving.headers_max,
            auto_decompress=False,
        )
        self.address = ""
        self.behind = False
        self._receiving = receiving
        self._by_address = by_address
        self._body: StreamReader | None = None
        self._body_bytes = 0
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = address = str(peer[0]) if isinstance(peer, tuple) else ""
        count = self._by_address[address] = self._by_address.get(address, 0) + 1
        receiving = self._receiving
        most = receiving.address_connections_max
        assert self._manager is not None
        if len(self._manager.connections) > receiving.connections_max:
            self._refuse(_too_many_connections("The gateway has no connection left."))
        elif most is not None and count > most:
            self._refuse(_too_many_connections(f"Your address has {most} connections open."))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection out."""
        left = self._by_address.get(self.address, 0) - 1
        if left > 0:
            self._by_address[self.address] = left
        else:
            self._by_address.pop(self.address, None)
        self._stop_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client doesn't read as fast as it's written to."""
        super().pause_writing()
        self.behind = True

    def resume_writing(self) -> None:
        """Note that it has caught up."""
        self.behind = False
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take what came, and see that a head comes to its end."""
        body = self._body
        if body is not None and not body.is_eof():
            self._receive_body(body, data)
            return
        end = data.find(b"\r\n\r\n")
        before = self._head_bytes
        self._head_bytes = before + (len(data) if end < 0 else end)
        if self._head_bytes > self._receiving.head_bytes_max:
            one_line = before == 0 and b"\r\n" not in data[: self._receiving.head_bytes_max]
            self._refuse(_url_too_long() if one_line else _head_too_large())
            return
        count = self._request_count
        super().data_received(data)
        if self._request_count > count:
            self._head_bytes = self._body_bytes = 0
            self._body = self._messages[-1][1]
            self._stop_timer()
        elif self._head_timer is None and self._head_bytes and not self._force_close:
            self._head_timer = self._loop.call_later(
                self._receiving.head_timeout_s, self._head_late
            )

    def _receive_body(self, body: StreamReader, data: bytes) -> None:
        """Take what came of a body: what is no content is kept nowhere, but bounded all the same.

        What comes after a body that is broken is not looked at.
        """
        if isinstance(body.exception(), FramingError):
            return
        super().data_received(data)
        self._body_bytes += len(data)
        content_bytes = FRAMING_RATIO_MAX * body.total_bytes
        if not body.is_eof() and self._body_bytes > FRAMING_BYTES_MAX + content_bytes:
            body.set_exception(FramingError("its chunks have too little content"))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request
    ) -> web.StreamResponse:
        """Answer what can't be read, or what failed outside of the gateway's own border."""
        if request.writer is not None and request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        executed = "no"
        if status >= 500:
            LOG.error("a connection failed", exc_info=exc)
            told = RequestError(status, "internal_error", "The gateway failed.")
            executed = "unknown"
        else:
            LOG.info("a client sent what is no proper HTTP")
            told = self._fault(exc)
        if self.transport is None:
            raise ConnectionError("the connection is closed")
        write_refusal(self.transport, told, executed=executed)
        return cast(web.StreamResponse, Sent())

    def _fault(self, error: BaseException | None) -> RequestError:
        if isinstance(error, LineTooLong):
            if str(error.args[1]) == str(self._receiving.target_bytes_max):
                return _url_too_long()
            return _head_too_large()
        if error is not None and error.args[:1] == ("Too many headers received",):
            most = self._receiving.headers_max
            return RequestError(431, "too_many_headers", f"There are more than {most} headers.")
        return RequestError(400, "malformed_http", "The request is not proper HTTP.")

    def _head_late(self) -> None:
        self._head_timer = None
        seconds = self._receiving.head_timeout_s
        message = f"The request did not come within {seconds:g} s."
        self._refuse(RequestError(408, "head_timeout", message))

    def _refuse(self, error: RequestError) -> None:
        """Answer that nothing more is taken, and close; a request under way ends before that."""
        self._stop_timer()
        if self._request_in_progress or self._messages:
            self.close()
        elif self.transport is not None and not self._force_close:
            write_refusal(self.transport, error)
            self.force_close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _url_too_long() -> RequestError:
    return RequestError(414, "url_too_long", "The URL is too long.")


def _head_too_large() -> RequestError:
    return RequestError(431, "headers_too_large", "The head of the request is too large.")


def _too_many_connections(message: str) -> RequestError:
    return RequestError(503, "too_many_connections", message)
