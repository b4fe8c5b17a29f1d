# SPDX-License-Identifier: Apache-2.0
"""Sliding and parallel limits that several gateways share, and what each does when it's alone.

*Shared*: the coordinator counts; each request is one call for its tenant's
limits, and one for those of all tenants together.

*Alone*: the coordinator fails, or has lost what it counted. Each gateway
grants its part of what was left when that began (see :class:`Outage`).

*Both*: the coordinator answers again and has been told what was granted
meanwhile. For three seconds a request has to fit here and there, until the
other gateways have told it too; then limits are shared again. So nothing is
granted twice.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from taketurns.core.limit_rules import Amounts, LimitRule, Span, reserved
from taketurns.core.limits import Admitted, Denied, Ledger, Status
from taketurns.core.windows import SlidingWindow
from taketurns.errors import StoreUnavailableError
from taketurns.fleet.limit_calls import (
    LEASE_US,
    LOST,
    REFUSED,
    UNDONE,
    Counted,
    LimitCalls,
    Place,
    denied,
    tag_of,
)
from taketurns.fleet.link import Link
from taketurns.fleet.mirror import Fellows, Mirror, Mode, Outage, Taken, ages, moved
from taketurns.fleet.owed import Call, Owed, later, quietly
from taketurns.fleet.scripts import load_script
from taketurns.ports.clock import Clock, Timer
from taketurns.system import new_id
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

BEAT_US = US_PER_S
"""How often a gateway says that it's there."""

MEMBER_US = 5 * US_PER_S
"""How long it counts as there after that."""

BOTH_US = 3 * US_PER_S
"""How long after an outage a request has to fit here and there: by then every gateway has
noticed, which takes a probe each second."""

RENEWED_AT_ONCE = 500
RESTORED_AT_ONCE = 32

_MEMBERS = load_script("members", "windows")
_MARK, _GATEWAYS = "tt:{limits}:mark", "tt:{limits}:gateways"

OnError = Literal["local", "closed", "open"]


class SharedLimits:
    """Limits that are counted in a coordinator.

    Belongs to one event loop.

    Args:
        link: To the coordinator.
        clock: The process's clock.
        on_error: What a gateway grants alone: ``local``, its part; ``closed``, nothing;
            ``open``, everything.
        expected: How many gateways there are, as long as the coordinator hasn't told.

    Attributes:
        mode: Who decides at the moment.
    """

    def __init__(
        self,
        link: Link,
        clock: Clock,
        *,
        on_error: OnError = "local",
        expected: int | None = None,
    ) -> None:
        self.mode = Mode.SHARED
        self._link = link
        self._clock = clock
        self._on_error = on_error
        self._calls = LimitCalls(link)
        self._id = new_id("gw_")
        self._timers: dict[str, Timer] = {}
        self._mark = b""
        # The last of them gets what is left over of no part.
        self._fellows = Fellows((expected or 1) - 1, expected or 1)
        self._outage = Outage()
        self._known: dict[Place, int] = {}
        self._own = Mirror()
        self._unsent = Mirror()
        self._alone = Ledger()
        self._parallel: dict[Place, set[str]] = {}
        # What is being told the coordinator: a call's id, and what it's told.
        self._telling: dict[Place, tuple[str, SlidingWindow]] = {}
        self._owed = Owed(link)
        self._lost = False
        self._returning = False
        self._closed = False

    @property
    def alone(self) -> bool:
        """True while the coordinator doesn't decide."""
        return self.mode is Mode.ALONE

    def state(self) -> dict[str, Any]:
        """Return how it goes, for people."""
        return {
            "mode": self.mode.value,
            "members": self._fellows.number,
            "owed": len(self._owed),
        }

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to count: alone, where the coordinator doesn't answer yet."""
        self._owed.serve(tasks)
        try:
            await self._beat()
        except StoreUnavailableError as error:
            self._leave(str(error))
        self._call_in("beat", BEAT_US, self._beat_again)
        self._call_in("renew", LEASE_US // 3, self._renew)

    async def aclose(self) -> None:
        """Stop; what is under way counts until its lease ends."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._link.up:
            await quietly(self._link.command("ZREM", _GATEWAYS, self._id))

    def set_rules(self, rules: Sequence[LimitRule]) -> None:
        """Go by other rules; one that keeps its name and what it counts goes on counting."""
        by_name = {rule.name: rule for rule in rules}
        self._alone.keep(rules)
        self._own.keep(by_name)
        self._unsent.keep(by_name)
        self._known = moved(self._known, by_name)
        self._parallel = moved(self._parallel, by_name)
        self._outage.seen = moved(self._outage.seen, by_name)

    def standing(self, rules: Sequence[LimitRule], tenant: str) -> tuple[Status, ...]:
        """Return how rules stand, as this gateway last saw them; nobody knows how long to wait."""
        found = []
        for rule in rules:
            place = Place(tag_of(rule, tenant), rule)
            used, seen_us = self._outage.seen.get(place, (0, 0))
            if rule.span is Span.SLIDING and seen_us <= self._clock.now_us() - rule.period_us:
                used = 0
            found.append(Status(rule, used, 0 if used < rule.max else None))
        return tuple(found)

    async def admit(
        self, rules: Sequence[LimitRule], tenant: str, amounts: Amounts, request_id: str
    ) -> Taken | Denied:
        """Charge a request to all its limits, or to none; settle what was taken once.

        Args:
            rules: Sliding and parallel ones.
            tenant: Whose it is.
            amounts: What it takes.
            request_id: Its own.

        Raises:
            StoreUnavailableError: The coordinator is away, and nothing is to be granted then.
        """
        places = [Place(tag_of(rule, tenant), rule) for rule in rules]
        if self.mode is Mode.ALONE:
            return self._admit_alone(places, tenant, amounts, request_id)
        alone: Admitted | None = None
        if self.mode is Mode.BOTH:
            result = self._fits_alone(places, tenant, amounts)
            if isinstance(result, Denied):
                return result
            alone = result
        try:
            outcome = await self._ask(places, amounts, request_id)
        except asyncio.CancelledError:
            if alone is not None:
                alone.settle(None)
            raise
        if outcome is None or isinstance(outcome, Denied):
            if alone is not None:
                alone.settle(None)
            if outcome is None:
                return self._admit_alone(places, tenant, amounts, new_id(""))
            return outcome
        outcome.alone = alone
        self._note(
            outcome,
            [item.place for group in outcome.groups for item in group],
            [item.amount for group in outcome.groups for item in group],
        )
        return outcome

    def settle(self, taken: Taken, used: Amounts | None) -> None:
        """Correct what a request was charged to what it took; None: it was not executed."""
        for group in taken.groups:
            self._owed.add(
                f"settle {taken.request_id} {group[0].place.tag}",
                later(self._calls.settle, taken.request_id, group, used),
            )
        if taken.alone is not None:
            taken.alone.settle(used)
        for place, amount, charged in taken.own:
            spent = 0 if used is None else used.of(place.rule.unit)
            self._own.correct(place, charged, spent - amount)
        for place, amount, charged in taken.unsent:
            spent = 0 if used is None else used.of(place.rule.unit)
            current = self._unsent.correct(place, charged, spent - amount)
            if not current and spent > amount:
                # It was told already: what is more goes after it, what is less isn't given back.
                self._unsent.charge(place, spent - amount, self._clock.now_us())
        for place in taken.parallel:
            self._parallel.get(place, set()).discard(taken.request_id)
            if not taken.groups and self.mode is not Mode.ALONE:
                # It was told when the outage ended.
                self._owed.add(
                    f"leave {taken.request_id} {place.tag}",
                    later(self._calls.leave, place, taken.request_id),
                )

    # Decided by the coordinator

    async def _ask(
        self, places: Sequence[Place], amounts: Amounts, request_id: str
    ) -> Taken | Denied | None:
        """Ask the coordinator; None where it can't tell, with nothing charged in the end."""
        groups: list[tuple[Counted, ...]] = []
        by_tag: dict[str, list[LimitRule]] = {}
        for place in places:
            by_tag.setdefault(place.tag, []).append(place.rule)
        now_us = self._clock.now_us()
        for tag, rules in by_tag.items():
            known = {
                place: born
                for rule in rules
                if (born := self._known.get(place := Place(tag, rule)))
                and self._own.holds(place, now_us)
            }
            try:
                reply = await self._patiently(
                    later(self._calls.admit, tag, rules, amounts, request_id, known)
                )
            except (StoreUnavailableError, asyncio.CancelledError) as error:
                self._owed.add(
                    f"undo {request_id} {tag}", later(self._calls.undo, tag, rules, request_id)
                )
                self._give_back(request_id, groups)
                if isinstance(error, asyncio.CancelledError):
                    raise
                self._leave(str(error))
                return None
            self._see(reply.counted, charged=reply.code not in {REFUSED, LOST, UNDONE})
            if reply.code == REFUSED:
                self._give_back(request_id, groups)
                return denied(reply.counted, amounts)
            if reply.code in {LOST, UNDONE}:
                self._lost = True
                self._give_back(request_id, groups)
                self._leave("it has lost what it counted")
                return None
            groups.append(reply.counted)
        counted = [item for group in groups for item in group]
        return Taken(
            tuple(Status(item.place.rule, item.used + item.amount, 0) for item in counted),
            tuple(item.status for item in counted if item.fits == 2),
            request_id,
            tuple(groups),
        )

    async def _patiently(self, call: Call) -> Any:
        """Make a call, and once more where just that one failed: it's charged once anyway."""
        try:
            return await call()
        except StoreUnavailableError:
            if not self._link.up:
                raise
            return await call()

    def _see(self, counted: Sequence[Counted], *, charged: bool) -> None:
        now_us = self._clock.now_us()
        for item in counted:
            used = item.used + (item.amount if charged else 0)
            self._outage.seen[item.place] = (used, now_us)
            if charged and item.born:
                self._known[item.place] = item.born

    def _give_back(self, request_id: str, groups: Sequence[tuple[Counted, ...]]) -> None:
        for group in groups:
            self._owed.add(
                f"settle {request_id} {group[0].place.tag}",
                later(self._calls.settle, request_id, group, None),
            )

    # Decided here

    def _admit_alone(
        self, places: Sequence[Place], tenant: str, amounts: Amounts, request_id: str
    ) -> Taken | Denied:
        if self._on_error == "closed":
            raise StoreUnavailableError("the coordinator is away, and on_store_error is closed")
        if self._on_error == "open":
            taken = [amounts.of(place.rule.unit) for place in places]
            result = Taken((), (), request_id)
        else:
            decided = self._fits_alone(places, tenant, amounts)
            if isinstance(decided, Denied):
                return decided
            taken = [charge.amount for charge in decided.charges]
            statuses = tuple(
                Status(place.rule, charge.counter.used, 0)
                for place, charge in zip(places, decided.charges, strict=True)
            )
            result = Taken(statuses, decided.shadowed, request_id, alone=decided)
        self._note(result, places, taken)
        now_us = self._clock.now_us()
        for place, amount in zip(places, taken, strict=True):
            if place.rule.span is Span.SLIDING:
                charged = self._unsent.charge(place, amount, now_us)
                result.unsent.append((place, amount, charged))
        return result

    def _fits_alone(
        self, places: Sequence[Place], tenant: str, amounts: Amounts
    ) -> Admitted | Denied:
        """Charge a request to this gateway's parts of its limits, or to none."""
        now_us = self._clock.now_us()
        parts = []
        for place in places:
            part = self._outage.allowance(place, self._fellows, now_us)
            if place.rule.span is Span.PARALLEL:
                # Those that were admitted before the outage are under way still.
                running = len(self._parallel.get(place, ()))
                counted = self._alone_running(place, tenant, now_us)
                part = max(0, part - max(0, running - counted))
            parts.append(replace(place.rule, max=part))
        result = self._alone.admit(parts, tenant, amounts, now_us=now_us, month="")
        if isinstance(result, Admitted):
            return result
        by_name = {place.rule.name: place.rule for place in places}
        statuses = []
        for status in result.statuses:
            rule = by_name[status.rule.name]
            statuses.append(Status(rule, max(status.used, rule.max), status.wait_us))
        never = [rule for rule in by_name.values() if reserved(rule, amounts) > rule.max]
        refusing = {status.rule.name for status in statuses}
        return Denied(tuple(statuses), tuple(rule for rule in never if rule.name in refusing))

    def _alone_running(self, place: Place, tenant: str, now_us: int) -> int:
        (status,) = self._alone.status(
            [place.rule], tenant, Amounts(0, 0, 0), now_us=now_us, month=""
        )
        return status.used

    def _note(self, taken: Taken, places: Sequence[Place], amounts: Sequence[int]) -> None:
        """Count here what was granted, whoever decided."""
        now_us = self._clock.now_us()
        for place, amount in zip(places, amounts, strict=True):
            if place.rule.span is Span.SLIDING:
                taken.own.append((place, amount, self._own.charge(place, amount, now_us)))
            else:
                self._parallel.setdefault(place, set()).add(taken.request_id)
                taken.parallel.append(place)

    # Away and back

    def _leave(self, reason: str) -> None:
        if self.mode is Mode.ALONE or self._closed:
            return
        LOG.warning("the coordinator does not count limits (%s): alone for now", reason)
        if self.mode is Mode.SHARED:
            self._alone = Ledger()
            self._outage.begin(self._clock.now_us())
        # Else it's the same outage still, and what was granted since it began counts.
        self.mode = Mode.ALONE
        self._cancel("share")
        if not self._returning:
            self._returning = True
            self._call_in("return", BEAT_US, self._try_return)

    def _try_return(self) -> None:
        self._owed.spawn(self._return())

    async def _return(self) -> None:
        if self._closed:
            return
        try:
            if not self._link.up:
                raise StoreUnavailableError("the coordinator is away")
            await self._beat()
            await self._tell()
            await self._renew_all(missing=True)
        except StoreUnavailableError:
            self._call_in("return", BEAT_US, self._try_return)
            return
        self._returning = self._lost = False
        self.mode = Mode.BOTH
        self._call_in("share", BOTH_US, self._share)

    def _share(self) -> None:
        LOG.warning("the coordinator counts limits again")
        self.mode = Mode.SHARED
        self._owed.spawn(self._tell())
        self._owed.spawn(self._beat())

    async def _tell(self) -> None:
        """Tell the coordinator what it doesn't hold of what was granted here.

        Raises:
            StoreUnavailableError: It doesn't answer; to be told again.
        """
        await self._owed.pay()
        every = self._own.places() if self._lost else ()
        waiting = list(dict.fromkeys((*self._telling, *self._unsent.places(), *every)))
        while waiting:
            now, waiting = waiting[:RESTORED_AT_ONCE], waiting[RESTORED_AT_ONCE:]
            answers = await asyncio.gather(
                *(self._tell_of(place) for place in now), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer

    async def _tell_of(self, place: Place) -> None:
        now_us = self._clock.now_us()
        own = self._own.ages(place, now_us)
        if place not in self._telling:
            unsent = self._unsent.take(place)
            if unsent is None and not own:
                return
            self._telling[place] = (new_id(""), unsent or SlidingWindow(place.rule.period_us))
        call_id, window = self._telling[place]
        known = self._known.get(place, 0)
        born, used = await self._calls.restore(place, call_id, known, ages(window, now_us), own)
        self._known[place] = born
        self._outage.seen[place] = (used, self._clock.now_us())
        self._telling.pop(place, None)

    # By the clock

    async def _beat(self) -> None:
        """Say that this gateway is there, and see who else is, and whether data was lost.

        Raises:
            StoreUnavailableError: The coordinator doesn't answer.
        """
        reply = await self._link.run(_MEMBERS, [_MARK, _GATEWAYS], [-1, self._id, MEMBER_US])
        mark, *members = (bytes(part) for part in reply)
        if self.mode is Mode.SHARED:
            # A store that comes back empty doesn't know yet who is there.
            fellows = sorted(members)
            self._fellows = Fellows(fellows.index(self._id.encode()), len(fellows))
        before, self._mark = self._mark, mark
        if before and before != mark:
            self._lost = True
            self._leave("it has lost what it counted")

    def _beat_again(self) -> None:
        self._call_in("beat", BEAT_US, self._beat_again)
        if self._link.up:
            self._owed.spawn(self._beat())
        elif self.mode is not Mode.ALONE:
            self._leave("it is away")

    def _renew(self) -> None:
        self._call_in("renew", LEASE_US // 3, self._renew)
        if self._link.up and self.mode is Mode.SHARED:
            self._owed.spawn(self._renew_all())
            self._owed.spawn(self._tell())

    async def _renew_all(self, *, missing: bool = False) -> None:
        for place, ids in list(self._parallel.items()):
            running = sorted(ids)
            for at in range(0, len(running), RENEWED_AT_ONCE):
                now = [name for name in running[at : at + RENEWED_AT_ONCE] if name in ids]
                if now:
                    await self._calls.renew(place, now, missing=missing)

    def _call_in(self, name: str, delay_us: int, callback: Callable[[], None]) -> None:
        self._timers[name] = self._clock.call_at(self._clock.now_us() + delay_us, callback)

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
