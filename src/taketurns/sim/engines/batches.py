# SPDX-License-Identifier: Apache-2.0
"""An engine that serves whole batches: embeddings, reranking.

A batch takes ``base + token x tokens``; an engine that pads counts items x the
longest one. What is there when it's idle goes together, as far as it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from taketurns.sim.engines.base import Engine, Place
from taketurns.sim.request import Request


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """How fast an engine is, and how large its batches are. Times are microseconds.

    Attributes:
        base_us: For each batch.
        token_us: And for each token in it.
        tokens_max: Tokens of a batch; a longer item goes alone.
        items_max: Items of a batch.
        padded: It counts, and takes time for, items x the longest one.
    """

    base_us: float
    token_us: float
    tokens_max: int
    items_max: int
    padded: bool


class BatchEngine(Engine[BatchProfile]):
    """One engine."""

    def __init__(self, profile: BatchProfile, place: Place) -> None:
        super().__init__(profile, place)
        self._batches = 0
        self._tokens = 0

    def wake(self) -> None:
        """Begin a batch of what there is."""
        if not self.idle:
            return
        batch: list[Request] = []
        counted = 0
        while len(batch) < self._profile.items_max:
            request = self._scheduler.head(self.number)
            if request is None:
                break
            with_it = self._counted([*batch, request])
            if batch and with_it > self._profile.tokens_max:
                break
            counted = with_it
            request.engine = self.number
            request.admitted_us = self._clock.now_us()
            self._scheduler.admitted(self.number, request)
            self._watcher.admitted(request)
            batch.append(request)
        if batch:
            self.idle = False
            took = max(1, round(self._profile.base_us + self._profile.token_us * counted))
            self.busy_us += took
            self._batches += 1
            self._tokens += sum(request.input_tokens for request in batch)
            self._clock.call_at(self._clock.now_us() + took, partial(self._finish, batch))

    def solo_us(self, request: Request) -> float:
        return self._profile.base_us + self._profile.token_us * request.input_tokens

    def figures(self) -> dict[str, float]:
        room = self._batches * self._profile.tokens_max
        return {"batch_fill": self._tokens / room if room else 0.0}

    def _counted(self, batch: Sequence[Request]) -> int:
        lengths = [request.input_tokens for request in batch]
        return len(lengths) * max(lengths) if self._profile.padded else sum(lengths)

    def _finish(self, batch: Sequence[Request]) -> None:
        self.idle = True
        now_us = self._clock.now_us()
        for request in batch:
            request.first_us = request.admitted_us
            request.finished_us = now_us
            self._watcher.finished(request)
            self._scheduler.finished(request)
        self.wake()
