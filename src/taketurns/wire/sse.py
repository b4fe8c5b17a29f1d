# SPDX-License-Identifier: Apache-2.0
"""Reads the ``data:`` payloads of a server-sent event stream beside the relay, without altering it.

The reader gets a copy of what passes by, in whatever pieces it passes, and
returns each event's payload as soon as its blank line came. Bytes are never
decoded, so a character cut in two needs no care. Names, ids and retry times of
events are skipped.

Source: WHATWG HTML, section 9.2.6 (interpreting an event stream). It departs
from it in one thing: an event larger than ``event_bytes_max`` is dropped.
"""

EVENT_BYTES_MAX = 1024 * 1024
"""Largest event that is kept."""

_BOM = b"\xef\xbb\xbf"


class SseReader:
    """State of one stream; O(bytes) whatever the pieces.

    Args:
        event_bytes_max: Largest event kept, in bytes of payload and the line
            that is being read; at least 1.

    Attributes:
        oversized: Events that were dropped for their size.
    """

    __slots__ = (
        "_bytes_max",
        "_event",
        "_fresh",
        "_line",
        "_skip_lf",
        "_skipping",
        "oversized",
    )

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self.oversized = 0
        self._bytes_max = event_bytes_max
        self._line = bytearray()  # A line whose end hasn't come.
        self._event: bytearray | None = None  # Data lines so far, each with its newline.
        self._skipping = False  # The event at hand is too large: wait for its end.
        self._skip_lf = False  # The last byte was a CR: an LF right after it belongs to it.
        self._fresh = True  # No line was read yet: a byte order mark may stand here.

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and return the payloads that are complete with them, in order."""
        if (
            data.endswith(b"\n\n")
            and not (self._line or self._skip_lf or self._skipping or self._event is not None)
            and b"\r" not in data
            and len(data) <= self._bytes_max
        ):
            return self._feed_whole_events(data)
        payloads: list[bytes] = []
        self._feed_lines(data, payloads)
        return payloads

    def finish(self) -> list[bytes]:
        """Take the end of the stream and return the payload that lacks only its blank line, if any.

        A browser would drop it; some servers leave out the blank line after
        their last event.
        """
        payloads: list[bytes] = []
        self._skip_lf = False
        if self._line:
            self._feed_lines(b"\n", payloads)
        self._feed_lines(b"\n", payloads)
        return payloads

    def _feed_whole_events(self, data: bytes) -> list[bytes]:
        # What nearly every engine sends: whole events of one line each.
        payloads: list[bytes] = []
        for part in data[:-2].split(b"\n\n"):
            if part.startswith(b"data: ") and b"\n" not in part:
                self._fresh = False
                payloads.append(part[6:])
            else:
                self._feed_lines(part + b"\n\n", payloads)
        return payloads

    def _feed_lines(self, data: bytes, payloads: list[bytes]) -> None:
        if not data:
            return
        ends_with_cr = data.endswith(b"\r")
        if self._skip_lf and data.startswith(b"\n"):
            data = data[1:]
        self._skip_lf = ends_with_cr
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        for line in lines:
            if self._line:
                line = bytes(self._line) + line  # noqa: PLW2901 - the line's own beginning
                self._line.clear()
            self._take_line(line, payloads)
        self._line += rest
        self._check_size(len(self._line))
        if self._skipping:
            # One byte tells a line that was begun from a blank one.
            del self._line[1:]

    def _take_line(self, line: bytes, payloads: list[bytes]) -> None:
        if self._fresh:
            self._fresh = False
            line = line.removeprefix(_BOM)
        if not line:
            self._end_event(payloads)
            return
        self._check_size(len(line))
        if self._skipping:
            return
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        if self._event is None:
            self._event = bytearray()
        self._event += value.removeprefix(b" ")
        self._event += b"\n"

    def _check_size(self, line_bytes: int) -> None:
        event_bytes = 0 if self._event is None else len(self._event)
        if event_bytes + line_bytes > self._bytes_max and not self._skipping:
            self._skipping = True
            self.oversized += 1
            self._event = None

    def _end_event(self, payloads: list[bytes]) -> None:
        if self._event is not None:
            payloads.append(bytes(self._event[:-1]))
        self._event = None
        self._skipping = False
