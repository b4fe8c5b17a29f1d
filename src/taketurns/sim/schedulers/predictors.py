# SPDX-License-Identifier: Apache-2.0
"""How long an answer is expected to be: what schedulers charge for before it is there."""

from random import Random
from typing import Protocol

from taketurns.core.lengths import OutputLengths
from taketurns.sim.request import Request


class Predictor(Protocol):
    """Foresees output lengths."""

    def expected(self, request: Request) -> int:
        """Return how many output tokens a request is expected to have, at least 0."""
        ...

    def seen(self, request: Request) -> None:
        """Learn from a request that has finished."""
        ...


class Nothing:
    """Implements :class:`Predictor`: expects nothing, so that output is paid as it's produced."""

    def expected(self, request: Request) -> int:  # noqa: ARG002
        return 0

    def seen(self, request: Request) -> None:
        pass


class Oracle:
    """Implements :class:`Predictor`: knows, or errs by a uniform share of the truth.

    Args:
        error: Largest error, 0 to 1; 0: none.
        random: Draws the errors.
    """

    def __init__(self, error: float, random: Random) -> None:
        self._error = error
        self._random = random

    def expected(self, request: Request) -> int:
        output = request.output_tokens
        if not self._error:
            return output
        return round(self._random.uniform(output * (1 - self._error), output * (1 + self._error)))

    def seen(self, request: Request) -> None:
        pass


class LastFive:
    """Implements :class:`Predictor`: a moving average over about five of the tenant's own answers.

    Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI
    2024: 0 before the first answer, and then four parts old, one part new.
    """

    def __init__(self) -> None:
        self._average: dict[str, float] = {}

    def expected(self, request: Request) -> int:
        return round(self._average.get(request.tenant, 0))

    def seen(self, request: Request) -> None:
        old = self._average.get(request.tenant)
        output = request.output_tokens
        self._average[request.tenant] = output if old is None else (old * 4 + output) / 5


class Learned:
    """Implements :class:`Predictor`: as the gateway learns them.

    Args:
        default: Output tokens to expect before any answer has been seen.
    """

    def __init__(self, default: int) -> None:
        self._lengths = OutputLengths(default)

    def expected(self, request: Request) -> int:
        return self._lengths.expected(request.tenant)

    def seen(self, request: Request) -> None:
        self._lengths.seen(request.tenant, request.output_tokens)
