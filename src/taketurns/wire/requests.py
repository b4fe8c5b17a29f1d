# SPDX-License-Identifier: Apache-2.0
"""The server's side of one HTTP/1.1 connection, without sockets and without a loop.

Rules:

* Bytes in, requests out: feed what arrived, then read a head, then its body, then the next head.
* One request at a time: what a client sends ahead is kept as it came until then.
* After an error nothing is read any more, nor after a request that ends the connection.
* How the bytes were cut into pieces by the network changes nothing.
"""

import re

from taketurns.errors import RequestError
from taketurns.wire.chunks import Chunks, broken
from taketurns.wire.request_head import (
    Head,
    HeadLimits,
    head_too_large,
    malformed,
    read_head,
    url_too_long,
)

BLANK_LINES_MAX = 2
"""Empty lines that may come before a request: some clients end a body with one."""

CHUNKS_AT_ONCE_BYTES = 32 * 1024
"""How much of a body in chunks is read in one call: the smallest take some 10 ms."""

_NEVER = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r[^\n]")
"""What no head has, wherever it ends."""


class RequestReader:
    """Reads requests from one connection.

    Args:
        limits: How large heads may be.

    Attributes:
        unread: What came, and belongs to nothing yet that was read.
        done: The body of the request at hand was read to its end.
        broken: What came can't be read; nothing is read after it.
        more: More of the body is here than was read in one call.
    """

    __slots__ = (
        "_blank_lines",
        "_chunks",
        "_last",
        "_left",
        "_limits",
        "_looked",
        "broken",
        "done",
        "more",
        "unread",
    )

    def __init__(self, limits: HeadLimits) -> None:
        self.unread = b""
        self.done = True
        self.broken = False
        self.more = False
        self._limits = limits
        self._last = False
        self._left = 0
        self._chunks: Chunks | None = None
        self._looked = 0
        self._blank_lines = 0

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        self.unread = self.unread + data if self.unread else data

    def drop(self) -> None:
        """Forget what came, and read nothing any more."""
        self.unread = b""
        self.broken = True

    def read_head(self) -> Head | None:
        """Return the next request's head; None where it's not here yet, or can't follow.

        Raises:
            RequestError: 400, 414 or 431.
        """
        assert self.done, "a body comes before the next head"
        if self.broken:
            raise malformed("what came before it could not be read")
        if self._last:
            return None
        try:
            return self._read_head()
        except RequestError:
            self.drop()
            raise

    def read_body(self) -> bytes:
        """Return what has come of the body since the last call.

        Raises:
            RequestError: 400: its chunks are broken.
        """
        if self.done:
            return b""
        if self.broken:
            raise broken("what came of it could not be read")
        data = self.unread
        if self._chunks is not None:
            return self._read_chunks(self._chunks, data)
        left = self._left
        if len(data) <= left:
            # A body that came with its head isn't copied again.
            content, self.unread = data, b""
        else:
            content, self.unread = data[:left], data[left:]
        self._left = left = left - len(content)
        self.done = not left
        return content

    def _read_chunks(self, chunks: Chunks, data: bytes) -> bytes:
        try:
            content, rest = chunks.read(data[:CHUNKS_AT_ONCE_BYTES])
        except RequestError:
            self.drop()
            raise
        later = data[CHUNKS_AT_ONCE_BYTES:]
        self.unread = rest + later
        self.done = chunks.done
        self.more = bool(later) and not self.done
        return content

    def _read_head(self) -> Head | None:
        if self.unread[:1] == b"\r":
            self._skip_blank_lines()
        data = self.unread
        end = data.find(b"\r\n\r\n", max(0, self._looked - 3))
        most = self._limits.head_bytes_max
        if end < 0 or end > most:
            self._check_unfinished(data)
            if len(data) > most:
                raise head_too_large() if b"\r\n" in data[:most] else url_too_long()
            return None
        end += 4
        head = read_head(data[:end], self._limits)
        length = head.length
        self.unread = data[end:]
        self._looked = self._blank_lines = 0
        self._last = not head.keep_alive
        self._left = length or 0
        self._chunks = Chunks() if length is None else None
        self.done = length == 0
        return head

    def _skip_blank_lines(self) -> None:
        while self.unread[:2] == b"\r\n":
            self._blank_lines += 1
            if self._blank_lines > BLANK_LINES_MAX:
                raise malformed("empty lines come before it")
            self.unread = self.unread[2:]
            self._looked = 0

    def _check_unfinished(self, data: bytes) -> None:
        """Refuse at once what can't become a head, rather than wait for its end."""
        looked = self._looked
        found = _NEVER.search(data, looked, self._limits.head_bytes_max)
        if found is not None:
            raise malformed("its head holds control characters or bare line ends")
        # A carriage return at the end may yet get its line feed.
        self._looked = max(0, len(data) - 1)
