# SPDX-License-Identifier: Apache-2.0
"""What the scheduler decides: values that the shell acts on and telemetry counts."""

from enum import StrEnum
from typing import NamedTuple

from taketurns.core.model import Ticket


class Outcome(StrEnum):
    """How a ticket ended; each ends in exactly one way. A metric label."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class Refusal(StrEnum):
    """Why a ticket wasn't queued. A metric label."""

    TENANT_QUEUE_FULL = "tenant_queue_full"
    POOL_QUEUE_FULL = "pool_queue_full"


class Refused(NamedTuple):
    """A ticket was not queued: it is forgotten and cost nothing.

    Attributes:
        ticket: The ticket.
        reason: Which bound it met.
        limit: The bound's value.
        queued: How many tickets stand against that bound.
    """

    ticket: Ticket
    reason: Refusal
    limit: int
    queued: int


class Granted(NamedTuple):
    """Tickets run now on an engine, in one slot.

    Attributes:
        engine: Name of the engine.
        tickets: One ticket, or the items of a batch in the order in which they
            were chosen; never empty.
    """

    engine: str
    tickets: tuple[Ticket, ...]


class Expired(NamedTuple):
    """A ticket's deadline passed while it waited: it left the queue and cost nothing."""

    ticket: Ticket


class Ended(NamedTuple):
    """A dispatched ticket is settled.

    Attributes:
        ticket: The ticket.
        outcome: COMPLETED, FAILED or CANCELLED.
        cost: What it cost in the end, in the pool's cost unit.
        engine: Where it ran.
    """

    ticket: Ticket
    outcome: Outcome
    cost: int
    engine: str
