# SPDX-License-Identifier: Apache-2.0
"""Finds whose item an engine refused a batch for, so that the others get their answers.

An engine refuses a call as a whole, before it computes any of it. If it names
the item, the others are sent once more without it, and its request alone. Else,
or if that is refused too, the batch is halved until each request at fault stands
alone: with one at fault among n requests that takes 2 * log2(n) calls. A bound on the calls keeps
a batch of many bad items from holding its slot: what isn't decided by then is
queued again, each request to go alone.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain

from taketurns.core.model import Ticket
from taketurns.errors import EngineError, EngineRefusedError
from taketurns.gateway.problems import CALLER_STATUSES

CALLS_MAX = 16
"""Most calls that are made for one batch to find whose fault it is."""

_NAMED = re.compile(
    rb"\b(?:input|inputs|texts?|documents?|pairs?|data)(?:\[(\d{1,6})\]|\.(\d{1,6})\b)"
)

Request = Sequence[Ticket]
"""The tickets of one request that are in the batch."""


def blames_caller(error: EngineError) -> bool:
    """Tell whether an engine refused what it was sent: it did no work.

    Not by a 404: that it doesn't know the model or the path is the operator's fault.
    """
    return isinstance(error, EngineRefusedError) and error.status in CALLER_STATUSES


def named_item(body: bytes) -> int | None:
    """Return the index of the one item that an engine's refusal names, if it does: ``input[3]``."""
    found = {int(match[1] or match[2]) for match in _NAMED.finditer(body)}
    return found.pop() if len(found) == 1 else None


def reworded(error: EngineError, names: Sequence[str]) -> EngineError:
    """Return a refusal whose words name an item as the client knows it.

    Args:
        error: The error.
        names: The client's field of each item of the call.
    """
    if not isinstance(error, EngineRefusedError):
        return error

    def name(match: re.Match[bytes]) -> bytes:
        index = int(match[1] or match[2])
        return names[index].encode() if index < len(names) else match[0]

    return EngineRefusedError(error.engine, error.status, _NAMED.sub(name, error.body))


class BadItems:
    """The search, on behalf of one pool.

    Args:
        send: Sends tickets as one call, hands results out, and returns the error if that failed.
        give_up: Ends the tickets of one request with an error, unless that allows another try.
        queue_alone: Queues a request's tickets again, to share no call with others.
        name_of: Returns the client's field of a ticket's item.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Ticket]], Awaitable[EngineError | None]],
        give_up: Callable[[Request, EngineError], None],
        queue_alone: Callable[[Request], None],
        name_of: Callable[[Ticket], str],
    ) -> None:
        self._send = send
        self._give_up = give_up
        self._queue_alone = queue_alone
        self._name_of = name_of

    async def search(
        self, tickets: Sequence[Ticket], requests: Sequence[Request], error: EngineError
    ) -> None:
        """End or queue again every request of a batch that was refused.

        Args:
            tickets: The batch, in the order in which it was sent.
            requests: The same by request, at least one.
            error: Why it was refused.
        """
        if len(requests) == 1:
            self._give_up(requests[0], reworded(error, self._names(tickets)))
            return
        parts = _suspects(tickets, requests, error) or _halves(requests)
        try:
            for _ in range(CALLS_MAX):
                if not parts:
                    return
                parts += await self._try(parts.pop())
        except BaseException:
            for request in chain(*parts):
                self._give_up(request, error)
            raise
        for request in chain(*parts):
            self._queue_alone(request)

    async def _try(self, part: Sequence[Request]) -> list[Sequence[Request]]:
        """Send requests as one call; return in parts those that are to be tried next."""
        tickets = [ticket for request in part for ticket in request]
        error = await self._send(tickets)
        if error is None:
            return []
        if len(part) == 1:
            error = reworded(error, self._names(tickets))
        elif blames_caller(error):
            return _halves(part)
        for request in part:
            self._give_up(request, error)
        return []

    def _names(self, tickets: Sequence[Ticket]) -> list[str]:
        return [self._name_of(ticket) for ticket in tickets]


def _suspects(
    tickets: Sequence[Ticket], requests: Sequence[Request], error: EngineError
) -> list[Sequence[Request]]:
    """Return the request whose item a refusal names, and the others: those are tried first."""
    index = named_item(error.body) if isinstance(error, EngineRefusedError) else None
    if index is None or index >= len(tickets):
        return []
    named = [request for request in requests if tickets[index] in request]
    return [named, [request for request in requests if request not in named]]


def _halves(requests: Sequence[Request]) -> list[Sequence[Request]]:
    """Return the second half and the first: the last one is tried next."""
    middle = (len(requests) + 1) // 2
    return [requests[middle:], requests[:middle]]
