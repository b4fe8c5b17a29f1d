# SPDX-License-Identifier: Apache-2.0
"""What an engine showed in a window of time, and how windows are put together.

Windows follow each other, as one gateway sees an engine (:meth:`Signs.then`), or
lie beside each other, as several gateways see the same engine (:func:`beside`):
those needn't begin at the same instant or be equally long, so that what is added
up is work and slot time *per time*.

The engine's own gauge of what waits inside it counts while it's fresh; else its
queue follows, by Little's law, from the streams that wait for their first byte, less
those that would if each waited as long as they did at best.
"""

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from taketurns.units import US_PER_S

FIRST_BYTES_MAX = 64
"""Most times to a first byte that are kept of a window."""

FIRST_BYTES_MIN = 4
"""With fewer in a window, its middle says nothing."""

GAUGE_FRESH_US = 3 * US_PER_S
"""How long a gauge's reading counts; after that it's unknown: neither idle nor full."""

FORGETS = 256
"""The best time to a first byte moves by one part in so many towards a window's, if that is more:
engines and prompts change."""


class Signs(NamedTuple):
    """One window. All are integers of at least 0.

    Attributes:
        length_us: How long it was.
        work: Tokens that were produced in it.
        slot_us: Slot time that was used in it.
        seen: First bytes and pieces of work in it.
        pending_us: Time that streams waited in it for their first byte, in all.
        begun: Streams that began in it.
        first_bytes: How long some of these took, at most :data:`FIRST_BYTES_MAX`.
        gauge: Requests that wait inside the engine by its own account; None: not known.
        gauge_age_us: How old that was at the end of the window.
        in_flight: Requests that ran there at its end.
    """

    length_us: int = 0
    work: int = 0
    slot_us: int = 0
    seen: int = 0
    pending_us: int = 0
    begun: int = 0
    first_bytes: tuple[int, ...] = ()
    gauge: int | None = None
    gauge_age_us: int = 0
    in_flight: int = 0

    @property
    def idle(self) -> bool:
        """True where nothing ran in it, and nothing runs."""
        return self.in_flight == 0 and self.slot_us == 0

    def then(self, later: "Signs") -> "Signs":
        """Return one window of this one and the one that follows it."""
        known = later.gauge is not None or self.gauge is None
        return Signs(
            self.length_us + later.length_us,
            self.work + later.work,
            self.slot_us + later.slot_us,
            self.seen + later.seen,
            self.pending_us + later.pending_us,
            self.begun + later.begun,
            (self.first_bytes + later.first_bytes)[:FIRST_BYTES_MAX],
            later.gauge if known else self.gauge,
            later.gauge_age_us if known else self.gauge_age_us + later.length_us,
            later.in_flight,
        )

    def queue(self, base_us: int | None) -> tuple[int | None, int | None]:
        """Return how many requests wait inside the engine, None: unknown; and the best wait.

        Args:
            base_us: The best time to a first byte that is known, or None.
        """
        if len(self.first_bytes) >= FIRST_BYTES_MIN:
            middle_us = median_low(self.first_bytes)
            if base_us is None or middle_us <= base_us:
                base_us = middle_us
            else:
                base_us += (middle_us - base_us) // FORGETS
        if self.gauge is not None and self.gauge_age_us <= GAUGE_FRESH_US:
            return self.gauge, base_us
        if base_us is None or not self.length_us:
            return None, base_us
        waits_us = self.pending_us - self.begun * base_us
        return max(0, waits_us) // self.length_us, base_us


NOTHING = Signs()
"""A window that has yet to begin."""


def beside(windows: Sequence[Signs]) -> Signs:
    """Return what several gateways saw of one engine as one window, as long as the longest.

    The order of the windows doesn't matter. Of an engine's own queue the latest reading counts:
    each of them is of all gateways' requests. Pure; O(first bytes).
    """
    length_us = max((window.length_us for window in windows), default=0)
    parts = [window for window in windows if window.length_us]
    gauges = [(w.gauge_age_us, w.gauge) for w in windows if w.gauge is not None]
    # Two readings of one instant: the longer queue.
    age_us, gauge = min(gauges, key=lambda g: (g[0], -g[1])) if gauges else (0, None)
    return Signs(
        length_us,
        sum(part.work * length_us // part.length_us for part in parts),
        sum(part.slot_us * length_us // part.length_us for part in parts),
        sum(part.seen for part in parts),
        sum(part.pending_us * length_us // part.length_us for part in parts),
        sum(part.begun * length_us // part.length_us for part in parts),
        _some([us for part in parts for us in part.first_bytes]),
        gauge,
        age_us,
        sum(window.in_flight for window in windows),
    )


def _some(first_bytes: list[int]) -> tuple[int, ...]:
    """Return as many as are kept, evenly from the shortest to the longest."""
    if len(first_bytes) > FIRST_BYTES_MAX:
        first_bytes.sort()
        many = len(first_bytes)
        first_bytes = [
            first_bytes[(2 * place + 1) * many // (2 * FIRST_BYTES_MAX)]
            for place in range(FIRST_BYTES_MAX)
        ]
    return tuple(first_bytes)
