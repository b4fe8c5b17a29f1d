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
        "unread",
    )

    def __init__(self, limits: HeadLimits) -> None:
        self.unread = b""
        self.done = True
        self.broken = False
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
        try:
            return None if self._last else self._read_head()
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
            try:
                content, self.unread = self._chunks.read(data)
            except RequestError:
                self.drop()
                raise
            self.done = self._chunks.done
            return content
        left = self._left
        content = data if len(data) <= left else data[:left]
        self.unread = data[len(content) :]
        self._left = left - len(content)
        self.done = not self._left
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
        head = read_head(data[: end + 4], self._limits)
        self.unread = data[end + 4 :]
        self._looked = self._blank_lines = 0
        self._last = not head.keep_alive
        self._left = head.length or 0
        self._chunks = Chunks() if head.length is None else None
        self.done = head.length == 0
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
