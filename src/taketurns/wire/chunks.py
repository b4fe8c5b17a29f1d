# SPDX-License-Identifier: Apache-2.0
"""A body in chunks: where it ends is found here, what it holds is read by llhttp.

Rules:

* A size of at most 15 hex digits, extensions of visible characters, ``CRLF`` line ends.
* llhttp reads the same bytes: where the two don't agree, the body is broken.
* Trailers are read and dropped: never made headers.
* What is no content is bounded: so many bytes, and so many for each byte of content.

Source: RFC 9112, section 7.1.
"""

import re

import httptools

from taketurns.errors import RequestError

FRAMING_BYTES_MAX = 16 * 1024
FRAMING_RATIO_MAX = 8
"""So many bytes of a body in chunks may be no content (sizes, extensions), and so many for each
byte of content: the smallest chunk has six bytes for one."""

_EXTENSION = rb"(?:;[\t\x20-\x7e\x80-\xff]*+)?"
_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_FIELD = _NAME + rb":[\t\x20-\x7e\x80-\xff]*+"

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15}+)" + _EXTENSION + rb"\r\n")
_END = re.compile(rb"\r\n")
_TRAILER = re.compile(rb"((?:" + _FIELD + rb")?)\r\n")

_BEGUN = {
    _SIZE: re.compile(rb"[0-9A-Fa-f]{1,15}+(?:" + _EXTENSION + rb"\r?)"),
    _END: re.compile(rb"\r"),
    _TRAILER: re.compile(rb"(?:" + _NAME + rb"|(?:" + _FIELD + rb")?\r?)"),
}
"""What each line is before its end came."""

_HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Chunks:
    """Reads one body; feed it in the order in which bytes arrived.

    Attributes:
        done: The body came whole.
    """

    __slots__ = (
        "_complete",
        "_content_bytes",
        "_left",
        "_line",
        "_parser",
        "_pieces",
        "_raw_bytes",
        "_read_bytes",
        "done",
    )

    def __init__(self) -> None:
        self.done = False
        self._raw_bytes = self._content_bytes = 0
        # Bytes of content to come, and what line is next after them.
        self._left = 0
        self._line = _SIZE
        # What llhttp makes of the same bytes.
        self._pieces: list[bytes] = []
        self._read_bytes = 0
        self._complete = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_HEAD)

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the content in what came, and what is left: half a line, or the next request.

        What is left comes again, before what arrives next.

        Raises:
            RequestError: 400; nothing that follows can be read.
        """
        end = self._walk(data)
        self._raw_bytes += end
        pieces: list[bytes] = []
        self._pieces = pieces
        try:
            self._parser.feed_data(data[:end])
        except httptools.HttpParserError:
            raise broken("it is not in chunks as RFC 9112 has them") from None
        content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._read_bytes += len(content)
        if self._complete != self.done or self._read_bytes != self._content_bytes:
            raise broken("its chunks can be read in two ways")
        return content, data[end:]

    def _walk(self, data: bytes) -> int:
        """Return where whole lines and content end."""
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._left:
                step = min(self._left, size - at)
                at += step
                self._left -= step
                self._content_bytes += step
                continue
            line = self._line.match(data, at)
            self._check_framing(self._raw_bytes + (size if line is None else line.end()))
            if line is None:
                if not _BEGUN[self._line].fullmatch(data, at):
                    raise broken("a line between its chunks is not as RFC 9112 has it")
                break
            at = line.end()
            self._take(line)
        return at

    def _take(self, line: re.Match[bytes]) -> None:
        if self._line is _END:
            self._line = _SIZE
        elif self._line is _TRAILER:
            self.done = not line[1]
        else:
            self._left = int(line[1], 16)
            self._line = _END if self._left else _TRAILER

    def _check_framing(self, raw_bytes: int) -> None:
        if raw_bytes > FRAMING_BYTES_MAX + FRAMING_RATIO_MAX * self._content_bytes:
            raise broken("its chunks have too little content")

    # What follows is called by the parser.

    def on_body(self, data: bytes) -> None:
        """Keep a piece of content."""
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """Note that it's whole."""
        self._complete = True


def broken(fault: str) -> RequestError:
    """Return the refusal of a body that can't be read."""
    return RequestError(400, "broken_body", f"The body is broken: {fault}.")
