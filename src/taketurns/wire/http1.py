# SPDX-License-Identifier: Apache-2.0
"""The client's side of one HTTP/1.1 connection, without sockets and without a loop.

Rules:

* Bytes in, facts out. The owner writes what :meth:`Http1Client.send` returns,
  hands in what arrives, and looks at ``head``, ``done`` and ``fault`` after each.
* A request counts as sent as soon as ``send`` returned, since from then on
  nobody can tell whether the engine saw a part of it.
* One request at a time; no pipelining, no upgrade, no ``HEAD``.
* A response is strict or it is a fault: llhttp's defaults, HTTP/1.0 and 1.1
  only, a head of at most 32 KiB, and an end that was announced is an end that
  must come. Interim (1xx) answers are skipped and count towards the head's size.
* How the bytes were cut into pieces by the network changes nothing.

Source: RFC 9112 (framing, section 6; connection reuse, section 9), RFC 9110.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import httptools

HEAD_BYTES_MAX = 32 * 1024
"""Largest head of an answer, its interim answers included."""

SILENT_BYTES_MAX = 32 * 1024
"""Most bytes of chunk extensions or trailers in a row that bring no piece of the body."""

_METHOD = re.compile(r"[A-Z]{3,10}")
_TARGET = re.compile(r"/[!-~]*")
_HOST = re.compile(r"[0-9A-Za-z._\-\[\]:%]+")
_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t -~]*")

_OWN_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "accept-encoding",
        "connection",
        "te",
    }
    | {"upgrade", "expect", "trailer", "keep-alive", "proxy-connection"}
)

_VERSIONS = frozenset({"1.0", "1.1"})
_STATUSES_WITHOUT_BODY = frozenset({204, 304})


class ResponseHead(NamedTuple):
    """The final head of an answer.

    Attributes:
        status: 200 to 599.
        headers: Names in lower case; values of a repeated name joined by ``", "``.
    """

    status: int
    headers: dict[str, str]


@lru_cache(64)
def _may_be_sent(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name.lower() not in _OWN_HEADERS


def _header_line(name: str, value: str) -> str:
    if not _may_be_sent(name):
        raise ValueError(f"header name can't be sent: {name[:64]!r}")
    if not _VALUE.fullmatch(value):
        # The value may be a secret: it is not repeated.
        raise ValueError(f"value of header {name} holds a control or non-ASCII character")
    return f"{name}: {value}\r\n"


def request_head(method: str, target: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Build the part of a head that is the same for many requests.

    Args:
        method: Such as ``POST``.
        target: Path and query as they are sent, beginning with ``/``.
        host: Host and port of the engine as configured, never what a client sent.
        headers: Further headers; those that frame a message are refused.

    Raises:
        ValueError: Something in it can't be sent as it is.
    """
    if not _METHOD.fullmatch(method) or method == "HEAD":
        raise ValueError(f"method can't be sent: {method[:16]!r}")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"request target can't be sent: {target[:64]!r}")
    if not _HOST.fullmatch(host):
        raise ValueError(f"host can't be sent: {host[:64]!r}")
    lines = "".join(_header_line(name, value) for name, value in headers)
    text = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: identity\r\n{lines}"
    return text.encode("ascii")


class Http1Client:
    """One connection's state; feed it in the order in which bytes arrived.

    Attributes:
        sent: A request was handed out to be written, whole or not.
        head: Final head of the answer, or None before it came.
        done: The answer came whole.
        fault: Why the answer can't be read, a clause without a full stop; None
            while all is well. Nothing can be done with the connection after it.
        surplus: Bytes came that nobody asked for. The answer stands, the
            connection can't be used again.
    """

    __slots__ = (
        "_headers",
        "_headroom",
        "_keep_alive",
        "_parser",
        "_pieces",
        "_silent",
        "_until_eof",
        "done",
        "fault",
        "head",
        "sent",
        "surplus",
    )

    def __init__(self) -> None:
        self.sent = False
        self.head: ResponseHead | None = None
        self.done = False
        self.fault: str | None = None
        self.surplus = False
        self._headers: dict[str, str] = {}
        self._headroom = HEAD_BYTES_MAX
        self._keep_alive = True
        self._until_eof = False
        self._silent = 0
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    @property
    def reusable(self) -> bool:
        """Whether another request may be sent: nothing is under way and the peer keeps it open."""
        return (
            self._keep_alive
            and not self.surplus
            and self.fault is None
            and (self.done or not self.sent)
        )

    def send(self, head: bytes, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
        """Return a whole request to be written; from here on it counts as sent.

        Args:
            head: From :func:`request_head`.
            body: The body; may be empty.
            headers: Headers of this request alone.

        Raises:
            ValueError: A header can't be sent as it is; nothing counts as sent.
            RuntimeError: The connection isn't reusable.
        """
        if not self.reusable:
            raise RuntimeError("a request on a connection that can't take one")
        own = ""
        for name, value in headers:
            own += _header_line(name, value)
        tail = f"{own}Content-Length: {len(body)}\r\n\r\n".encode("ascii")
        self.sent = True
        self.done = False
        self.head = None
        self._headroom = HEAD_BYTES_MAX
        self._silent = 0
        self._until_eof = False
        return head + tail + body

    def receive(self, data: bytes) -> list[bytes]:
        """Take bytes that arrived and return the pieces of the body in them, in order.

        Afterwards ``head``, ``done``, ``fault`` and ``surplus`` are up to date;
        pieces that came before a fault are still returned.
        """
        if self.done or not self.sent:
            # llhttp skips empty lines before a status line, and so must this,
            # or it would matter whether they came with the end or after it.
            if data.strip(b"\r\n"):
                self.surplus = True
            return []
        if self.fault is not None:
            return []
        pieces: list[bytes] = []
        self._pieces = pieces
        try:
            if self.head is None and len(data) > self._headroom:
                self._feed_head(data)
            elif self.head is None:
                self._headroom -= len(data)
                self._parser.feed_data(data)
            else:
                self._parser.feed_data(data)
                if pieces:
                    self._silent = 0
                elif not self.done:
                    self._count_silence(len(data))
        except httptools.HttpParserError as error:
            self._stop(error)
        return pieces

    def receive_eof(self) -> None:
        """Take the end of the peer's bytes. A fault, unless the end of the body is marked by it."""
        self._keep_alive = False
        if not self.sent or self.done or self.fault is not None:
            return
        if self.head is None:
            self.fault = "the connection was closed before the head of an answer"
        elif self._until_eof:
            self.done = True
        else:
            self.fault = "the connection was closed before the end of the body"

    def _feed_head(self, data: bytes) -> None:
        room = self._headroom
        # The bytes beyond the limit may be a body's; only the parser can tell.
        self._headroom = 0
        self._parser.feed_data(data[:room])
        if self.head is None:
            self.fault = f"the head of the answer is larger than {HEAD_BYTES_MAX} bytes"
        else:
            self._parser.feed_data(data[room:])

    def _count_silence(self, length: int) -> None:
        self._silent += length
        if self._silent > SILENT_BYTES_MAX:
            self.fault = f"more than {SILENT_BYTES_MAX} bytes of framing without a piece of body"

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        """Begin an answer, interim or final; a second final one is surplus."""
        if self.done:
            raise ValueError("bytes after the end of the answer")
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are dropped."""
        if self.head is not None:
            return
        headers = self._headers
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """Decide how the body is framed; an interim head is forgotten."""
        parser = self._parser
        status = parser.get_status_code()
        headers = self._headers
        if parser.get_http_version() not in _VERSIONS:
            self._refuse("the answer is not HTTP/1.0 or 1.1")
        if status < 200:
            if status == 101 or status < 100:
                self._refuse(f"the answer has status {status}")
            return
        if status > 599:
            self._refuse(f"the answer has status {status}")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            self._refuse("the answer has a transfer coding other than chunked")
        self._until_eof = (
            coding is None
            and "content-length" not in headers
            and status not in _STATUSES_WITHOUT_BODY
        )
        self._keep_alive = parser.should_keep_alive()
        self.head = ResponseHead(status, headers)

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """End the answer, unless it was an interim one."""
        if self.head is not None:
            self.done = True

    def _stop(self, error: httptools.HttpParserError) -> None:
        if self.done:
            self.surplus = True
        else:
            self._break(f"the answer is not valid HTTP/1.1 ({error})")

    def _break(self, fault: str) -> None:
        # The first fault is the cause; what follows from it says less.
        if self.fault is None:
            self.fault = fault

    def _refuse(self, fault: str) -> None:
        self._break(fault)
        # Makes the parser stop at once.
        raise ValueError(fault)
