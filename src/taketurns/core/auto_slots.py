# SPDX-License-Identifier: Apache-2.0
"""Finds how many requests an engine should run at once: the fewest that keep it busy.

Below its knee an engine does more work with each further request; above it
they only wait inside it, where nothing is fair. So the limit follows three
signs, each measured over windows of about a second:

* *A queue inside the engine* (:meth:`taketurns.core.signs.Signs.queue`) longer than the
  tolerance lowers the limit at once to what the engine works on, by half at most.
* *Throughput*: a limit is raised a step, by a half, a quarter or an eighth, and
  kept if the work done grows by at least an eighth of what the step promises;
  otherwise it's taken back. Then a step down is tried, and kept unless the work
  shrinks by more than that.
* *A refusal* (429, 503) lowers it to what the engine holds.

Only windows in which the limit was used up tell anything of throughput: a
limit isn't raised while nobody needs it.

Who feeds it cuts time into windows: one process its own
(:mod:`taketurns.core.own_finder`), a fleet those of all its gateways. So it has no
time of its own, and all that it knows can be handed on.

Source: additive increase and multiplicative decrease on a queue estimated from
delays is that of TCP Vegas (L. Brakmo and L. Peterson, IEEE JSAC 13(8), 1995)
and BBR (N. Cardwell et al., ACM Queue 14(5), 2016), whose startup doubles until
the delivery rate stops to grow. Departures: a service slows down evenly with
its load where a link doesn't, so that growth is asked for in proportion, and
steps down are tried too.
"""

from typing import NamedTuple

from taketurns.core.signs import NOTHING, Signs
from taketurns.units import US_PER_S

WINDOW_US_MAX = 4 * US_PER_S
"""Longest window, for engines that rarely show anything."""

SIGNS_MIN = 16
"""First bytes, or pieces of work, after which a window can end."""

TRY_US_MAX = 3 * US_PER_S
"""How long a step is looked at before it's judged, unless it's clear sooner."""

STEP_SHIFT_MAX = 3
"""A step is the limit shifted right by 0 (doubling) to so many bits (an eighth)."""

WORTH = 8
"""A step must bring one part in so many of what it would bring an engine without a knee."""

REST_MIN, REST_MAX = 2, 8
"""Windows between two tries, the more the longer nothing changes."""


class Measured(NamedTuple):
    """Work done at a limit, and the slot time it took.

    Work per time is work x slots / slot time, so that windows that weren't
    quite full compare all the same.
    """

    work: int
    slot_us: int
    slots: int


class Known(NamedTuple):
    """All that a finder knows: another one goes on from it as this one would.

    Attributes:
        slots: The limit.
        queue: Requests thought to wait inside the engine; None: unknown.
        base_us: The best time to a first byte; None: unknown.
        reference: What was measured at this limit.
        tried_from: What was measured before a step that is tried.
        down: The next step, or the one that is tried, goes down.
        step: By how many bits it's shifted.
        rests: Windows to rest after the next one that's taken back.
        rest: Windows to rest yet.
        settling: Windows yet in which something runs that began under another limit.
        window: The window that hasn't ended.
    """

    slots: int
    queue: int | None = None
    base_us: int | None = None
    reference: Measured | None = None
    tried_from: Measured | None = None
    down: bool = False
    step: int = 0
    rests: int = REST_MIN
    rest: int = 1
    settling: int = 1
    window: Signs = NOTHING


class SlotFinder:
    """One engine's limit.

    Args:
        least: Fewest slots, at least 1.
        most: Most slots, at least ``least``.
        start: Slots to begin with.

    Attributes:
        slots: The limit at present.
        grows: False where the engine's slots are set, see :meth:`bound`.
        queue: Requests thought to wait inside it, from the last window; None: unknown.
    """

    __slots__ = (
        "_base_us",
        "_down",
        "_least",
        "_most",
        "_reference",
        "_rest",
        "_rests",
        "_settling",
        "_step",
        "_tried_from",
        "_usable_percent",
        "_window",
        "grows",
        "queue",
        "slots",
    )

    def __init__(self, least: int, most: int, *, start: int) -> None:
        self._least = least
        self._most = most
        self._usable_percent = 100
        self.grows = True
        self._window = NOTHING
        self.restore(Known(start))

    def bound(
        self, least: int, most: int, *, grows: bool = True, usable_percent: int = 100
    ) -> None:
        """Change what it was made with.

        Args:
            least: Fewest slots; 0 with ``most`` 0: the engine gets nothing.
            most: Most slots.
            grows: False: an engine whose slots are set: refusals lower them, for a while.
            usable_percent: Share of the slots that can be used at most, 1 to 100: others
                may be kept free.
        """
        self._usable_percent = usable_percent
        if not grows and (self.grows or most != self._most):
            self.slots = most
        self.grows = grows
        self._least, self._most = least, most
        self._set(self.slots)

    def take(self, signs: Signs) -> None:
        """Take in what follows the last window, and move the limit by what it shows."""
        if not self.grows:
            self._set(self.slots + max(1, self.slots >> STEP_SHIFT_MAX))
            return
        window = self._window.then(signs)
        self._window = NOTHING if window.idle or self._judge(window) else window

    def refused(self, in_flight: int) -> None:
        """Lower the limit to what the engine holds: it refused one more, which has ended."""
        self._set(min(self.slots, in_flight))
        self._give_up()

    def restart(self) -> None:
        """Begin again from the least: the engine was away and may have changed."""
        if self.grows:
            self.restore(Known(self._least))

    @property
    def at_rest(self) -> bool:
        """True where nothing is to come of a window in which nothing runs."""
        return self._window.slot_us == 0 if self.grows else self.slots == self._most

    def known(self) -> Known:
        """Return all that it knows."""
        return Known(
            self.slots,
            self.queue,
            self._base_us,
            self._reference,
            self._tried_from,
            self._down,
            self._step,
            self._rests,
            self._rest,
            self._settling,
            self._window,
        )

    def restore(self, known: Known) -> None:
        """Go on from what another one knew, within the bounds of this one."""
        self._set(known.slots)
        self.queue = known.queue
        self._base_us = known.base_us
        # What was measured at this limit; and before a step that is tried, or None.
        self._reference = known.reference
        self._tried_from = known.tried_from
        self._down = known.down
        self._step = known.step
        self._rests = known.rests
        self._rest = known.rest
        self._settling = known.settling
        self._window = known.window

    def _set(self, slots: int) -> None:
        self.slots = max(self._least, min(slots, self._most))

    def _give_up(self) -> None:
        """Forget what a step would be compared to, and try none for a while."""
        self._reference = self._tried_from = None
        self._settling = 1
        self._step = STEP_SHIFT_MAX
        self._rest = self._rests = REST_MIN
        self._window = NOTHING

    def _judge(self, window: Signs) -> bool:
        """Move the limit by what the window showed; False: it must go on to show enough."""
        slots = self.slots
        queue, self._base_us = window.queue(self._base_us)
        self.queue = queue
        crowded = queue is not None and queue > 1 + (slots >> 4)
        if window.seen < SIGNS_MIN and window.length_us < WINDOW_US_MAX and not crowded:
            return False
        if self._settling:
            # What ran in this window began under another limit.
            self._settling -= 1
        elif queue is not None and crowded:
            works_on = window.in_flight - queue
            if works_on < slots:
                self._set(min(slots - 1, max(works_on, slots >> 1)))
                self._give_up()
        elif window.in_flight <= slots:
            usable = max(1, slots * self._usable_percent // 100)
            if window.work and window.slot_us * 8 >= usable * window.length_us * 7:
                return self._try(window)
            # It isn't used up; a step that nobody used is taken back.
            if self._tried_from is not None:
                self._set(self._tried_from.slots)
            self._reference = self._tried_from = None
        return True

    def _try(self, window: Signs) -> bool:
        """Compare a step to what was before it, or take the next one; False: not clear yet."""
        measured = Measured(window.work, window.slot_us, self.slots)
        before, known = self._tried_from, self._reference
        if before is not None:
            keep = self._keeps(before, measured, last=window.length_us >= TRY_US_MAX)
            if keep is None:
                return False
            self._tried_from = None
            if not keep:
                self._set(before.slots)
                self._reference = before
                self._turn_round()
                return True
            self._step = max(0, self._step - 1)
            self._rest = 0
            self._rests = REST_MIN
        elif known is not None:
            # Older windows count half as much, each.
            measured = Measured(
                known.work // 2 + measured.work, known.slot_us // 2 + measured.slot_us, self.slots
            )
        self._reference = measured
        if self._rest:
            self._rest -= 1
            return True
        step = max(1, self.slots >> self._step)
        self._set(self.slots - step if self._down else self.slots + step)
        if self.slots == measured.slots:
            # At its bound: only the other way is left.
            self._turn_round()
        else:
            self._tried_from, self._reference = measured, None
            self._settling = 1
        return True

    def _turn_round(self) -> None:
        self._down = not self._down
        self._step = STEP_SHIFT_MAX
        self._settling = 1
        self._rest = self._rests
        self._rests = min(self._rests + 1, REST_MAX)

    def _keeps(self, before: Measured, after: Measured, *, last: bool) -> bool | None:
        """Tell whether a step is worth keeping; None: not clear yet, and it isn't the last look."""
        was = before.work * before.slots * after.slot_us
        got = after.work * after.slots * before.slot_us
        # What the step would change for an engine without a knee, and what it did change.
        promised = was * abs(after.slots - before.slots) // before.slots
        effect = was - got if self._down else got - was
        if abs(effect) * 2 < promised and not last:
            return None
        return (effect * WORTH >= promised) != self._down
