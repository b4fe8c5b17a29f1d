# SPDX-License-Identifier: Apache-2.0
"""Cuts a server-sent event stream at its events, without altering a byte, and reads their data.

Bytes are never decoded, so a character cut in two needs no care. Only whole
events are handed on: between two of them something else may be sent, such as a
comment, or an error where the stream breaks off.

Source: WHATWG HTML, section 9.2.6 (interpreting an event stream).
"""

EVENT_BYTES_MAX = 1024 * 1024
"""Largest event that is waited for."""

_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
"""How an event ends, whatever the engine's line ends; ``\\r\\n\\r\\n`` ends in the second."""

_LONGEST = 3

_BOM = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """An event is larger than one is waited for."""


class EventCutter:
    """State of one stream; O(bytes) whatever the pieces.

    Args:
        event_bytes_max: Largest event that is waited for, at least 1.
    """

    __slots__ = ("_bytes_max", "_rest")

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._bytes_max = event_bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return those of all events that are whole with them.

        Raises:
            EventTooLargeError: An event is larger than ``event_bytes_max``.
        """
        rest = self._rest
        if not rest and data.endswith(b"\n\n"):
            # What nearly every engine sends.
            return data
        searched = max(0, len(rest) - _LONGEST + 1)
        rest += data
        end = 0
        for blank_line in _BLANK_LINES:
            at = rest.rfind(blank_line, searched)
            if at >= 0:
                end = max(end, at + len(blank_line))
        whole = bytes(rest[:end])
        del rest[:end]
        if len(rest) > self._bytes_max:
            raise EventTooLargeError(f"an event is larger than {self._bytes_max} bytes")
        return whole

    def finish(self) -> bytes:
        """Take the end of the stream, and return what came after the last whole event.

        A browser would drop it; some servers leave out the blank line after
        their last event.
        """
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


def split(events: bytes) -> list[bytes]:
    """Return each event with the blank line that ends it; joined they are ``events`` again."""
    parts = []
    start = 0
    while start < len(events):
        ends = [
            at + len(blank_line)
            for blank_line in _BLANK_LINES
            if (at := events.find(blank_line, start)) >= 0
        ]
        end = min(ends, default=len(events))
        parts.append(events[start:end])
        start = end
    return parts


def payloads(events: bytes) -> list[bytes]:
    """Return the data of each event in ``events``, in order; those without data are left out.

    Args:
        events: Whole events; the last may lack its blank line.
    """
    if b"\r" in events:
        events = events.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found = []
    for event in events.removeprefix(_BOM).split(b"\n\n"):
        if event.startswith(b"data: ") and b"\n" not in event:
            found.append(event[6:])
            continue
        lines = [
            value.removeprefix(b" ")
            for name, _, value in (line.partition(b":") for line in event.split(b"\n"))
            if name == b"data"
        ]
        if lines:
            found.append(b"\n".join(lines))
    return found


class SseReader:
    """Reads the data of events off a stream in pieces; state of one stream."""

    __slots__ = ("_cutter",)

    def __init__(self) -> None:
        self._cutter = EventCutter()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of all events that are whole with the next bytes."""
        return payloads(self._cutter.feed(data))

    def finish(self) -> list[bytes]:
        """Return the data of an event that lacks only its blank line, if there is one."""
        return payloads(self._cutter.finish())
