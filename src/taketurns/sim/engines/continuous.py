# SPDX-License-Identifier: Apache-2.0
"""An engine that batches continuously: prefill, decoding steps, and a pool of memory for tokens.

A decoding step gives each running request one token and takes ``step + request
x requests + token x resident tokens``. Every few steps the engine asks its
scheduler for more; a request is admitted if the pool holds all that run until
each is at its end: the rule of Y. Sheng et al., "S-LoRA: Serving Thousands of
Concurrent LoRA Adapters", MLSys 2024, on which VTC was measured. Admitted
requests are prefilled together while the others stand still.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

from taketurns.ports.clock import Timer
from taketurns.sim.engines.base import Engine, Place
from taketurns.sim.request import Request


@dataclass(frozen=True, slots=True)
class ContinuousProfile:
    """How fast an engine is and how much it holds. Times are microseconds.

    Attributes:
        prefill_token_us: For each input token of those admitted together.
        step_us: For each decoding step.
        step_request_us: And for each request in it.
        step_token_us: And for each token that is resident.
        overhead_us: For each step and each prefill, outside the model.
        pool_tokens: Tokens that the pool holds.
        prefill_tokens_max: Input tokens admitted together; a longer one goes alone.
        requests_max: Requests that run at once.
        steps_between: Decoding steps between two admissions.
    """

    prefill_token_us: float
    step_us: float
    step_request_us: float
    step_token_us: float
    overhead_us: float
    pool_tokens: int
    prefill_tokens_max: int
    requests_max: int = 1_000
    steps_between: int = 10


A10G_LLAMA2_7B = ContinuousProfile(
    prefill_token_us=214,
    step_us=18_160,
    step_request_us=216,
    step_token_us=1.891,
    overhead_us=3_500,
    pool_tokens=10_000,
    prefill_tokens_max=3_072,
)
"""Llama-2-7b on an A10G with 24 GB, in S-LoRA: least squares on the cost profile published with
VTC, and the router's overhead so that the measured total time comes out."""

_Resident = tuple[int, int, int, Request]
"""Minus the step of its last token, number, resident tokens less steps made, request."""


class ContinuousEngine(Engine[ContinuousProfile]):
    """One engine."""

    def __init__(self, profile: ContinuousProfile, place: Place) -> None:
        super().__init__(profile, place)
        self._running: list[_Resident] = []
        self._resident = 0
        self._numbers = 0
        self._step = 0
        self._since = 0
        self._timer: Timer | None = None
        self._began_us = 0
        self._under_way = 0
        self._open = False

    def wake(self) -> None:
        """Look for work: something has arrived. Without effect in the middle of a step."""
        if self.idle:
            self._go()
        elif self._open:
            self._cut_short()

    def solo_us(self, request: Request) -> float:
        profile, steps = self._profile, request.output_tokens - 1
        prefill = profile.overhead_us + profile.prefill_token_us * request.input_tokens
        one = profile.overhead_us + profile.step_us + profile.step_request_us
        resident = steps * (request.input_tokens + 1) + steps * (steps - 1) // 2
        return prefill + steps * one + profile.step_token_us * resident

    def figures(self) -> dict[str, float]:
        return {}

    def _go(self) -> None:
        """Begin what comes next: a prefill, decoding steps, or nothing."""
        steps_between = self._profile.steps_between
        if not self._running or self._since >= steps_between:
            admitted = self._admit()
            if admitted:
                self._prefill(admitted)
                return
        if not self._running:
            self.idle = True
            return
        to_finish = -self._running[-1][0] - self._step
        self._open = False
        if self._since < steps_between:
            self._decode(min(steps_between - self._since, to_finish))
            return
        head = self._scheduler.head(self.number)
        if head is None:
            self._open = True
            self._decode(to_finish)
        elif self._scheduler.keeps_head:
            self._decode(self._steps_until_fit(head, to_finish))
        else:
            self._decode(1)

    # Admission

    def _admit(self) -> list[Request]:
        """Take in what fits, in the scheduler's order; stop at the first that doesn't."""
        scheduler, profile = self._scheduler, self._profile
        if scheduler.follows and scheduler.waiting:
            scheduler.decoded(self.number, self._step)
        admitted: list[Request] = []
        tokens = 0
        while len(self._running) < profile.requests_max:
            request = scheduler.head(self.number)
            if request is None:
                break
            tokens += request.input_tokens
            too_many = bool(admitted) and tokens > profile.prefill_tokens_max
            if too_many or not self._fits(request, self._step):
                break
            request.engine = self.number
            request.start_step = self._step
            request.admitted_us = self._clock.now_us()
            scheduler.admitted(self.number, request)
            self._watcher.admitted(request)
            admitted.append(request)
            last = self._step + request.output_tokens - 1
            self._numbers += 1
            entry = (-last, self._numbers, request.input_tokens + 1 - self._step, request)
            insort(self._running, entry)
        return admitted

    def _fits(self, request: Request, step: int) -> bool:
        """Tell whether the pool holds it and all that run, at each one's last token."""
        pool = self._profile.pool_tokens
        own_last = step + request.output_tokens - 1
        own = request.input_tokens + 1 - step
        count = held = 0
        placed = False
        for minus_last, _, resident, _ in self._running:
            last = -minus_last
            if not placed and last < own_last:
                placed = True
                count += 1
                held += own
                if held + count * own_last >= pool:
                    return False
            count += 1
            held += resident
            if held + count * last >= pool:
                return False
        return placed or held + own + (count + 1) * own_last < pool

    def _steps_until_fit(self, head: Request, to_finish: int) -> int:
        """Return after how many steps the head fits, or the first that runs has finished."""
        if len(self._running) >= self._profile.requests_max:
            return to_finish
        for steps in range(1, to_finish):
            if self._fits(head, self._step + steps):
                return steps
        return to_finish

    # Steps

    def _prefill(self, admitted: list[Request]) -> None:
        profile = self._profile
        tokens = sum(request.input_tokens for request in admitted)
        self.idle = self._open = False
        self._since = 0
        self._resident += tokens + len(admitted)
        self._after(profile.overhead_us + profile.prefill_token_us * tokens, self._prefilled)
        self._fresh = admitted

    def _prefilled(self) -> None:
        now_us = self._clock.now_us()
        for request in self._fresh:
            request.first_us = now_us
        self._finish()
        self._go()

    def _decode(self, steps: int) -> None:
        self.idle = False
        self._under_way = steps
        self._began_us = self._clock.now_us()
        self._after(self._duration_us(steps), self._decoded)

    def _decoded(self) -> None:
        steps = self._under_way
        self._step += steps
        self._since += steps
        self._resident += steps * len(self._running)
        self._finish()
        self._go()

    def _duration_us(self, steps: int) -> float:
        """Return how long so many steps take from here, if none of the running is at its end."""
        profile, requests = self._profile, len(self._running)
        one = profile.overhead_us + profile.step_us + profile.step_request_us * requests
        resident = self._resident * steps + requests * steps * (steps - 1) // 2
        return steps * one + profile.step_token_us * resident

    def _cut_short(self) -> None:
        """Let the steps under way end with the one that is being made now."""
        elapsed = self._clock.now_us() - self._began_us
        steps, most = 1, self._under_way
        while steps < most:
            middle = (steps + most) // 2
            if self._duration_us(middle) < elapsed:
                steps = middle + 1
            else:
                most = middle
        self._open = False
        if steps < self._under_way:
            assert self._timer is not None
            self._timer.cancel()
            self.busy_us -= round(self._duration_us(self._under_way))
            self._under_way = steps
            took = round(self._duration_us(steps))
            self.busy_us += took
            when = max(self._began_us + took, self._clock.now_us())
            self._timer = self._clock.call_at(when, self._decoded)

    def _after(self, duration_us: float, then: Callable[[], None]) -> None:
        took = max(1, round(duration_us))
        self.busy_us += took
        self._timer = self._clock.call_at(self._clock.now_us() + took, then)

    def _finish(self) -> None:
        """Let go of those that have their last token."""
        running = self._running
        now_us = self._clock.now_us()
        while running and -running[-1][0] <= self._step:
            _, _, resident, request = running.pop()
            self._resident -= resident + self._step
            request.finished_us = now_us
            self._watcher.finished(request)
            self._scheduler.finished(request)
