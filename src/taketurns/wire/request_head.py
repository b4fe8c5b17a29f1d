# SPDX-License-Identifier: Apache-2.0
"""The head of a request: one grammar that says what it may be; all else is refused.

Rules:

* A head is accepted if the whole of it fits the grammar here and llhttp reads it too. So what
  either refuses is refused, and nothing depends on what llhttp lets pass.
* Origin-form targets, HTTP/1.0 and 1.1, ``CRLF`` line ends, no folding, no blank before a colon.
* Where a message ends is said once and in one way: one ``Content-Length`` of digits, or
  ``Transfer-Encoding: chunked`` and nothing else.
* A header that decides something is sent once; what else is repeated becomes a list.
* No error quotes what was sent: it may hold a key.

Source: RFC 9112, sections 2, 3, 5 and 6; RFC 9110, sections 5 and 7.2.
"""

import re
from typing import NamedTuple

import httptools

from taketurns.errors import RequestError

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
# Bytes above 0x7f are whatever UTF-8 makes of them, or lone surrogates.
_VALUE = r"[\t\x20-\x7e\x80-\U0010ffff]*+"
_HEAD = re.compile(
    rf"([A-Z]{{1,20}}+) (/[!\"$-~]*+) HTTP/1\.([01])\r\n((?:{_NAME}:{_VALUE}\r\n)*+)\r\n"
)
_HOST = re.compile(
    r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]++|\[[0-9A-Fa-f:.]++(?:%25[A-Za-z0-9._~-]++)?\])(?::[0-9]{0,5}+)?"
)
_LENGTH = re.compile(r"[0-9]{1,18}")

ONCE = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "content-type",
        "content-encoding",
        "content-location",
        "content-range",
        "expect",
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "x-amzn-sagemaker-custom-attributes",
        "taketurns-priority",
        "taketurns-deadline-ms",
        "user-agent",
        "etag",
        "max-forwards",
        "server",
    }
)
"""Names of headers that come once or not at all."""

LLHTTP_METHODS_REFUSED = frozenset({"CONNECT", "PRI"})
"""What begins something else than a request to this server: a tunnel, HTTP/2."""


class HeadLimits(NamedTuple):
    """How large a head may be.

    Attributes:
        head_bytes_max: Largest head, and largest header.
        headers_max: Most headers.
        target_bytes_max: Longest URL, without scheme and host.
    """

    head_bytes_max: int
    headers_max: int
    target_bytes_max: int


class Head(NamedTuple):
    """A request's head.

    Attributes:
        method: Such as ``POST``.
        path: As it was sent, not decoded, without the query.
        query: What stood behind the path's question mark.
        persistent: HTTP/1.1: chunks may be sent, and the connection is kept unless said otherwise.
        headers: Names in lower case; values of a repeated name joined by ``", "``.
        length: Bytes of the body; None: it comes in chunks.
        keep_alive: The client doesn't ask for the connection's end.
    """

    method: str
    path: str
    query: str
    persistent: bool
    headers: dict[str, str]
    length: int | None
    keep_alive: bool


class _Nothing:
    """Told of nothing: the second reader says only whether it can read."""


_NOTHING = _Nothing()


def read_head(raw: bytes, limits: HeadLimits) -> Head:
    """Read a whole head, to its empty line.

    Raises:
        RequestError: 400, 414 or 431; what follows on the connection can't be read either.
    """
    text = raw.decode("utf-8", "surrogateescape")
    fits = _HEAD.fullmatch(text)
    if fits is None:
        raise malformed("a line of its head is not as RFC 9112 has it")
    method, target, minor, block = fits.groups()
    if len(target) > limits.target_bytes_max:
        raise url_too_long()
    headers = _read_headers(block, limits.headers_max)
    persistent = minor == "1"
    _check_host(headers.get("host"), needed=persistent)
    length = _read_length(headers, persistent=persistent)
    _read_again(raw, method)
    path, _, query = target.partition("?")
    keep_alive = _keeps_alive(headers.get("connection"), persistent=persistent)
    return Head(method, path, query, persistent, headers, length, keep_alive)


def _read_headers(block: str, most: int) -> dict[str, str]:
    lines = block.split("\r\n")
    lines.pop()
    if len(lines) > most:
        raise RequestError(431, "too_many_headers", f"There are more than {most} headers.")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        name = name.lower()
        # Only these are blanks: str.strip would take other characters too.
        value = value.strip(" \t")
        if name in headers:
            if name in ONCE:
                raise malformed(f"it has more than one {name} header")
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers


def _check_host(host: str | None, *, needed: bool) -> None:
    if host is None:
        if needed:
            raise malformed("it has no Host header")
    elif not _HOST.fullmatch(host):
        raise malformed("its Host header names no host")


def _read_length(headers: dict[str, str], *, persistent: bool) -> int | None:
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if coding is None:
        if length is None:
            return 0
        if not _LENGTH.fullmatch(length):
            raise malformed("its Content-Length is no number of bytes")
        return int(length)
    if length is not None:
        raise malformed("it has both Content-Length and Transfer-Encoding")
    if not persistent:
        raise malformed("HTTP/1.0 has no Transfer-Encoding")
    # Letters of other scripts have lower case in ASCII.
    if not coding.isascii() or coding.lower() != "chunked":
        raise malformed("its Transfer-Encoding is not `chunked`")
    return None


def _keeps_alive(connection: str | None, *, persistent: bool) -> bool:
    if connection is None:
        return persistent
    options = {option.strip(" \t") for option in connection.lower().split(",")}
    return "close" not in options and (persistent or "keep-alive" in options)


def _read_again(raw: bytes, method: str) -> None:
    """Have llhttp read the head too."""
    if method in LLHTTP_METHODS_REFUSED:
        raise malformed("its method is not served")
    try:
        httptools.HttpRequestParser(_NOTHING).feed_data(raw)
    except httptools.HttpParserUpgrade:
        # It would read on in another protocol. Nothing here is ever upgraded to.
        pass
    except httptools.HttpParserError:
        raise malformed("its head can't be read") from None


def malformed(fault: str) -> RequestError:
    """Return the refusal of a request that is no HTTP.

    Args:
        fault: What is wrong, without a word of what was sent.
    """
    return RequestError(400, "malformed_http", f"The request is not proper HTTP: {fault}.")


def url_too_long() -> RequestError:
    """Return the refusal of a long URL."""
    return RequestError(414, "url_too_long", "The URL is too long.")


def head_too_large() -> RequestError:
    """Return the refusal of a large head."""
    return RequestError(431, "headers_too_large", "The head of the request is too large.")
