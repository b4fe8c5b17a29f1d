# SPDX-License-Identifier: Apache-2.0
"""An engine of slots: each request takes its own time, whatever runs beside it.

For pools whose slots are set so that requests don't slow each other down much,
and for large simulations: two events a request. A request may take several
*seats* of the engine, as many as its input tokens, where that is what is shared.
"""

from dataclasses import dataclass
from functools import partial

from taketurns.sim.engines.base import Engine, Place
from taketurns.sim.request import Request


@dataclass(frozen=True, slots=True)
class SlotsProfile:
    """How fast an engine is. Times are microseconds.

    Attributes:
        slots: Requests that run at once; with ``seats``, seats.
        request_us: For each request.
        input_us: And for each of its input tokens, until the first token of output.
        output_us: And for each of its output tokens.
        seats: A request takes as many slots as it has input tokens.
    """

    slots: int
    request_us: float
    input_us: float
    output_us: float
    seats: bool = False


class SlotsEngine(Engine[SlotsProfile]):
    """One engine."""

    patient = False

    def __init__(self, profile: SlotsProfile, place: Place) -> None:
        super().__init__(profile, place)
        self._free = profile.slots
        self._since_us = 0

    def wake(self) -> None:
        """Begin with what there is room for."""
        scheduler, profile = self._scheduler, self._profile
        while self._free > 0:
            request = scheduler.head(self.number)
            if request is None:
                return
            tokens, width = request.input_tokens, 1
            if profile.seats:
                tokens, width = 0, min(tokens, profile.slots)
                if width > self._free:
                    return
            now_us = self._clock.now_us()
            if self.idle:
                self.idle = False
                self._since_us = now_us
            self._free -= width
            request.engine = self.number
            request.admitted_us = now_us
            scheduler.admitted(self.number, request)
            self._watcher.admitted(request)
            first_us = now_us + int(profile.request_us + profile.input_us * tokens)
            request.first_us = first_us
            done_us = first_us + int(profile.output_us * request.output_tokens)
            self._clock.call_at(done_us or 1, partial(self._finish, request, width))

    def solo_us(self, request: Request) -> float:
        profile = self._profile
        taken = 0.0 if profile.seats else profile.input_us * request.input_tokens
        return profile.request_us + taken + profile.output_us * request.output_tokens

    def figures(self) -> dict[str, float]:
        return {}

    def _finish(self, request: Request, width: int) -> None:
        now_us = request.finished_us = self._clock.now_us()
        self._free += width
        if self._free == self._profile.slots:
            self.idle = True
            self.busy_us += now_us - self._since_us
        self._watcher.finished(request)
        self._scheduler.finished(request)
        if not self._scheduler.pushes:
            self.wake()
