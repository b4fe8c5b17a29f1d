# SPDX-License-Identifier: Apache-2.0
"""One JSON line for each request: who, what, how it ended, what it cost, how long it took.

No prompt, no answer and no key ever stands in it.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec

from taketurns.errors import StartError


@dataclass(slots=True)
class RequestRecord:
    """What is written of a request; filled in while it passes.

    Attributes:
        time: Time of day at its arrival, RFC 3339 in UTC.
        request_id: Our own id of it.
        endpoint: ``chat``, ``completions``, ``embeddings``, ``models``, or "" where unknown.
        tenant: Whose it is; "" where the key is unknown.
        tier: The tenant's tier.
        model: The model as configured; "" where it's unknown.
        engine: Where it ran; "" where it didn't.
        outcome: ``completed``, ``failed``, ``refused``, ``expired``, ``cancelled`` or ``invalid``.
        status: HTTP status sent; 499 where the client had gone.
        code: Code of the error; "" where there was none.
        stream: It was answered as a stream.
        items: Texts of an embeddings request, else 1.
        input_tokens: Tokens of its input, by the engine's count where there is one.
        output_tokens: Tokens of the answer.
        charged: What it was charged when it was dispatched, in the pool's cost unit.
        cost: What it was charged in the end, in the pool's cost unit.
        wait_s: From its arrival in the queue to its dispatch; None: it was not dispatched.
        first_byte_s: From its arrival to the first byte of a stream; None: nothing was streamed.
        total_s: From its arrival to its end.
    """

    time: str
    request_id: str
    endpoint: str = ""
    tenant: str = ""
    tier: str = ""
    model: str = ""
    engine: str = ""
    outcome: str = ""
    status: int = 0
    code: str = ""
    stream: bool = False
    items: int = 1
    input_tokens: int = 0
    output_tokens: int = 0
    charged: int = 0
    cost: int = 0
    wait_s: float | None = None
    first_byte_s: float | None = None
    total_s: float = 0.0


class LogWriter(Protocol):
    """Takes finished records."""

    def write(self, record: RequestRecord) -> None:
        """Write one record; never raises."""
        ...

    def close(self) -> None:
        """Write what is buffered, and stop."""
        ...


class NoLog:
    """Implements :class:`LogWriter`: writes nothing."""

    def write(self, record: RequestRecord) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


BUFFER_BYTES_MAX = 64 * 1024


class JsonLog:
    """Implements :class:`LogWriter`: a JSON line each, buffered for a moment.

    Args:
        file: Where to write; closed at the end unless it's standard output.
        call_later: The loop's: lines are flushed after a fifth of a second.
        on_error: Told once, when writing first fails; lines are dropped from then on.
    """

    def __init__(
        self,
        file: IO[bytes],
        call_later: Callable[[float, Callable[[], None]], object],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._file = file
        self._call_later = call_later
        self._on_error = on_error
        self._encoder = msgspec.json.Encoder()
        self._buffer = bytearray()
        self._armed = False
        self._broken = False

    def write(self, record: RequestRecord) -> None:
        if self._broken:
            return
        self._buffer += self._encoder.encode(record)
        self._buffer += b"\n"
        if len(self._buffer) >= BUFFER_BYTES_MAX:
            self._flush()
        elif not self._armed:
            self._armed = True
            self._call_later(0.2, self._flush)

    def close(self) -> None:
        self._flush()
        if self._file is not sys.stdout.buffer:
            # Closing tries to write what a failed write has left behind.
            with contextlib.suppress(OSError):
                self._file.close()

    def _flush(self) -> None:
        self._armed = False
        if self._broken or not self._buffer:
            return
        try:
            self._file.write(self._buffer)
            self._file.flush()
        except OSError as error:
            # A full disk must not stop the service; the metric and the message tell.
            self._broken = True
            self._on_error(error)
        self._buffer.clear()


def open_log(
    where: str,
    call_later: Callable[[float, Callable[[], None]], object],
    on_error: Callable[[OSError], None],
) -> LogWriter:
    """Open the log that ``server.log`` names.

    Raises:
        StartError: The file can't be opened.
    """
    if where == "off":
        return NoLog()
    if where == "-":
        return JsonLog(sys.stdout.buffer, call_later, on_error)
    try:
        return JsonLog(Path(where).open("ab"), call_later, on_error)
    except OSError as error:
        raise StartError(
            f"server.log: can't write {where}: {error.strerror}",
            hint="Name a file in a folder that exists and that may be written, or use '-'.",
        ) from error
