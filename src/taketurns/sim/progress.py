# SPDX-License-Identifier: Apache-2.0
"""How far a run is: told as its requests arrive, for a bar that people watch."""

from collections.abc import Callable, Iterator

from taketurns.sim.request import Request

STEPS = 50

Done = Callable[[float], None]
"""Called with the share of a run that has been done since the last call."""


class Told:
    """Tells how much of one run is done: of its time of arrivals; the rest when it's over.

    Args:
        duration_us: How long requests arrive.
        done: Told at each fiftieth.
    """

    def __init__(self, duration_us: int, done: Done) -> None:
        self._step_us = max(1, duration_us // STEPS)
        self._done = done
        self._steps = 0

    def watched(self, arrivals: Iterator[Request]) -> Iterator[Request]:
        """Yield the requests, and tell as time passes."""
        next_us = self._step_us
        for request in arrivals:
            while request.arrived_us >= next_us and self._steps < STEPS - 1:
                next_us += self._step_us
                self._steps += 1
                self._done(1 / STEPS)
            yield request

    def over(self) -> None:
        """Tell that the run is over."""
        self._done((STEPS - self._steps) / STEPS)
