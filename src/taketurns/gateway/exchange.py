# SPDX-License-Identifier: Apache-2.0
"""One request and its answer, as the gateway's own code sees them: free of the HTTP server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from msgspec import Raw

from taketurns.core.limit_rules import Amounts
from taketurns.dialects.names import Dialect
from taketurns.errors import TaketurnsError
from taketurns.telemetry.records import RequestRecord

JSON = "application/json"


class Answer(NamedTuple):
    """An answer that is sent whole.

    Attributes:
        status: HTTP status.
        body: Its body.
        content_type: Of the body.
        headers: Further headers.
    """

    status: int
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})


class ClientGoneError(TaketurnsError):
    """The client has closed its connection: there's nobody to answer."""

    code = "client_gone"


class Peer(Protocol):
    """The client's side of an exchange.

    What sends raises ``ClientGoneError`` once the connection is gone.
    """

    async def read_body(self, bytes_max: int) -> bytes:
        """Return the body.

        Raises:
            RequestError: 413 as soon as it's known to be longer than ``bytes_max``; 408 where
                it doesn't come.
        """
        ...

    async def send(self, answer: Answer) -> None:
        """Send an answer whole; waits while the client is slow to read."""
        ...

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer that is streamed."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a piece of it; waits while the client is slow to read."""
        ...

    def write_now(self, data: bytes) -> bool:
        """Send a piece of it; False where the client is behind: :meth:`drain` before the next."""
        ...

    async def drain(self) -> None:
        """Wait until the client has caught up."""
        ...

    async def finish(self) -> None:
        """End it well."""
        ...

    @property
    def unread(self) -> int:
        """Bytes that were sent and that the client's side has not taken."""
        ...

    def ping(self, data: bytes) -> None:
        """Send a comment between two pieces, unless the client is behind with reading."""
        ...

    def abort(self) -> None:
        """Close the connection after what was sent, so that the answer is seen not to be whole."""
        ...

    def cut(self) -> None:
        """Cut the connection at once, whatever is unread; who waits to write is told."""
        ...


class Settles(Protocol):
    """What is owed at a request's end."""

    def settle(self, used: Amounts | None) -> None:
        """Correct what was charged to what was used; None: it was not executed."""
        ...


@dataclass(slots=True)
class Exchange:
    """One request on its way.

    Attributes:
        method: HTTP method.
        path: Path as it was sent, not decoded, without the query.
        headers: Headers; names in lower case.
        peer: The client's side.
        record: What is logged of it at its end.
        arrived_us: When its head had been read.
        sent_us: When the first byte of the answer was sent, or None.
        query: What stood behind the path's question mark.
        reply_lines: Header lines, whole, sent with whatever is answered, by what they tell of;
            the peer reads them when it sends the head.
        admittance: What its limits were charged, to be settled at its end; None: nothing.
        inputs: Texts or documents that its limits count; 1 for a generation.
        executed: An engine may have done some of the work, whatever an error says of the rest.
        dialect: Whose errors and headers the client reads.
        fields: The fields of its body, where that goes on as it came; None: not read yet.
        address: The client's, or that of a proxy in front.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    peer: Peer
    record: RequestRecord
    arrived_us: int
    sent_us: int | None = None
    executed: bool = False
    reply_lines: dict[str, str] = field(default_factory=dict)
    query: str = ""
    inputs: int = 1
    admittance: "Settles | None" = None
    dialect: Dialect = Dialect.OPENAI
    fields: Mapping[str, Raw] | None = None
    address: str = ""
