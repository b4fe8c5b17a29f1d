# SPDX-License-Identifier: Apache-2.0
"""A stream is cut at its events whatever the line ends and the pieces, and no byte is lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.wire.sse import EventCutter, EventTooLargeError, payloads, split

STREAMS: dict[str, tuple[bytes, list[bytes]]] = {
    "usual": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed ends": (b"data: a\r\n\ndata: b\n\r\ndata: c\r\r\n", [b"a", b"b", b"c"]),
    "many lines": (b"data: a\ndata: b\r\ndata:\rdata: c\n\n", [b"a\nb\n\nc"]),
    "comments": (b": ping\n\n:\ndata: a\n: x\n\n: data: no\n\n", [b"a"]),
    "other fields": (b"event: delta\nid: 7\nretry: 10\ndata: a\nfoo\n\n", [b"a"]),
    "no space": (b"data:a\n\ndata:  b\n\ndata: c: d\n\n", [b"a", b" b", b"c: d"]),
    "field alone": (b"data\n\ndata\ndata\n\n", [b"", b"\n"]),
    "other names": (b"datax: a\n\nxdata: a\n\n data: a\n\nDATA: a\n\n", []),
    "blank lines": (b"\n\n\ndata: a\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [b"a", b"b"]),
    "UTF-8": ("data: für 東京 🚆\n\n".encode(), ["für 東京 🚆".encode()]),
    "not UTF-8": (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
    "nothing": (b"", []),
}


def cut(*pieces: bytes, event_bytes_max: int = 1024) -> tuple[list[bytes], bytes]:
    """Return what a stream in pieces is handed on as, and what is left."""
    cutter = EventCutter(event_bytes_max)
    return [whole for piece in pieces if (whole := cutter.feed(piece))], cutter.finish()


def read(*pieces: bytes) -> list[bytes]:
    whole, rest = cut(*pieces)
    assert b"".join(whole) + rest == b"".join(pieces)
    return [payload for part in [*whole, rest] for payload in payloads(part)]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_its_payloads(name: str) -> None:
    data, found = STREAMS[name]

    assert payloads(data) == found


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_at_any_two_positions_gives_the_same(name: str) -> None:
    data, found = STREAMS[name]

    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            assert read(data[:first], data[first:second], data[second:]) == found, (first, second)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_gives_the_same(name: str) -> None:
    data, found = STREAMS[name]

    assert read(*[data[i : i + 1] for i in range(len(data))]) == found


@pytest.mark.parametrize("name", STREAMS)
def test_events_that_are_split_join_to_what_they_were(name: str) -> None:
    data, found = STREAMS[name]
    events = split(data)

    assert b"".join(events) == data
    assert [payload for event in events for payload in payloads(event)] == found
    assert all(len(payloads(event)) <= 1 for event in events)


def test_an_event_is_handed_on_as_soon_as_its_blank_line_came_and_not_before() -> None:
    cutter = EventCutter()

    assert cutter.feed(b"data: a\n") == b""
    assert cutter.feed(b"\ndata: b\r\n\r") == b"data: a\n\n"
    assert cutter.feed(b"\n") == b"data: b\r\n\r\n"
    assert cutter.finish() == b""


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_the_end_gives_an_event_that_lacks_only_its_blank_line(end: bytes) -> None:
    cutter = EventCutter()

    assert cutter.feed(b"data: [DONE]" + end) == b""

    assert payloads(cutter.finish()) == [b"[DONE]"]
    assert cutter.finish() == b""


@pytest.mark.parametrize("size", [1, 7, 50, 200])
def test_an_event_too_large_is_not_waited_for(size: int) -> None:
    stream = b"data: a\n\ndata: " + b"x" * 100 + b"\n\n"
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]

    if size < len(stream):
        with pytest.raises(EventTooLargeError):
            cut(*pieces, event_bytes_max=64)
    else:
        assert cut(*pieces, event_bytes_max=64) == ([stream], b"")


LINES = st.sampled_from(
    [b"data: a", b"data:bb", b"data", b"", b": c", b"event: x", b"data: " + b"y" * 9]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(
    lines=st.lists(st.tuples(LINES, ENDS), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=4),
)
def test_no_byte_is_lost_or_changed_and_every_part_ends_at_an_event(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *[min(place, len(stream)) for place in cuts]})

    whole, rest = cut(*[stream[a:b] for a, b in pairwise(places)])

    assert b"".join(whole) + rest == stream
    assert all(part.endswith((b"\n\n", b"\n\r\n", b"\r\r")) for part in whole)
