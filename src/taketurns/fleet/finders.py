# SPDX-License-Identifier: Apache-2.0
"""How many slots the engines of a shared pool have, as this gateway tells it: set, or found."""

from collections.abc import Callable

from taketurns.fleet.found import Push, SharedFinder
from taketurns.ports.clock import Clock


class Finders:
    """The finders of one pool, by engine.

    Args:
        clock: The process's clock.
        push: Tells the coordinator an event; without effect where it doesn't answer.
    """

    def __init__(self, clock: Clock, push: Push) -> None:
        self._clock = clock
        self._push = push
        self._finders: dict[str, SharedFinder] = {}

    def make(
        self, name: str, least: int, most: int, *, start: int, on_change: Callable[[], None]
    ) -> SharedFinder:
        """Make an engine's; see :class:`taketurns.ports.coordinator.MakeFinder`."""
        made = SharedFinder(
            name,
            least,
            most,
            start=start,
            now_us=self._clock.now_us(),
            push=self._push,
            on_change=on_change,
        )
        self._finders[name] = made
        return made

    def reach(self, name: str, slots: int) -> None:
        """Tell how many slots of an engine can be used from here."""
        finder = self._finders.get(name)
        if finder is None:
            self._push(("engine", name, slots), None)
        else:
            finder.reach(slots)

    def say(self, name: str, slots: int) -> None:
        """Tell all that the coordinator must know of an engine: it may know nothing."""
        self.reach(name, slots)
        if name in self._finders:
            self._finders[name].say()

    def remove(self, name: str) -> None:
        """Start nothing more on an engine."""
        self._finders.pop(name, None)
        self._push(("remove_engine", name), None)

    def go_on(self, *, alone: bool) -> None:
        """Keep what was found while alone; find with the others again."""
        for finder in self._finders.values():
            finder.go_on(alone=alone)
