# SPDX-License-Identifier: Apache-2.0
"""The event reader finds every payload, whatever the line ends and the cuts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.wire.sse import SseReader

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
    "late byte order mark": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
    "UTF-8": ("data: für 東京 🚆\n\n".encode(), ["für 東京 🚆".encode()]),
    "not UTF-8": (b"data: \xff\xfe\n\n", [b"\xff\xfe"]),
    "without end": (b"data: a\n\ndata: b\n", [b"a"]),
    "amid a line": (b"data: a\n\ndata: b", [b"a"]),
    "nothing": (b"", []),
}


def read(*pieces: bytes, event_bytes_max: int = 1024) -> tuple[list[bytes], int]:
    reader = SseReader(event_bytes_max)
    payloads = [payload for piece in pieces for payload in reader.feed(piece)]
    return payloads, reader.oversized


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_its_payloads(name: str) -> None:
    data, payloads = STREAMS[name]

    assert read(data) == (payloads, 0)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_at_any_two_positions_gives_the_same(name: str) -> None:
    data, payloads = STREAMS[name]

    for first in range(len(data) + 1):
        for second in range(first, len(data) + 1):
            pieces = data[:first], data[first:second], data[second:]
            assert read(*pieces) == (payloads, 0), (first, second)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_byte_by_byte_gives_the_same(name: str) -> None:
    data, payloads = STREAMS[name]

    assert read(*[data[i : i + 1] for i in range(len(data))]) == (payloads, 0)


def test_a_payload_is_there_as_soon_as_its_blank_line_came() -> None:
    reader = SseReader()

    assert reader.feed(b"data: a\n") == []
    assert reader.feed(b"\n") == [b"a"]
    assert reader.feed(b"data: b\r\n\r") == [b"b"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_the_end_gives_a_payload_that_lacks_only_its_blank_line(end: bytes) -> None:
    reader = SseReader()

    assert reader.feed(b"data: [DONE]" + end) == []

    assert reader.finish() == [b"[DONE]"]
    assert reader.finish() == []


def test_the_end_of_a_whole_stream_gives_nothing_more() -> None:
    reader = SseReader()
    reader.feed(b"data: a\n\n")

    assert reader.finish() == []


def test_an_event_too_large_is_dropped_and_the_next_is_read() -> None:
    large = b"data: " + b"x" * 100 + b"\n\n"
    stream = b"data: a\n\n" + large + b"data: b\n\n"

    for size in (1, 7, 50, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert read(*pieces, event_bytes_max=64) == ([b"a", b"b"], 1), size


def test_an_event_of_many_lines_too_large_is_dropped_once() -> None:
    stream = b"data: " + b"\ndata: ".join([b"x" * 20] * 20) + b"\n\ndata: b\n\n"

    for size in (1, 7, 50, len(stream)):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert read(*pieces, event_bytes_max=64) == ([b"b"], 1), size


def test_a_line_without_end_is_not_held() -> None:
    reader = SseReader(event_bytes_max=64)

    for _ in range(1000):
        reader.feed(b"x" * 64)

    assert reader.oversized == 1
    assert len(reader._line) <= 64


def test_comments_between_events_never_add_up_to_an_event_too_large() -> None:
    pieces = [b": ping\n"] * 100

    assert read(*pieces, b"data: a\n\n", event_bytes_max=32) == ([b"a"], 0)


LINES = st.sampled_from(
    [b"data: a", b"data:bb", b"data", b"", b": c", b"event: x", b"data: " + b"y" * 9]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(
    lines=st.lists(st.tuples(LINES, ENDS), max_size=12),
    cuts=st.lists(st.integers(0, 120), max_size=4),
)
def test_no_cut_changes_what_is_read(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *[min(cut, len(stream)) for cut in cuts]})

    pieces = [stream[a:b] for a, b in pairwise(places)]

    assert read(*pieces, event_bytes_max=14) == read(stream, event_bytes_max=14)
