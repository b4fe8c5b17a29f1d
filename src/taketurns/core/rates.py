# SPDX-License-Identifier: Apache-2.0
"""A rate that is learned: bytes of text, or microseconds, that one token stands for.

Rates are kept in 1,024ths, so that an integer follows small changes too.
"""

SHIFT = 10
"""Rates are kept in units of 2**-10."""

WEIGHT_SHIFT = 4
"""What is seen moves the rate by a 16th of the difference."""


class Rate:
    """How much of something there is to a token, as a moving average.

    Args:
        first: The rate before anything has been seen, between the bounds.
        least: No rate is below this, at least 1.
        most: No rate is above this: one odd request can't spoil it.
    """

    __slots__ = ("_least", "_most", "_scaled")

    def __init__(self, first: int, *, least: int, most: int) -> None:
        if not 1 <= least <= first <= most:
            raise ValueError(f"must be 1 <= {least} <= {first} <= {most}")
        self._least = least << SHIFT
        self._most = most << SHIFT
        self._scaled = first << SHIFT

    def seen(self, amount: int, tokens: int) -> None:
        """Learn that so much was so many tokens; of nothing nothing is learned.

        Args:
            amount: At least 0.
            tokens: At least 0.
        """
        if amount <= 0 or tokens <= 0:
            return
        scaled = min(max((amount << SHIFT) // tokens, self._least), self._most)
        self._scaled += (scaled - self._scaled) >> WEIGHT_SHIFT

    def tokens(self, amount: int) -> int:
        """Return how many tokens so much is, rounded down."""
        return (amount << SHIFT) // self._scaled
