# SPDX-License-Identifier: Apache-2.0
"""The server's reader: strict, the same however bytes are cut, and done after the first error.

Source of the cases: RFC 9110 and 9112, and what llhttp, h11, hyper and Go have had to mend.
"""

import asyncio
import contextlib

import httptools
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given
from hypothesis import strategies as st

from taketurns.errors import RequestError
from taketurns.wire.chunks import FRAMING_BYTES_MAX
from taketurns.wire.request_head import HeadLimits
from taketurns.wire.requests import BLANK_LINES_MAX, CHUNKS_AT_ONCE_BYTES, RequestReader

LIMITS = HeadLimits(head_bytes_max=2_000, headers_max=20, target_bytes_max=500)
HOST = "Host: gateway"
CHUNKED = "Transfer-Encoding: chunked"


def request(*headers, body=b"", first="POST /v1/x HTTP/1.1"):
    return "\r\n".join([first, *headers, "", ""]).encode("latin-1") + body


def read(*pieces):
    """Return the whole requests in what came, and the code of the error that ended it, or None."""
    reader, seen, head, body = RequestReader(LIMITS), [], None, b""
    try:
        for piece in pieces:
            reader.feed(piece)
            while True:
                if head is None:
                    head, body = reader.read_head(), b""
                if head is None:
                    break
                body += reader.read_body()
                while reader.more:
                    body += reader.read_body()
                if not reader.done:
                    break
                seen.append((head, body))
                head = None
    except RequestError as error:
        assert reader.broken
        assert not reader.unread
        return seen, (error.status, error.code)
    return seen, None


NEXT = request(HOST, first="GET /next HTTP/1.1")

READ = {
    # name: (request, body)
    "no body": (request(HOST, first="GET / HTTP/1.1"), b""),
    "a length": (request(HOST, "Content-Length: 3", body=b"abc"), b"abc"),
    "a length with zeros": (request(HOST, "Content-Length: 003", body=b"abc"), b"abc"),
    "a length of nothing": (request(HOST, "Content-Length: 0"), b""),
    "a body of a GET": (
        request(HOST, "Content-Length: 3", body=b"abc", first="GET / HTTP/1.1"),
        b"abc",
    ),
    "a body like a request": (request(HOST, f"Content-Length: {len(NEXT)}", body=NEXT), NEXT),
    "chunks": (
        request(HOST, CHUNKED, body=b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"),
        b"abc0123456789",
    ),
    "chunks in any case": (
        request(HOST, "TRANSFER-ENCODING:\tChunked ", body=b"3\r\nabc\r\n0\r\n\r\n"),
        b"abc",
    ),
    "no chunk": (request(HOST, CHUNKED, body=b"0\r\n\r\n"), b""),
    "chunks like requests": (
        request(HOST, CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(NEXT), NEXT)),
        NEXT,
    ),
    "extensions": (
        request(HOST, CHUNKED, body=b'3;a;b=c;d="e"\r\nabc\r\n0;f=g\r\n\r\n'),
        b"abc",
    ),
    "trailers": (
        request(HOST, CHUNKED, body=b"3\r\nabc\r\n0\r\nX-Sum: 1\r\nAuthorization: x\r\n\r\n"),
        b"abc",
    ),
    "an empty value": (request(HOST, "X:", "Content-Length: 1", body=b"a"), b"a"),
    "a port": (request("Host: gateway:8080"), b""),
    "an IPv6 host": (request("Host: [::1]:8080"), b""),
    "an upgrade": (
        request(HOST, "Connection: Upgrade", "Upgrade: h2c", "Content-Length: 3", body=b"abc"),
        b"abc",
    ),
    "an upgrade and chunks": (
        request(
            HOST, "Connection: upgrade", "Upgrade: websocket", CHUNKED, body=b"1\r\na\r\n0\r\n\r\n"
        ),
        b"a",
    ),
    "an empty line before it": (b"\r\n" + request(HOST), b""),
    "HTTP/1.0": (request("Connection: keep-alive", first="GET / HTTP/1.0"), b""),
    "visible characters in the URL": (
        request(HOST, first="GET /!\"$%&'()*+,-./:;<=>?@[\\]^_`{|}~ HTTP/1.1"),
        b"",
    ),
    "all characters of a name": (request(HOST, "!#$%&'*+-.^_`|~09azAZ: 1"), b""),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_proper_is_read_however_it_is_cut(name):
    raw, body = READ[name]
    data = raw + NEXT
    whole = read(data)
    (_, first), (following, _) = whole[0]
    assert (first, following.path, whole[1]) == (body, "/next", None)
    for at in range(len(data) + 1):
        assert read(data[:at], data[at:]) == whole
    assert read(*[data[at : at + 1] for at in range(len(data))]) == whole


@given(st.lists(st.sampled_from(sorted(READ)), min_size=1, max_size=4), st.randoms())
def test_what_is_sent_at_once_is_read_in_order_however_it_is_cut(names, dice):
    data = b"".join(READ[name][0] for name in names)
    cuts = sorted(dice.sample(range(len(data) + 1), dice.randint(0, 8)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    seen, error = read(*pieces)
    assert error is None
    assert [body for _, body in seen] == [READ[name][1] for name in names]


def test_a_head_is_read_into_its_parts():
    ((head, _),), _ = read(
        request(
            HOST,
            "Accept: a",
            "x-Own:  1 2 \t",
            "ACCEPT:b",
            "X-\xfc: 1".replace("\xfc", "u"),
            "X-Utf: \xc3\xbc",
            "X-Not: \xff",
            first="GET /a%20b/../c?d=e?f HTTP/1.1",
        )
    )
    assert (head.method, head.path, head.query) == ("GET", "/a%20b/../c", "d=e?f")
    assert head.headers == {
        "host": "gateway",
        "accept": "a, b",
        "x-own": "1 2",
        "x-u": "1",
        "x-utf": "ü",
        "x-not": "\udcff",
    }


@pytest.mark.parametrize(
    ("version", "connection", "kept"),
    [
        ("1.1", None, True),
        ("1.1", "close", False),
        ("1.1", "keep-alive, Close", False),
        ("1.1", "closed", True),
        ("1.0", None, False),
        ("1.0", "Keep-Alive", True),
        ("1.0", "keep-alive, close", False),
    ],
)
def test_a_connection_is_kept_as_the_client_says(version, connection, kept):
    headers = [HOST] if connection is None else [HOST, f"Connection: {connection}"]
    ((head, _),), _ = read(request(*headers, first=f"GET / HTTP/{version}"))
    assert head.keep_alive is kept


@pytest.mark.parametrize("headers", [["Connection: close"], [HOST, "Connection: close"]])
def test_nothing_is_read_after_a_request_that_ends_the_connection(headers):
    last = request(*headers, first=f"GET / HTTP/1.{len(headers) - 1}")
    seen, error = read(NEXT + last + NEXT)
    assert [head.path for head, _ in seen] == ["/next", "/"]
    assert error is None


def test_a_repeated_connection_header_is_a_list():
    ((head, _),), _ = read(request(HOST, "Connection: keep-alive", "Connection: close"))
    assert not head.keep_alive


def with_line(line):
    return request(HOST, line, "Content-Length: 0")


def with_first(line):
    return request(HOST, "Content-Length: 0", first=line)


def chunked(body):
    return request(HOST, CHUNKED, body=body)


def with_length(value):
    return request(HOST, f"Content-Length: {value}", body=b"abc")


def with_coding(value, *more):
    return request(HOST, f"Transfer-Encoding:{value}", *more, body=b"3\r\nabc\r\n0\r\n\r\n")


REFUSED = {
    # Whose it is
    "no Host": request("Content-Length: 0"),
    "two Hosts": request(HOST, HOST),
    "two Hosts that differ": request(HOST, "host: b"),
    "an empty Host": request("Host:"),
    "a Host with a path": request("Host: a/b"),
    "a Host with a query": request("Host: a?b"),
    "a Host with a user": request("Host: a@b"),
    "a Host with a blank": request("Host: a b"),
    "a list of Hosts": request("Host: a, b"),
    "a Host with a port of letters": request("Host: a:b"),
    "a Host of bytes": request("Host: \xff"),
    "an invalid Host in HTTP/1.0": request("Host: a/b", first="GET / HTTP/1.0"),
    # Where it ends
    "a length and chunks": with_coding(" chunked", "Content-Length: 3"),
    "two lengths": request(HOST, "Content-Length: 3", "Content-Length: 3", body=b"abc"),
    "two lengths that differ": request(HOST, "Content-Length: 3", "content-length: 4", body=b"abc"),
    "lengths in a list": with_length("3, 3"),
    "a length with a plus": with_length("+3"),
    "a length with a minus": with_length("-3"),
    "a length in hex": with_length("0x3"),
    "a length with an underscore": with_length("0_3"),
    "a length with a fraction": with_length("3.0"),
    "an empty length": with_length(""),
    "a length in other digits": with_length("\xc2\xb3"),
    "a length over 18 digits": with_length("0" * 16 + "003"),
    "a length over 64 bits": with_length("18446744073709551619"),
    "a length with a blank within": with_length("3 3"),
    "no coding": with_coding(""),
    "identity": with_coding(" identity"),
    "gzip before chunked": with_coding(" gzip, chunked"),
    "chunked before gzip": with_coding(" chunked, gzip"),
    "chunked twice": with_coding(" chunked, chunked"),
    "chunked in two headers": with_coding(" chunked", CHUNKED),
    "chunked with a comma": with_coding(" chunked,"),
    "chunked with a parameter": with_coding(" chunked;a=b"),
    "chunked in quotes": with_coding(' "chunked"'),
    "chunked after a vertical tab": with_coding("\x0bchunked"),
    "chunked after a no-break space": with_coding(" \xc2\xa0chunked"),
    "chunked with a dotted letter": with_coding(" chun\xc5\xbfed"),
    "chunked with a Kelvin sign": with_coding(" chun\xe2\x84\xaaed"),
    "chunked in HTTP/1.0": request(CHUNKED, body=b"0\r\n\r\n", first="POST / HTTP/1.0"),
    # Lines
    "folded with a blank": with_line("X: a\r\n b"),
    "folded with a tab": with_line("X: a\r\n\tb"),
    "folded at the start": request(" X: a", HOST),
    "a bare line feed": with_line("X: a\nY: b"),
    "a bare carriage return": with_line("X: a\rY: b"),
    "bare line feeds alone": b"GET / HTTP/1.1\nHost: a\n\n",
    "a line feed for the end": b"GET / HTTP/1.1\r\nHost: a\r\n\n\r\n",
    "a NUL": with_line("X: a\0b"),
    "an escape": with_line("X: a\x1bb"),
    "a delete": with_line("X: a\x7fb"),
    "a blank before the colon": with_line("X : a"),
    "a tab before the colon": with_line("X\t: a"),
    "a name with a blank": with_line("X Y: a"),
    "a name with a bracket": with_line("X(: a"),
    "a name with a NUL": with_line("X\0: a"),
    "a name in Latin-1": with_line("X\xfc: a"),
    "a name in UTF-8": with_line("X\xc3\xbc: a"),
    "no name": with_line(": a"),
    "no colon": with_line("X"),
    # Twice
    "two keys": request(HOST, "Authorization: Bearer a", "authorization: Bearer a"),
    "two of Anthropic's keys": request(HOST, "x-api-key: a", "X-API-Key: b"),
    "two types": request(HOST, "Content-Type: a/b", "Content-Type: a/b"),
    "two codings of the content": request(HOST, "Content-Encoding: gzip", "Content-Encoding: gzip"),
    "two expectations": request(HOST, "Expect: 100-continue", "Expect: 100-continue"),
    "two priorities": request(HOST, "taketurns-priority: 1", "Taketurns-Priority: 2"),
    # First lines
    "a method in lower case": with_first("get / HTTP/1.1"),
    "an unknown method": with_first("GETS / HTTP/1.1"),
    "a method with a colon": with_first("G:T / HTTP/1.1"),
    "no method": with_first(" / HTTP/1.1"),
    "CONNECT to an authority": with_first("CONNECT a:80 HTTP/1.1"),
    "CONNECT to a path": with_first("CONNECT / HTTP/1.1"),
    "an authority": with_first("GET a:80 HTTP/1.1"),
    "another scheme": with_first("GET http://a/ HTTP/1.1"),
    "an asterisk": with_first("OPTIONS * HTTP/1.1"),
    "no slash": with_first("GET v1 HTTP/1.1"),
    "a query alone": with_first("GET ?a HTTP/1.1"),
    "a fragment": with_first("GET /#a HTTP/1.1"),
    "a blank in the URL": with_first("GET /a b HTTP/1.1"),
    "a tab in the URL": with_first("GET /a\tb HTTP/1.1"),
    "a NUL in the URL": with_first("GET /a\0b HTTP/1.1"),
    "a delete in the URL": with_first("GET /a\x7fb HTTP/1.1"),
    "bytes in the URL": with_first("GET /\xff HTTP/1.1"),
    "UTF-8 in the URL": with_first("GET /\xc3\xbc HTTP/1.1"),
    "two blanks before the URL": with_first("GET  / HTTP/1.1"),
    "two blanks after the URL": with_first("GET /  HTTP/1.1"),
    "a tab for a blank": with_first("GET\t/ HTTP/1.1"),
    "a blank at the end": with_first("GET / HTTP/1.1 "),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": with_first("GET / HTTP/0.9"),
    "HTTP/1.2": with_first("GET / HTTP/1.2"),
    "HTTP/1": with_first("GET / HTTP/1"),
    "HTTP/1.10": with_first("GET / HTTP/1.10"),
    "HTTP/01.1": with_first("GET / HTTP/01.1"),
    "HTTP/2.0": with_first("GET / HTTP/2.0"),
    "http/1.1": with_first("GET / http/1.1"),
    "another protocol": with_first("GET / ICE/1.1"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an answer": b"HTTP/1.1 200 OK\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "empty lines": b"\r\n" * (BLANK_LINES_MAX + 1) + request(HOST),
    "a blank line before it": b" \r\n" + request(HOST),
    "a line feed before it": b"\n" + request(HOST),
    "a byte order mark": b"\xef\xbb\xbf" + request(HOST),
    # Chunks
    "a size with a plus": chunked(b"+3\r\nabc\r\n0\r\n\r\n"),
    "a size with a minus": chunked(b"-3\r\nabc\r\n0\r\n\r\n"),
    "a size with 0x": chunked(b"0x3\r\nabc\r\n0\r\n\r\n"),
    "a size with an underscore": chunked(b"0_3\r\nabc\r\n0\r\n\r\n"),
    "a blank before a size": chunked(b" 3\r\nabc\r\n0\r\n\r\n"),
    "a blank after a size": chunked(b"3 \r\nabc\r\n0\r\n\r\n"),
    "no size": chunked(b"\r\nabc\r\n0\r\n\r\n"),
    "an extension and no size": chunked(b";a\r\nabc\r\n0\r\n\r\n"),
    "a size of letters": chunked(b"xyz\r\nabc\r\n0\r\n\r\n"),
    "a size over 60 bits": chunked(b"1000000000000000\r\nabc\r\n0\r\n\r\n"),
    "a size with many zeros": chunked(b"0" * 16 + b"3\r\nabc\r\n0\r\n\r\n"),
    "a size that wraps around": chunked(b"10000000000000003\r\nabc\r\n0\r\n\r\n"),
    "a bare line feed after a size": chunked(b"3\nabc\r\n0\r\n\r\n"),
    "a bare carriage return after a size": chunked(b"3\rabc\r\n0\r\n\r\n"),
    "a bare line feed after a chunk": chunked(b"3\r\nabc\n0\r\n\r\n"),
    "a chunk longer than its size": chunked(b"3\r\nabcd\r\n0\r\n\r\n"),
    "a chunk shorter than its size": chunked(b"3\r\nab\r\n0\r\n\r\n"),
    "an extension with a bare line feed": chunked(b"3;a\nb\r\nabc\r\n0\r\n\r\n"),
    "an extension with a carriage return": chunked(b"3;a\rb\r\nabc\r\n0\r\n\r\n"),
    "an extension with a NUL": chunked(b"3;a\0\r\nabc\r\n0\r\n\r\n"),
    "a line feed for the end of chunks": chunked(b"3\r\nabc\r\n0\r\n\n\r\n"),
    "a trailer that is folded": chunked(b"0\r\nX: a\r\n b\r\n\r\n"),
    "a trailer with a blank before its colon": chunked(b"0\r\nX : a\r\n\r\n"),
    "a trailer with a bare line feed": chunked(b"0\r\nX: a\nY: b\r\n\r\n"),
    "a trailer with a NUL": chunked(b"0\r\nX: \0\r\n\r\n"),
    "a trailer without a colon": chunked(b"0\r\nX\r\n\r\n"),
    "a length in a trailer": chunked(b"0\r\nContent-Length: 3\r\n\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proper_is_refused_however_it_is_cut_and_nothing_is_read_after_it(name):
    data = REFUSED[name] + NEXT * 2
    seen, error = read(data)
    assert not seen
    assert error in {(400, "malformed_http"), (400, "broken_body")}
    for at in range(len(data) + 1):
        assert read(data[:at], data[at:]) == (seen, error)
    assert read(*[data[at : at + 1] for at in range(len(data))]) == (seen, error)


LARGE = {
    "a long URL": (with_first(f"GET /{'a' * 500} HTTP/1.1"), 414),
    "a URL without an end": (b"GET /" + b"a" * 2_000, 414),
    "a large head": (request(HOST, *[f"X-{n}: {'a' * 200}" for n in range(10)]), 431),
    "a large header": (request(HOST, "X: " + "a" * 2_000), 431),
    "many headers": (request(HOST, *["X: a"] * 20), 431),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_too_large_is_refused(name):
    data, status = LARGE[name]
    for pieces in ([data], [data[at : at + 7] for at in range(0, len(data), 7)]):
        seen, error = read(*pieces)
        assert (seen, error[0]) == ([], status)


def test_what_is_at_its_bound_is_read():
    room = LIMITS.head_bytes_max - len(request(HOST, "X: ")) + len("\r\n\r\n")
    at_bounds = [
        with_first(f"GET /{'a' * 499} HTTP/1.1"),
        request(HOST, "X: " + "a" * room),
        request(HOST, *["X: a"] * 19),
    ]
    assert len(read(*at_bounds)[0]) == 3
    assert read(request(HOST, "X: " + "a" * (room + 1)))[1] == (431, "headers_too_large")


@pytest.mark.parametrize("framing", [b"1;" + b"x" * 64, b"1;" + b"x" * FRAMING_BYTES_MAX])
def test_what_is_no_content_of_a_body_is_bounded(framing):
    chunk = framing + b"\r\na\r\n"
    data = chunked(chunk * (2 * FRAMING_BYTES_MAX // len(chunk) + 2))
    assert read(data) == ([], (400, "broken_body"))
    assert read(*[data[at : at + 100] for at in range(0, len(data), 100)])[1] == (
        400,
        "broken_body",
    )


def test_a_body_of_many_chunks_is_read_in_several_calls():
    reader, size = RequestReader(LIMITS), 3 * CHUNKS_AT_ONCE_BYTES // 6
    reader.feed(request(HOST, CHUNKED, body=b"1\r\na\r\n" * size + b"0\r\n\r\n") + NEXT)
    reader.read_head()
    pieces = [reader.read_body()]
    while reader.more:
        pieces.append(reader.read_body())
    assert max(map(len, pieces)) <= CHUNKS_AT_ONCE_BYTES // 6
    assert (reader.done, sum(map(len, pieces)), reader.unread) == (True, size, NEXT)


# Fuzzed

WORDS = [
    b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b"\t", b"\0",
    b"Host", b": ", b":", b"a", b"Content-Length", b"Transfer-Encoding", b"chunked", b",", b";",
    b"0", b"1", b"3", b"abc", b"\xff", b"Upgrade", b"Connection", b"close", b"Trailer", b"\r\n\r\n",
]  # fmt: skip
PARTS = [
    b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\n", b"Host: a\r\n", b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"X: 1\r\n",
    b"\r\n", b"3\r\nabc\r\n", b"0\r\n", b"abc", b"0\r\n\r\n",
]  # fmt: skip
RAW = st.lists(
    st.sampled_from(PARTS) | st.sampled_from(WORDS) | st.binary(max_size=4), max_size=40
).map(b"".join)


@given(RAW, st.randoms())
def test_whatever_comes_is_read_or_refused_alike_however_it_is_cut(data, dice):
    cuts = sorted(dice.sample(range(len(data) + 1), dice.randint(0, min(8, len(data)))))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    whole = read(data)
    cut = read(*pieces)
    assert cut[0] == whole[0]
    assert (cut[1] is None) == (whole[1] is None)


@st.composite
def mutated(draw):
    """A request with a few bytes changed, dropped or put in."""
    data = bytearray(draw(st.sampled_from([raw for raw, _ in READ.values()])) + NEXT)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from(WORDS) | st.binary(max_size=2)
        )
    return bytes(data)


class Llhttp:
    """What llhttp alone makes of the same bytes."""

    def __init__(self):
        self.seen = []
        self._parser = httptools.HttpRequestParser(self)

    def on_message_begin(self):
        self._url = self._body = b""

    def on_url(self, url):
        self._url += url

    def on_body(self, data):
        self._body += data

    def on_message_complete(self):
        self.seen.append((self._parser.get_method(), self._url, self._body))

    def read(self, data):
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return self.seen, True
        return self.seen, False


@given(mutated() | RAW)
def test_what_is_read_is_read_by_llhttp_in_the_same_way(data):
    """No request that it would not see too, in the same place: none can be smuggled past either."""
    seen, _ = read(data)
    theirs, _ = Llhttp().read(data)
    for (head, body), other in zip(seen, theirs, strict=False):
        query = f"?{head.query}" if head.query else ""
        if "upgrade" in head.headers:
            # llhttp stops here, where we read on in HTTP.
            return
        assert (head.method.encode(), (head.path + query).encode(), body) == (
            other[0],
            other[1].rstrip(b"?") if not query else other[1],
            other[2],
        )
    assert len(seen) <= len(theirs)


def aiohttp_refuses(data):
    """Whether aiohttp's C parser refuses something of it."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(
            BaseProtocol(loop), loop, 2**16, max_line_size=500, max_headers=20, max_field_size=2_000
        )
        messages, _, _ = parser.feed_data(data)
    except HttpProcessingError:
        return True
    finally:
        loop.close()
    return any(payload.exception() is not None for _, payload in messages)


HOSTS = "a Host that is no host is an attempt on whoever routes by it"
TWICE = "readers differ in which of the two they take"
TARGETS = "the gateway has paths of its own, and is no proxy to elsewhere"
BLANKS = "one blank is what the grammar has"
DIGITS = "no body is so long, and readers differ in where they stop counting"
STRICTER_THAN_AIOHTTP = {
    "an empty Host": HOSTS,
    "a Host with a path": HOSTS,
    "a Host with a query": HOSTS,
    "a Host with a user": HOSTS,
    "a Host with a blank": HOSTS,
    "a list of Hosts": HOSTS,
    "a Host with a port of letters": HOSTS,
    "a Host of bytes": HOSTS,
    "a length over 18 digits": DIGITS,
    "a size over 60 bits": DIGITS,
    "a size with many zeros": DIGITS,
    "gzip before chunked": "compressed bodies are not accepted, whatever header says so",
    "two keys": TWICE,
    "two of Anthropic's keys": TWICE,
    "two codings of the content": TWICE,
    "two expectations": TWICE,
    "two priorities": TWICE,
    "CONNECT to an authority": TARGETS,
    "CONNECT to a path": TARGETS,
    "another scheme": TARGETS,
    "an asterisk": TARGETS,
    "a fragment": "it is never sent: who sends one was made to",
    "two blanks before the URL": BLANKS,
    "two blanks after the URL": BLANKS,
    "empty lines": "one is what old clients send after a body; more say nothing, and cost",
    "a line feed before it": "a bare line feed ends nothing",
}
"""What we refuse and aiohttp, whose parser served before, lets pass; and why we do."""


@pytest.mark.parametrize("name", REFUSED)
def test_where_we_are_stricter_than_aiohttp_is_written_down(name):
    assert aiohttp_refuses(REFUSED[name] + NEXT) == (name not in STRICTER_THAN_AIOHTTP)


@given(mutated() | RAW)
def test_nothing_that_aiohttp_refuses_is_read_to_its_end(data):
    if not aiohttp_refuses(data):
        return
    reader = RequestReader(LIMITS)
    reader.feed(data)
    with contextlib.suppress(RequestError):
        while reader.read_head() is not None:
            reader.read_body()
            if not reader.done:
                break
    assert reader.broken or reader.unread or not reader.done
