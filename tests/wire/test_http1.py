# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 client gives the same facts however the network cuts an answer into pieces."""

from typing import NamedTuple

import pytest

from taketurns.wire.http1 import (
    HEAD_BYTES_MAX,
    SILENT_BYTES_MAX,
    Http1Client,
    ResponseHead,
    request_head,
)

HEAD = request_head("POST", "/v1/x", "engine:8000", [("Content-Type", "application/json")])


class Seen(NamedTuple):
    """All that the owner of a connection can know."""

    head: ResponseHead | None
    body: bytes
    done: bool
    fault: str | None
    surplus: bool
    reusable: bool


def exchange(*pieces: bytes, eof: bool = False) -> Seen:
    client = Http1Client()
    client.send(HEAD, b"{}")
    body = b"".join(part for piece in pieces for part in client.receive(piece))
    if eof:
        client.receive_eof()
    return Seen(client.head, body, client.done, client.fault, client.surplus, client.reusable)


def response(*headers: str, body: bytes = b"", first: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([first, *headers, "", ""]).encode() + body


SIX = "Content-Length: 6"
CHUNKED = "Transfer-Encoding: chunked"

# name: bytes, end of the connection after them, body, done, reusable, part of the fault
ANSWERS: dict[str, tuple[bytes, bool, bytes, bool, bool, str | None]] = {
    "length": (response(SIX, body=b"abcdef"), False, b"abcdef", True, True, None),
    "empty": (response("Content-Length: 0"), False, b"", True, True, None),
    "no content": (response(first="HTTP/1.1 204 None"), False, b"", True, True, None),
    "not modified": (
        response(SIX, first="HTTP/1.1 304 Not Modified"), False, b"", True, True, None,
    ),
    "chunks": (
        response(CHUNKED, body=b"3\r\nabc\r\n3;x=y\r\ndef\r\n0\r\n\r\n"),
        False, b"abcdef", True, True, None,
    ),
    "trailers": (
        response(CHUNKED, body=b"6\r\nabcdef\r\n0\r\nX-Sum: 1\r\nX-B: 2\r\n\r\n"),
        False, b"abcdef", True, True, None,
    ),
    "close": (
        response("Connection: close", SIX, body=b"abcdef"), False, b"abcdef", True, False, None,
    ),
    "1.0": (
        response(SIX, body=b"abcdef", first="HTTP/1.0 200 OK"), False, b"abcdef", True, False, None,
    ),
    "1.0 kept": (
        response("Connection: keep-alive", SIX, body=b"abcdef", first="HTTP/1.0 200 OK"),
        False, b"abcdef", True, True, None,
    ),
    "until the end": (response(body=b"abcdef"), True, b"abcdef", True, False, None),
    "until the end, not ended": (response(body=b"abcdef"), False, b"abcdef", False, False, None),
    "interim": (
        response(first="HTTP/1.1 100 Continue")
        + response("Link: <x>", first="HTTP/1.1 103 Early Hints")
        + response(SIX, body=b"abcdef"),
        False, b"abcdef", True, True, None,
    ),
    "refusal": (
        response(SIX, first="HTTP/1.1 503 Busy", body=b"abcdef"),
        False, b"abcdef", True, True, None,
    ),
    "empty lines after": (
        response(SIX, body=b"abcdef\r\n\r\n"), False, b"abcdef", True, True, None,
    ),
    "surplus": (response(SIX, body=b"abcdefX"), False, b"abcdef", True, False, None),
    "surplus answer": (
        response(SIX, body=b"abcdef") + response(SIX, body=b"abcdef"),
        False, b"abcdef", True, False, None,
    ),
    "surplus after close": (
        response("Connection: close", SIX, body=b"abcdefX"), False, b"abcdef", True, False, None,
    ),
    "surplus after chunks": (
        response(CHUNKED, body=b"1\r\na\r\n0\r\n\r\nX"), False, b"a", True, False, None,
    ),
    "cut head": (b"HTTP/1.1 200 OK\r\nContent-Le", True, b"", False, False, "before the head"),
    "nothing": (b"", True, b"", False, False, "before the head"),
    "only interim": (
        response(first="HTTP/1.1 100 Continue"), True, b"", False, False, "before the head",
    ),
    "cut length": (response(SIX, body=b"abc"), True, b"abc", False, False, "end of the body"),
    "cut chunks": (
        response(CHUNKED, body=b"3\r\nabc\r\n"), True, b"abc", False, False, "end of the body",
    ),
    "cut chunk": (
        response(CHUNKED, body=b"9\r\nabc"), True, b"abc", False, False, "end of the body",
    ),
    "cut last chunk": (
        response(CHUNKED, body=b"1\r\na\r\n0\r\n"), True, b"a", False, False, "end of the body",
    ),
    "garbage": (b"SSH-2.0-OpenSSH_9.2\r\n", False, b"", False, False, "not valid HTTP/1.1"),
    "bad chunk size": (
        response(CHUNKED, body=b"1\r\na\r\n0x2\r\nab\r\n"),
        False, b"a", False, False, "not valid HTTP/1.1",
    ),
    "chunk too long": (
        response(CHUNKED, body=b"1\r\nab\r\n"), False, b"a", False, False, "not valid HTTP/1.1",
    ),
    "length and chunks": (
        response(SIX, CHUNKED, body=b"0\r\n\r\n"), False, b"", False, False, "not valid HTTP/1.1",
    ),
    "two lengths": (response(SIX, SIX, body=b"abcdef"), False, b"", False, False, "not valid"),
    "signed length": (response("Content-Length: +6"), False, b"", False, False, "not valid"),
    "bare LF": (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", False, b"", False, False, "not valid"),
    "folded": (response("A: b", " c", SIX), False, b"", False, False, "not valid"),
    "HTTP/2.0": (response(SIX, first="HTTP/2.0 200 OK"), False, b"", False, False, "not HTTP/1.0"),
    "upgrade": (
        response("Connection: upgrade", "Upgrade: x", first="HTTP/1.1 101 Switching"),
        False, b"", False, False, "status 101",
    ),
    "status 099": (response(SIX, first="HTTP/1.1 099 X"), False, b"", False, False, ""),
    "status 600": (response(SIX, first="HTTP/1.1 600 X"), False, b"", False, False, "status 600"),
    "compressed framing": (
        response("Transfer-Encoding: gzip, chunked"), False, b"", False, False, "transfer coding",
    ),
    "unknown coding": (
        response("Transfer-Encoding: gzip", body=b"x"), True, b"", False, False, "transfer coding",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_gives_what_is_expected_of_it(name: str) -> None:
    data, eof, body, done, reusable, fault = ANSWERS[name]

    seen = exchange(data, eof=eof)

    assert (seen.body, seen.done, seen.reusable) == (body, done, reusable)
    assert (seen.fault is None) == (fault is None)
    assert (fault or "") in (seen.fault or "")
    assert seen.surplus == name.startswith("surplus")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_cut_at_any_position_gives_the_same(name: str) -> None:
    data, eof, *_ = ANSWERS[name]
    whole = exchange(data, eof=eof)

    for position in range(len(data) + 1):
        assert exchange(data[:position], data[position:], eof=eof) == whole, position


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_byte_by_byte_gives_the_same(name: str) -> None:
    data, eof, *_ = ANSWERS[name]

    pieces = [data[i : i + 1] for i in range(len(data))]

    assert exchange(*pieces, eof=eof) == exchange(data, eof=eof)


def test_the_head_has_lower_case_names_and_joins_repeated_ones() -> None:
    seen = exchange(response("X-A: 1", "x-a: 2", "X-Empty:", SIX, body=b"abcdef"))

    assert seen.head == ResponseHead(200, {"x-a": "1, 2", "x-empty": "", "content-length": "6"})


def test_headers_of_an_interim_answer_and_trailers_are_not_kept() -> None:
    early = response("X-Early: 1", first="HTTP/1.1 103 Early Hints")
    final = response(CHUNKED, body=b"1\r\na\r\n0\r\nX-Late: 1\r\n\r\n")

    seen = exchange(early + final)

    assert seen.head == ResponseHead(200, {"transfer-encoding": "chunked"})


@pytest.mark.parametrize("interim", [False, True])
def test_a_head_of_the_largest_size_passes_and_one_byte_more_does_not(interim: bool) -> None:
    before = response("X-I: " + "i" * 9000, first="HTTP/1.1 103 Hints") if interim else b""
    frame = len(before) + len(response("X-Pad: ", SIX))
    fits = before + response("X-Pad: " + "p" * (HEAD_BYTES_MAX - frame), SIX, body=b"abcdef")
    over = before + response("X-Pad: " + "p" * (HEAD_BYTES_MAX - frame + 1), SIX, body=b"abcdef")

    for size in (len(fits), 1000, HEAD_BYTES_MAX - 1, HEAD_BYTES_MAX):
        cuts = range(0, len(over), size)
        assert exchange(*[fits[at : at + size] for at in cuts]).done
        assert "larger than" in (exchange(*[over[at : at + size] for at in cuts]).fault or "")


def test_an_endless_head_is_a_fault_before_it_is_held_whole() -> None:
    client = Http1Client()
    client.send(HEAD, b"")

    client.receive(b"HTTP/1.1 200 OK\r\nX-A: ")
    for _ in range(HEAD_BYTES_MAX // 1024):
        client.receive(b"a" * 1024)

    assert "larger than" in (client.fault or "")


@pytest.mark.parametrize("start", [b"1\r\na\r\n1;", b"1\r\na\r\n0\r\nX: "])
def test_endless_framing_without_a_body_is_a_fault(start: bytes) -> None:
    client = Http1Client()
    client.send(HEAD, b"")

    client.receive(response(CHUNKED, body=start))
    for _ in range(SILENT_BYTES_MAX // 1024 + 1):
        client.receive(b"a" * 1024)

    assert "without a piece of body" in (client.fault or "")


def test_a_request_counts_as_sent_from_the_moment_it_is_handed_out() -> None:
    client = Http1Client()
    assert not client.sent

    data = client.send(HEAD, b"{}", [("X-Request-Id", "r1")])

    assert client.sent
    assert data == (
        b"POST /v1/x HTTP/1.1\r\nHost: engine:8000\r\nAccept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nX-Request-Id: r1\r\nContent-Length: 2\r\n\r\n{}"
    )


def test_a_request_that_cannot_be_sent_does_not_count_as_sent() -> None:
    client = Http1Client()

    with pytest.raises(ValueError, match="X-Request-Id"):
        client.send(HEAD, b"", [("X-Request-Id", "a\r\nX-Evil: 1")])

    assert not client.sent
    assert client.reusable


def test_a_connection_takes_many_requests_one_after_the_other() -> None:
    client = Http1Client()
    for body in (b"abcdef", b"ghijkl", b"mnopqr"):
        client.send(HEAD, b"")
        assert client.receive(response(SIX, body=body)) == [body]
        assert client.done
        assert client.reusable


def test_a_second_request_amid_an_answer_is_refused() -> None:
    client = Http1Client()
    client.send(HEAD, b"")
    client.receive(response(SIX, body=b"abc"))

    with pytest.raises(RuntimeError):
        client.send(HEAD, b"")


def test_bytes_before_any_request_make_a_connection_unusable() -> None:
    client = Http1Client()

    assert client.receive(response(SIX, body=b"abcdef")) == []

    assert client.surplus
    assert not client.reusable


def test_the_end_of_an_idle_connection_makes_it_unusable_without_a_fault() -> None:
    client = Http1Client()
    client.send(HEAD, b"")
    client.receive(response(SIX, body=b"abcdef"))

    client.receive_eof()

    assert client.fault is None
    assert not client.reusable


@pytest.mark.parametrize(
    "header",
    [
        ("Host", "evil"),
        ("Content-Length", "1"),
        ("transfer-encoding", "chunked"),
        ("Connection", "close"),
        ("Expect", "100-continue"),
        ("X A", "1"),
        ("X-A:", "1"),
        ("", "1"),
        ("X-A", "1\r\nX-B: 2"),
        ("X-A", "1\n"),
        ("X-A", "\x00"),
        ("X-A", "é"),
    ],
)
def test_a_header_that_would_change_the_framing_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="header"):
        request_head("POST", "/", "engine", [header])


def test_the_value_of_a_refused_header_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="Authorization") as caught:
        request_head("POST", "/", "engine", [("Authorization", "Bearer secret\n")])

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "target", "host"),
    [
        ("HEAD", "/", "engine"),
        ("post", "/", "engine"),
        ("GET /", "/", "engine"),
        ("GET", "v1", "engine"),
        ("GET", "/a b", "engine"),
        ("GET", "/a\r\nX: y", "engine"),
        ("GET", "/é", "engine"),
        ("GET", "/", ""),
        ("GET", "/", "engine\r\nX: y"),
        ("GET", "/", "user@engine"),
    ],
)
def test_a_request_line_that_is_not_one_is_refused(method: str, target: str, host: str) -> None:
    with pytest.raises(ValueError, match="can't be sent"):
        request_head(method, target, host, [])
