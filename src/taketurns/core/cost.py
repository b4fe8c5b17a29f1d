# SPDX-License-Identifier: Apache-2.0
"""Cost models: what a request is charged at dispatch and what it has cost in the end.

Costs are integers in the pool's cost unit. With `requests` the unit is a
thousandth of a request, so that a quantum of one request, divided by the
largest weight, still is a whole number. With `tokens` the unit is a token.
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

    def used(self, input_tokens: int, output_tokens: int) -> int | None:
        """Return what a request has cost by the engine's count; None: what was charged."""
        ...


@dataclass(frozen=True, slots=True)
class RequestsCost:
    """Implements :class:`CostModel`: each request costs the same."""

    def charge(self, input_tokens: int, output_tokens: int) -> int:  # noqa: ARG002
        return REQUEST_COST

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

    def used(self, input_tokens: int, output_tokens: int) -> int | None:
        return self.charge(input_tokens, output_tokens)
