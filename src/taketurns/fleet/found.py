# SPDX-License-Identifier: Apache-2.0
"""Slots of an engine that are found by all gateways of a fleet together.

Each gateway tells the coordinator, window by window, what it saw of the engine. Whose
window makes them complete is handed all of them, and feeds their sum to the one
:class:`SlotFinder` of the fleet: what that knows is kept with the limit, under a
version. Any gateway can be the next to judge, so none is missed when it dies; and what
one sets from an older version counts for nothing.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import msgspec

from taketurns.core.auto_slots import Known, SlotFinder
from taketurns.core.own_finder import WINDOW_US, OwnFinder
from taketurns.core.signs import Signs, beside
from taketurns.fleet.driver import Done
from taketurns.fleet.pool import Event

ENCODER = msgspec.json.Encoder()
KNOWN = msgspec.json.Decoder(Known)
SIGNS = msgspec.json.Decoder(Signs)

Push = Callable[[Event, Done | None], None]


class SharedFinder:
    """Implements :class:`taketurns.ports.coordinator.Finder` for one gateway of a fleet.

    While there's no coordinator, the limit that was found last stays, and refusals
    lower it for a while. An engine whose slots are set is this gateway's matter alone.

    Args:
        name: The engine's.
        least: Fewest slots, at least 1.
        most: Most slots, at least ``least``.
        start: Slots to begin with, where the fleet knows nothing yet.
        now_us: The time.
        push: Tells the coordinator an event; without effect where it doesn't answer.
        on_change: Called when the limit has changed by itself.
    """

    def __init__(
        self,
        name: str,
        least: int,
        most: int,
        *,
        start: int,
        now_us: int,
        push: Push,
        on_change: Callable[[], None],
    ) -> None:
        self._name = name
        self._least, self._most = least, most
        self._grows = True
        self._usable_percent = 100
        self._own = OwnFinder(least, most, start=start)
        self._own.load.begin(now_us)
        self.load = self._own.load
        self._judge = SlotFinder(least, most, start=start)
        self._push = push
        self._on_change = on_change
        self._due_us = now_us + WINDOW_US
        self._alone = False
        self._version = 0
        # How many slots can be used from here; None: all of them.
        self._part: int | None = 0
        self._said: int | None = None
        self._refusals = 0
        self._was_away = False

    @property
    def slots(self) -> int:
        """The limit at present."""
        return self._own.slots

    @property
    def grows(self) -> bool:
        """False where the engine's slots are set."""
        return self._grows

    @property
    def queue(self) -> int | None:
        """Requests thought to wait inside the engine, from the last window; None: unknown."""
        return self._own.queue

    def started(self, now_us: int, *, stream: bool) -> None:
        """Count a request that is sent; ``stream``: a first byte will come long before its end."""
        if self._shared:
            self.load.started(now_us, stream=stream)
        else:
            self._own.started(now_us, stream=stream)

    def refused(self, now_us: int) -> None:
        """Lower the limit to what the engine holds: it refused one more, which has ended."""
        if not self._shared:
            self._own.refused(now_us)
            return
        self._refusals += 1
        if self._refusals == 1:
            self._ask()

    def restart(self, now_us: int) -> None:
        """Begin again from the least, unless others reached the engine all the while."""
        if self._shared:
            self.load.forget()
            self._was_away = True
            self._ask()
        else:
            self._own.restart(now_us)

    def bound(
        self, least: int, most: int, *, grows: bool = True, usable_percent: int = 100
    ) -> None:
        """Change what it was made with; see :meth:`SlotFinder.bound`."""
        changed = (self._least, self._most, self._grows) != (least, most, grows)
        self._least, self._most, self._grows = least, most, grows
        self._usable_percent = usable_percent
        self._bind()
        if changed:
            self.say()

    def next_wake_us(self) -> int | None:
        """Return when :meth:`advance` has something to do; None where nothing runs."""
        return self._due_us if self._shared else self._own.next_wake_us()

    def advance(self, now_us: int) -> None:
        """Tell a window if it's due."""
        if not self._shared:
            self._own.advance(now_us)
        elif now_us >= self._due_us:
            window = ENCODER.encode(self.load.cut(now_us)).decode()
            self._due_us = now_us + WINDOW_US
            self._push(("window", self._name, self._version, window), self._told)
            if self._refusals or self._was_away:
                # What was asked last was not answered, or came too late.
                self._ask()

    # What follows is for the pool.

    def reach(self, slots: int) -> None:
        """Say how many slots of the engine can be used from here: all of the limit, or fewer."""
        self._part = None if slots >= self.slots else slots
        if self._reached != self._said:
            self.say()

    def say(self) -> None:
        """Tell the coordinator what it must know of this gateway and the engine."""
        self._said = reached = self._reached
        if self._grows:
            known = text_of(self._own.finder.known())
            event = ("seek", self._name, reached, self._version, self.slots, known)
            self._push(event, self._told)
        else:
            self._push(("engine", self._name, reached), None)

    def go_on(self, *, alone: bool) -> None:
        """Keep the limit that was found last while alone; find it with the others again."""
        self._alone = alone
        self._bind()
        if not alone:
            self.say()

    # Inside.

    @property
    def _reached(self) -> int:
        if self._part is not None:
            return self._part
        return self._most if self._grows else self.slots

    @property
    def _shared(self) -> bool:
        return self._grows and not self._alone

    def _bind(self) -> None:
        """Let the finders keep to the bounds."""
        percent = self._usable_percent
        if self._grows and self._alone:
            limit = self.slots
            self._own.bound(min(1, limit), limit, grows=False)
        else:
            self._own.bound(self._least, self._most, grows=self._grows, usable_percent=percent)
        self._judge.bound(self._least, self._most, usable_percent=percent)

    def _ask(self) -> None:
        self._push(("ask", self._name), self._asked)

    def _told(self, answer: list[Any]) -> None:
        """Learn what the fleet knows; judge, where it's this gateway's turn."""
        word, *more = answer
        if not self._shared:
            return
        if word == "unknown":
            self.say()
            return
        version, known, *seen = more
        if known:
            self._adopt(version, known)
        if word == "judge":
            in_flight, now_us, windows = seen
            self._judge.restore(KNOWN.decode(known))
            self._judge.take(summed(windows, now_us)._replace(in_flight=in_flight))
            self._find(version, known, self._told)

    def _asked(self, answer: list[Any]) -> None:
        """Do what a refusal, or the return of the engine, asks for."""
        word, *more = answer
        if not self._shared or word == "unknown":
            return
        version, known, in_flight, elsewhere = more
        self._adopt(version, known)
        self._judge.restore(KNOWN.decode(known))
        if self._was_away and elsewhere == 0:
            self._judge.restart()
        elif self._refusals:
            self._judge.refused(max(0, in_flight - self._refusals))
        self._find(version, known, self._done)

    def _done(self, answer: list[Any]) -> None:
        if answer[0] == "found":
            self._refusals, self._was_away = 0, False
        self._told(answer)

    def _find(self, version: int, before: str, done: Done) -> None:
        """Set what the judge says, unless somebody set something meanwhile."""
        known = text_of(self._judge.known())
        if known == before:
            done(["found", version, known])
        else:
            self._push(("find", self._name, version, self._judge.slots, known), done)

    def _adopt(self, version: int, known: str) -> None:
        before = self.slots
        self._version = version
        self._own.finder.restore(KNOWN.decode(known))
        if self.slots != before:
            self._on_change()


def text_of(known: Known) -> str:
    """Return what a finder knows as the text that is kept."""
    return ENCODER.encode(known).decode()


def summed(windows: Sequence[Sequence[tuple[str, int]]], now_us: int) -> Signs:
    """Return what gateways saw as one window.

    Args:
        windows: Of each gateway those that follow each other, as text, each with the time when
            it came; at least one.
        now_us: The time.
    """
    seen = []
    for those in windows:
        whole = reduce(Signs.then, (SIGNS.decode(text) for text, _ in those))
        late_us = now_us - those[-1][1]
        seen.append(whole._replace(gauge_age_us=whole.gauge_age_us + late_us))
    return beside(seen)
