# SPDX-License-Identifier: Apache-2.0
"""What is kept for longer than a process lives: API keys, and what a month has used up."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import add
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What is known of an API key: never the key itself.

    Attributes:
        public_id: The part of the key by which it is found: 12 lower-case base32 characters.
        tenant: Whose it is.
        hash: SHA-256 of the whole key, in hex.
        created_s: Seconds since 1970 when it was made.
        revoked_s: Seconds since 1970 when it was revoked; None: it is in force.
        note: What the operator wrote beside it; may be empty.
    """

    public_id: str
    tenant: str
    hash: str
    created_s: int
    revoked_s: int | None = None
    note: str = ""


class KeyStore(Protocol):
    """Keeps the API keys.

    Contract, checked for every implementation by
    :func:`taketurns.testing.contracts.check_key_store`:

    * Calls are synchronous and short: one row by its primary key, but for ``list``.
    * What ``add`` or ``revoke`` did is seen by every later call, in this
      process and in others that share the store.
    * Nothing is deleted: a revoked key stays on record.

    Every method raises ``StoreUnavailableError`` where the store can't be
    reached; asking again may help then.
    """

    def add(self, record: KeyRecord) -> None:
        """Put a new key on record.

        Raises:
            StoreError: Its public id is taken; nothing was changed.
        """
        ...

    def get(self, public_id: str) -> KeyRecord | None:
        """Return the key with a public id, revoked or not; None where there is none."""
        ...

    def list(self) -> tuple[KeyRecord, ...]:
        """Return all keys, the oldest first, those of one second by public id."""
        ...

    def close(self) -> None:
        """Give back what is held open; the next call opens it again."""
        ...

    def revoke(self, public_id: str, *, revoked_s: int) -> KeyRecord | None:
        """Revoke a key; one that was revoked before keeps its first time.

        Args:
            public_id: Of the key.
            revoked_s: Seconds since 1970, now.

        Returns:
            The key as it stands on record; None where there is none.
        """
        ...


MONTHS_KEPT = 3
"""Months before the current one whose marks are kept: clocks go wrong."""


class QuotaKey(NamedTuple):
    """What a month's mark is kept for.

    Attributes:
        month: Such as ``"2026-11"``; months are ordered as text.
        rule: Names the limit, and what it counts.
        tenant: Whose count it is; "" for that of all together.
    """

    month: str
    rule: str
    tenant: str


class Bound(NamedTuple):
    """How far a mark may be raised where several processes raise it.

    Attributes:
        spent: What was granted already: the mark is raised so far whatever others have done.
        limit: Most that all may have together: no further than this for what is to come.
    """

    spent: int
    limit: int


NO_BOUNDS: Mapping[QuotaKey, Bound] = {}


class Raised(NamedTuple):
    """How a mark stands after it was raised.

    Attributes:
        mark: The mark, at most 2**53.
        shift: By how much others have raised it (negative: lowered) since this process last knew.
    """

    mark: int
    shift: int = 0


class QuotaStore(Protocol):
    """Keeps a mark for each month's count: never below what was granted of it.

    A process raises a mark before it grants beyond it. Where one process at a
    time counts, a mark is that process's count at most. Where several share the
    store, it is the sum of what each has taken: each names marks as it knows
    them, and is told by how much the others have moved them meanwhile.

    Contract, checked for every implementation by
    :func:`taketurns.testing.contracts.check_quota_store`:

    * Calls are synchronous, and come one at a time from one thread.
    * What a call wrote outlives the process, and the machine's loss of power,
      once it has returned. A call that raises wrote all or nothing of what it was given.
    * Marks are at least 0 and at most 2**53.
    * Every call may be repeated: the second time changes nothing.

    Every method but ``close`` raises ``StoreUnavailableError`` where the store
    can't be reached, is full, or is locked: asking again may help then; and
    ``StoreError`` where it can't be read at all.

    Attributes:
        shared: True where several processes may count at the same time.
    """

    shared: bool

    def load(self, since: str) -> dict[QuotaKey, int]:
        """Return all marks of a month and of later ones."""
        ...

    def raise_to(
        self, marks: Mapping[QuotaKey, int], bounds: Mapping[QuotaKey, Bound] = NO_BOUNDS
    ) -> dict[QuotaKey, Raised]:
        """Raise marks; one that is as high already stays, one that isn't there is made.

        Args:
            marks: As high as they should be.
            bounds: For a mark that others raise too; a store of one process doesn't need them.

        Returns:
            How each of these marks stands now.
        """
        ...

    def lower_to(self, marks: Mapping[QuotaKey, int]) -> None:
        """Lower marks; one that is as low already stays, one that isn't there stays away."""
        ...

    def shifts(self, since: str) -> dict[QuotaKey, int]:
        """Return by how much others have moved marks since this process last knew.

        Args:
            since: Of this month and of later ones.

        Returns:
            Those that they have moved; none where one process at a time counts.
        """
        ...

    def forget_before(self, month: str) -> None:
        """Delete the marks of earlier months, but for the latest ``MONTHS_KEPT`` of those."""
        ...

    def close(self) -> None:
        """Give back what is held open; the next call opens it again."""
        ...


class UsageKey(NamedTuple):
    """What usage is added up by.

    Attributes:
        day: Such as ``"2026-11-30"``, in the configured time zone; days are ordered as text.
        tenant: Whose it is.
        model: As configured; "" where the request named none.
        endpoint: What it asked for.
    """

    day: str
    tenant: str
    model: str
    endpoint: str


class Usage(NamedTuple):
    """What was used.

    Attributes:
        requests: Requests that were executed, or may have been.
        refusals: Requests that were not: refused, expired, or cancelled before.
        input_tokens: Tokens of input.
        output_tokens: Tokens of answers.
        cost: In the cost unit of the model's pool.
    """

    requests: int = 0
    refusals: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Return both together."""
        return Usage(*map(add, self, other))


class UsageStore(Protocol):
    """Adds up what is used.

    Contract, checked for every implementation by
    :func:`taketurns.testing.contracts.check_usage_store`:

    * Calls are synchronous, and come one at a time from one thread.
    * A batch is added whole or not at all, and once: a number that isn't above the last
      of its writer adds nothing.

    Every method but ``close`` raises ``StoreUnavailableError`` where the store can't be
    reached, is full, or is locked; and ``StoreError`` where it can't be used at all.
    """

    def add(self, writer: str, number: int, used: Mapping[UsageKey, Usage]) -> None:
        """Add a batch.

        Args:
            writer: The process's own name, not used by one before.
            number: Of the batch, from 1.
            used: At least one row.
        """
        ...

    def read(self, since: str, until: str) -> dict[UsageKey, Usage]:
        """Return the rows of days from ``since`` to ``until``, both included."""
        ...

    def forget_before(self, day: str) -> None:
        """Delete the rows of earlier days."""
        ...

    def close(self) -> None:
        """Give back what is held open; the next call opens it again."""
        ...
