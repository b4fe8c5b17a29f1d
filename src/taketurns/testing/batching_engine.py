# SPDX-License-Identifier: Apache-2.0
"""An engine that batches continuously, in virtual time: its throughput has a knee.

All requests that run get a token with each step; a step takes a fixed time and
some more for each request in it. Beyond what it runs at once, requests wait in
a queue of its own, first come, first served: what a gateway wants to avoid.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from taketurns.core.own_finder import OwnFinder
from taketurns.ports.clock import Clock, VirtualClock
from taketurns.units import US_PER_S


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What a step takes.

    Attributes:
        fixed_us: However few run.
        request_us: More for each request in it.
        prompt_token_us: More for each token of a prompt that begins in it.
        thrash_us: More for each request and each one beyond ``thrash_from``: an
            engine that gets slower past a point.
        thrash_from: That point.
    """

    fixed_us: int = 20_000
    request_us: int = 200
    prompt_token_us: int = 20
    thrash_us: int = 0
    thrash_from: int = 1_000_000


class _Request:
    __slots__ = ("left", "on_end", "on_first", "prompt")

    def __init__(
        self, prompt: int, output: int, on_first: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self.prompt = prompt
        self.left = output
        self.on_first = on_first
        self.on_end = on_end


class BatchingEngine:
    """Runs requests on a clock.

    Args:
        clock: The clock.
        batch_max: Most requests in a step; may be changed at any time.
        times: What a step takes; may be changed at any time.
        on_tokens: Told how many tokens a step produced.

    Attributes:
        tokens: Produced so far.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        batch_max: int,
        times: StepTimes | None = None,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.batch_max = batch_max
        self.times = times or StepTimes()
        self.tokens = 0
        self._on_tokens = on_tokens
        self._clock = clock
        self._queue: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._stepping = False

    @property
    def waiting(self) -> int:
        """Requests in its own queue."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Requests that it works on."""
        return len(self._running)

    def submit(
        self,
        *,
        prompt: int,
        output: int,
        on_first: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        """Take a request of so many tokens; both numbers are at least 1."""
        self._queue.append(_Request(prompt, output, on_first, on_end))
        if not self._stepping:
            self._step()

    def _step(self) -> None:
        begun: list[_Request] = []
        while self._queue and len(self._running) + len(begun) < self.batch_max:
            begun.append(self._queue.popleft())
        batch = self._running = [*self._running, *begun]
        self._stepping = bool(batch)
        if not batch:
            return
        times, size = self.times, len(batch)
        prompts = sum(request.prompt for request in begun)
        beyond = max(0, size - times.thrash_from)
        took_us = (
            times.fixed_us
            + size * times.request_us
            + prompts * times.prompt_token_us
            + size * beyond * times.thrash_us
        )
        self._clock.call_at(self._clock.now_us() + took_us, lambda: self._stepped(begun))

    def _stepped(self, begun: list[_Request]) -> None:
        batch = self._running
        self.tokens += len(batch)
        self._on_tokens(len(batch))
        for request in batch:
            request.left -= 1
        ended = [request for request in batch if request.left <= 0]
        self._running = [request for request in batch if request.left > 0]
        for request in begun:
            request.on_first()
        # What they free may be filled before the next step begins.
        for request in ended:
            request.on_end()
        self._step()


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a closed loop.

    Attributes:
        slots: The limit at its end.
        waiting: Requests in the engine's own queue at its end.
        tokens: Produced in it.
    """

    slots: int
    waiting: int
    tokens: int


class ClosedLoop:
    """Keeps an engine as busy as a limit allows: requests never run out.

    Lengths are random: outputs exponential, prompts log-normal.

    Args:
        clock: The clock.
        batch_max: As the engine has it.
        times: As the engine has them.
        limit: How many run at once: a number, or a finder that is told of everything.
        gauge: Show the finder the engine's own queue, once a second.
        seed: Of the lengths.
        prompt: Median tokens of a prompt.
        output: Mean tokens of an answer.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        batch_max: int,
        times: StepTimes,
        limit: int | OwnFinder,
        gauge: bool = False,
        seed: int = 1,
        prompt: int = 50,
        output: int = 100,
    ) -> None:
        self._clock = clock
        self._finder = limit if isinstance(limit, OwnFinder) else None
        self._limit = 0 if isinstance(limit, OwnFinder) else limit
        self._gauge = gauge
        self._random = random.Random(seed)  # noqa: S311 - lengths, not secrets
        self._prompt = prompt
        self._output = output
        self._in_flight = 0
        self.engine = BatchingEngine(
            clock, batch_max=batch_max, times=times, on_tokens=self._produced
        )

    def run(
        self, seconds: int, changes: Mapping[int, Callable[[BatchingEngine], None]] | None = None
    ) -> list[Second]:
        """Run, and return what each second was like.

        Args:
            seconds: How long.
            changes: What to do to the engine, by the second at whose end.
        """
        past: list[Second] = []
        for second in range(1, seconds + 1):
            before = self.engine.tokens
            self._fill()
            self._clock.run_until(second * US_PER_S)
            if self._finder is not None:
                if self._gauge:
                    self._finder.load.gauge(self.engine.waiting, self._clock.now_us())
                self._finder.advance(self._clock.now_us())
            past.append(Second(self.slots, self.engine.waiting, self.engine.tokens - before))
            if changes is not None and second in changes:
                changes[second](self.engine)
        return past

    @property
    def slots(self) -> int:
        """The limit at present."""
        return self._limit if self._finder is None else self._finder.slots

    def _produced(self, tokens: int) -> None:
        if self._finder is not None:
            self._finder.load.produced(tokens)

    def _fill(self) -> None:
        while self._in_flight < self.slots:
            self._send()

    def _send(self) -> None:
        begun_us = self._clock.now_us()
        self._in_flight += 1
        if self._finder is not None:
            self._finder.started(begun_us, stream=True)

        def first() -> None:
            if self._finder is not None:
                now_us = self._clock.now_us()
                self._finder.load.first_byte(now_us - begun_us, now_us)

        def end() -> None:
            self._in_flight -= 1
            if self._finder is not None:
                self._finder.load.ended(self._clock.now_us(), pending=False)
            self._fill()

        draw = self._random
        self.engine.submit(
            prompt=max(1, min(4_000, round(draw.lognormvariate(0, 1) * self._prompt))),
            output=max(1, min(2_000, round(draw.expovariate(1 / self._output)))),
            on_first=first,
            on_end=end,
        )
