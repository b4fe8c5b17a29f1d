# SPDX-License-Identifier: Apache-2.0
"""Limits in the coordinator: one call for all limits of a request that have one hash tag.

A tenant's own limits have its name as their tag, those of all tenants together
``*``. The Lua functions count as :mod:`taketurns.core.limits` does, integer for
integer, by the server's clock.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from taketurns.core.limit_rules import Amounts, LimitRule, Span, reserved
from taketurns.core.limits import Denied, Status
from taketurns.fleet.link import Arg, Link
from taketurns.fleet.scripts import load_script
from taketurns.units import US_PER_S

TOTAL_TAG = "*"
"""Tag of the limits of all tenants together: no tenant has this name."""

RECORD_MS = 3_600_000
"""How long a request's charges are on record where nobody settles them."""

LEASE_US = 30 * US_PER_S
"""How long a request counts in a parallel limit after its gateway was last heard of."""

_FIELDS = 6

_ADMIT = load_script("admit", "windows")
_SETTLE = load_script("settle", "windows")
_RESTORE = load_script("restore", "windows")
_RENEW = load_script("renew", "windows")


class Place(NamedTuple):
    """A count: of a rule, under a tag."""

    tag: str
    rule: LimitRule

    @property
    def key(self) -> str:
        """Its key in the coordinator; a rule that counts something else has another."""
        rule = self.rule
        counted = f"{rule.unit}:{rule.span}:{rule.period_us}"
        return f"tt:{{{self.tag}}}:l:{rule.name}:{counted}"


class Counted(NamedTuple):
    """How a request stands with one rule.

    Attributes:
        place: The rule, and its tag.
        fits: 0: it fits; 1: it doesn't; 2: it wouldn't, in shadow mode.
        used: What counted before it.
        wait_us: How long until it fits; None: nobody knows.
        slot: Of the window's part that was charged.
        amount: What it is charged, or would be.
        born: When the window was made: another time means that it's another window.
    """

    place: Place
    fits: int
    used: int
    wait_us: int | None
    slot: int
    amount: int
    born: int

    @property
    def status(self) -> Status:
        """How the rule stands, as the core says it."""
        return Status(self.place.rule, self.used, self.wait_us)


ADMITTED, REFUSED, LOST, UNDONE = 1, 0, 2, 3


class Reply(NamedTuple):
    """The answer to a request.

    Attributes:
        code: ``ADMITTED``, ``REFUSED``, ``LOST`` (what was counted is gone, nothing was
            charged) or ``UNDONE`` (it was given up before).
        counted: For each rule, in their order; empty where it was undone.
    """

    code: int
    counted: tuple[Counted, ...]


def tag_of(rule: LimitRule, tenant: str) -> str:
    """Return the hash tag of a rule's count for a tenant."""
    return TOTAL_TAG if rule.total else tenant


def denied(counted: Sequence[Counted], amounts: Amounts) -> Denied:
    """Return a refusal as the core says it."""
    over = [item for item in counted if item.fits == 1]
    never = [
        item.place.rule for item in over if reserved(item.place.rule, amounts) > item.place.rule.max
    ]
    return Denied(tuple(item.status for item in over), tuple(never))


class LimitCalls:
    """Calls of the Lua functions that count.

    Args:
        link: To the coordinator.
        now_us: Stands for the server's clock in tests; negative: that clock.
        lease_us: How long a request counts in a parallel limit after it was last renewed.
    """

    def __init__(self, link: Link, *, now_us: int = -1, lease_us: int = LEASE_US) -> None:
        self.now_us = now_us
        self._link = link
        self._lease_us = lease_us

    async def admit(
        self,
        tag: str,
        rules: Sequence[LimitRule],
        amounts: Amounts,
        request_id: str,
        known: Mapping[Place, int],
    ) -> Reply:
        """Charge a request to its limits of one tag, or to none.

        Args:
            tag: The tag.
            rules: Sliding and parallel ones of that tag, at least one.
            amounts: What the request takes.
            request_id: The same id is charged once.
            known: When each window was made, as far as this gateway has granted out of it.

        Raises:
            StoreUnavailableError: No answer; it may have been charged: :meth:`undo` it.
        """
        places = [Place(tag, rule) for rule in rules]
        args: list[Arg] = [self.now_us, RECORD_MS, self._lease_us, request_id]
        for place in places:
            rule = place.rule
            args += [
                "s" if rule.span is Span.SLIDING else "p",
                rule.period_us,
                rule.max,
                amounts.of(rule.unit),
                reserved(rule, amounts),
                int(rule.shadow),
                known.get(place, 0),
            ]
        reply = await self._link.run(_ADMIT, [_record(tag, request_id), *_keys(places)], args)
        counted = []
        for number, place in enumerate(places):
            row = [int(value) for value in reply[1 + number * _FIELDS : 7 + number * _FIELDS]]
            if len(row) == _FIELDS:
                fits, used, wait_us, slot, amount, born = row
                wait = None if wait_us < 0 else wait_us
                counted.append(Counted(place, fits, used, wait, slot, amount, born))
        return Reply(int(reply[0]), tuple(counted))

    async def settle(
        self, request_id: str, counted: Sequence[Counted], used: Amounts | None
    ) -> None:
        """Correct what an admitted request was charged; a second time does nothing.

        Args:
            request_id: Of the request.
            counted: Of one tag.
            used: What it took; None: it was not executed.

        Raises:
            StoreUnavailableError: No answer; it may have been settled.
        """
        if not counted:
            return
        args: list[Arg] = ["settle", request_id]
        for item in counted:
            rule = item.place.rule
            spent = 0 if used is None else used.of(rule.unit)
            args += [*_span(rule), item.slot, spent - item.amount]
        places = [item.place for item in counted]
        keys = [_record(places[0].tag, request_id), *_keys(places)]
        await self._link.run(_SETTLE, keys, args)

    async def undo(self, tag: str, rules: Sequence[LimitRule], request_id: str) -> None:
        """Take back a request of which nobody knows whether it was charged.

        Raises:
            StoreUnavailableError: No answer.
        """
        places = [Place(tag, rule) for rule in rules]
        args: list[Arg] = ["undo", request_id]
        for rule in rules:
            args += [*_span(rule), 0, 0]
        await self._link.run(_SETTLE, [_record(tag, request_id), *_keys(places)], args)

    async def restore(
        self,
        place: Place,
        call_id: str,
        known: int,
        new: Sequence[tuple[int, int]],
        own: Sequence[tuple[int, int]],
    ) -> tuple[int, int]:
        """Count in a window what it doesn't hold of this gateway's grants.

        Args:
            place: Of a sliding window.
            call_id: The same id is counted once.
            known: When the window was made that this gateway knows; 0: it knows none.
            new: Age in microseconds and amount of what that window doesn't hold.
            own: The same of all that this gateway has granted.

        Returns:
            When the window was made, and what it holds.

        Raises:
            StoreUnavailableError: No answer; it may have been counted.
        """
        args: list[Arg] = [self.now_us, place.rule.period_us, known, len(new)]
        for age_us, amount in (*new, *own):
            args += [age_us, amount]
        reply = await self._link.run(_RESTORE, [_record(place.tag, call_id), place.key], args)
        return int(reply[0]), int(reply[1])

    async def renew(
        self, place: Place, request_ids: Sequence[str], *, missing: bool = False
    ) -> None:
        """Let requests go on to count in a parallel limit.

        Args:
            place: Of the limit.
            request_ids: The requests.
            missing: Count those too that aren't counted there.

        Raises:
            StoreUnavailableError: No answer.
        """
        how = "CH" if missing else "XX"
        args: list[Arg] = [self.now_us, self._lease_us, how, *request_ids]
        await self._link.run(_RENEW, [place.key], args)

    async def leave(self, place: Place, request_id: str) -> None:
        """Let a request no longer count in a parallel limit.

        Raises:
            StoreUnavailableError: No answer.
        """
        await self._link.command("ZREM", place.key, request_id)


def _record(tag: str, request_id: str) -> str:
    return f"tt:{{{tag}}}:r:{request_id}"


def _keys(places: Sequence[Place]) -> list[str]:
    return [place.key for place in places]


def _span(rule: LimitRule) -> tuple[str, int]:
    return ("s" if rule.span is Span.SLIDING else "p", rule.period_us)
