# SPDX-License-Identifier: Apache-2.0
"""A tenant's flood: a program that sends many short texts over raw sockets, many at once.

It runs as a process of its own (``python -m taketurns.demo.load``), so that it
takes no time from the client whose latency is measured. One JSON line on its
standard input says what to send; it prints one line for each step of progress
and one JSON line at the end. It ends early when its standard input closes.

Each request in flight has a connection of its own, which is kept for the next
request. A flood of 10,000 over 2,000 connections thus has 2,000 in the queue
until the last 2,000.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO

STEPS = 400
"""Most lines of progress."""

CONNECT_AT_ONCE_MAX = 200
"""Connections that are opened at a time: fewer than any listener's backlog."""

_WORDS = (
    "apple autumn baker basket bicycle bird blanket bridge brown bus candle captain castle cat "
    "chair cheese city clock cloud coffee corner cotton dinner doctor dog door dream engine "
    "evening farmer father field finger fire fish flower forest friend garden glass green guitar "
    "hammer harbor horse hotel island kitchen lake lamp letter library market meadow message "
    "milk minute mirror moon morning mother mountain music ocean office orange paper park "
    "pencil picture plane river road rose salt school shoe silver sister smoke snow soldier "
    "spring station stone storm street summer table teacher train tree valley village water "
    "wind window winter wood yellow"
)
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Flood:
    """What one tenant sends.

    Attributes:
        host: The gateway's address.
        port: Its port.
        key: The tenant's key.
        count: Requests, of one text each; at least 1.
        in_flight: Most requests that wait for an answer at once; at least 1.
        seed: Of the texts.
    """

    host: str
    port: int
    key: str
    count: int
    in_flight: int
    seed: int


def texts(seed: int, count: int) -> list[str]:
    """Return short texts of six to eight words, all different."""
    dice = random.Random(seed)  # noqa: S311 - texts, not secrets
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join(dice.choices(WORDS, k=dice.randint(6, 8)))] = None
    return list(found)


def request_bytes(flood: Flood, text: str) -> bytes:
    """Return a whole request for the embedding of one text."""
    body = json.dumps({"model": "minilm", "input": text, "encoding_format": "base64"}).encode()
    head = (
        "POST /v1/embeddings HTTP/1.1\r\n"
        f"Host: {flood.host}:{flood.port}\r\n"
        f"Authorization: Bearer {flood.key}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer_status(data: bytes | bytearray) -> int | None:
    """Return the status of an answer once all of it is there, else None.

    Reads only what the gateway sends: a status line, headers, and a body of a known length.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = bytes(data[:head_end]).lower()
    _, _, after = head.partition(b"content-length:")
    length = int(after.split(b"\r\n", 1)[0] or b"0")
    if len(data) < head_end + 4 + length:
        return None
    return int(head[9:12])


class Progress:
    """Counts answers by status and tells of them now and then.

    Attributes:
        statuses: Answers by HTTP status.
        finished: Set once all are answered, or with a fault.
    """

    def __init__(self, count: int, out: IO[str]) -> None:
        self.statuses: Counter[str] = Counter()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._out = out
        self._count = count
        self._step = max(1, count // STEPS)

    def add(self, status: int) -> None:
        """Count an answer."""
        self.statuses[str(status)] += 1
        answered = self.statuses.total()
        if answered % self._step == 0 or answered == self._count:
            self._out.write(f"{answered}\n")
            self._out.flush()
        if answered == self._count:
            self.stop()

    def stop(self, fault: Exception | None = None) -> None:
        """End the flood, with a fault if there is one."""
        if self.finished.done():
            return
        if fault is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(fault)


class _Connection(asyncio.Protocol):
    """One connection: sends a request, waits for its answer, sends the next."""

    def __init__(self, requests: Iterator[bytes], progress: Progress) -> None:
        self._requests = requests
        self._progress = progress
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "TCP reads and writes"
        self._transport = transport
        self._next()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        status = answer_status(self._answer)
        if status is not None:
            self._answer.clear()
            self._waits = False
            self._progress.add(status)
            self._next()

    def connection_lost(self, _: Exception | None) -> None:
        if self._waits:
            self._progress.stop(ConnectionError("the gateway closed a connection"))

    def _next(self) -> None:
        assert self._transport is not None, "it is connected"
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
        else:
            self._waits = True
            self._transport.write(request)


async def send(flood: Flood, requests: Sequence[bytes], out: IO[str]) -> dict[str, int]:
    """Send all requests and return how many were answered with which status.

    Raises:
        OSError: The gateway can't be reached, or it closed a connection.
    """
    loop = asyncio.get_running_loop()
    progress = Progress(flood.count, out)
    await loop.connect_read_pipe(lambda: _EndOfInput(progress), sys.stdin)
    left = iter(requests)
    for first in range(0, flood.in_flight, CONNECT_AT_ONCE_MAX):
        some = range(first, min(first + CONNECT_AT_ONCE_MAX, flood.in_flight))
        await asyncio.gather(
            *(
                loop.create_connection(lambda: _Connection(left, progress), flood.host, flood.port)
                for _ in some
            )
        )
    await progress.finished
    return dict(progress.statuses)


class _EndOfInput(asyncio.Protocol):
    """Ends the flood when standard input closes: whoever wanted it is gone."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def connection_lost(self, _: Exception | None) -> None:
        self._progress.stop(ConnectionError("standard input was closed"))


def main() -> None:
    """Send what standard input says."""
    flood = Flood(**json.loads(sys.stdin.readline()))
    requests = [request_bytes(flood, text) for text in texts(flood.seed, flood.count)]
    try:
        statuses = asyncio.run(send(flood, requests, sys.stdout))
    except OSError as error:
        sys.exit(f"the flood broke off: {error}")
    sys.stdout.write(json.dumps(statuses) + "\n")


def as_line(flood: Flood) -> bytes:
    """Return the line that tells the program what to send."""
    return json.dumps(asdict(flood)).encode() + b"\n"


if __name__ == "__main__":
    main()
