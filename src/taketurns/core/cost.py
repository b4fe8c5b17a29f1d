# SPDX-License-Identifier: Apache-2.0
"""Cost models: what a request is charged at dispatch and what it has cost in the end.

Costs are integers in the pool's cost unit. With `requests` the unit is a
thousandth of a request, so that a quantum of one request, divided by the
largest weight, still is a whole number. With `tokens` and `ema` the unit is a
token of input.
"""

from dataclasses import dataclass
from typing import Protocol

REQUEST_COST = 1_000
"""Cost units of one request in a pool that counts requests."""


class CostModel(Protocol):
    """Turns what is known of a request into cost units."""

    def charge(self, input_tokens: int, output_tokens: int) -> int:
        """Return what a request is charged when it is dispatched.

        Args:
            input_tokens: Tokens of its input, counted or estimated; at least 0.
            output_tokens: Tokens that its output is expected to have, at least 0.

        Returns:
            At least 1.
        """
        ...

    def running(self, input_tokens: int, produced: int, expected: int) -> int | None:
        """Return what stands charged while a request runs; None: what was charged at dispatch.

        It never falls as ``produced`` grows.

        Args:
            input_tokens: As in :meth:`charge`.
            produced: Output tokens so far, at least 0.
            expected: Output tokens that were expected at dispatch, at least 1.
        """
        ...

    def used(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what a request has cost by the engine's count; None: what was charged."""
        ...


@dataclass(frozen=True, slots=True)
class RequestsCost:
    """Implements :class:`CostModel`: each request costs the same."""

    def charge(self, input_tokens: int, output_tokens: int) -> int:  # noqa: ARG002
        return REQUEST_COST

    def running(self, input_tokens: int, produced: int, expected: int) -> int | None:  # noqa: ARG002
        return None

    def used(self, input_tokens: int, output_tokens: int) -> int | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class TokensCost:
    """Implements :class:`CostModel`: a request costs its tokens.

    Attributes:
        input_weight: Cost units of one input token, at least 1.
        output_weight: Cost units of one output token, at least 1. An output
            token takes a decoding step of its own and costs about twice an
            input token (Y. Sheng et al., "Fairness in Serving Large Language
            Models", OSDI 2024).
    """

    input_weight: int = 1
    output_weight: int = 2

    def charge(self, input_tokens: int, output_tokens: int) -> int:
        return max(1, self.input_weight * input_tokens + self.output_weight * output_tokens)

    def running(self, input_tokens: int, produced: int, expected: int) -> int | None:  # noqa: ARG002
        return None

    def used(self, input_tokens: int, output_tokens: int) -> int | None:
        return self.charge(input_tokens, output_tokens)


HORIZON_DEFAULT = 24
"""Output tokens that a running request is charged ahead of what it has produced."""

TOKENS_PER_ROUND = 100
"""Tokens a round, by default, of the tenant with the largest weight: far less than a request."""

DEBT_ROUNDS = 64
DEBT_TOKENS = 100_000
"""How far a tenant can be set back, by default, in rounds, and where tokens are counted in tokens
too: the larger of the two. What one tenant has in flight is debt."""


@dataclass(frozen=True, slots=True)
class EmaCost:
    """Implements :class:`CostModel`: a rolling reserve ahead of the tokens as they are produced.

    A running request stands charged ``wp*input + wq*min(produced + H,
    max(expected, produced))``: at most H output tokens ahead, and never beyond
    what its tenant's answers are usually long. Without a reserve a tenant
    overshoots while its requests run (H = 0 pays as it streams, as VTC does: Y.
    Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024); with
    all of it reserved one pays now for what is delivered much later.

    Attributes:
        input_weight: Cost units of one input token, at least 1.
        output_weight: Cost units of one output token, at least 1.
        horizon: H, in output tokens, at least 0; None: everything that is
            expected is reserved.
    """

    input_weight: int = 1
    output_weight: int = 2
    horizon: int | None = HORIZON_DEFAULT

    def charge(self, input_tokens: int, output_tokens: int) -> int:
        return self.running(input_tokens, 0, output_tokens)

    def running(self, input_tokens: int, produced: int, expected: int) -> int:
        ahead = max(expected, produced)
        if self.horizon is not None:
            ahead = min(ahead, produced + self.horizon)
        return max(1, self.input_weight * input_tokens + self.output_weight * ahead)

    def used(self, input_tokens: int, output_tokens: int) -> int | None:
        return max(1, self.input_weight * input_tokens + self.output_weight * output_tokens)
