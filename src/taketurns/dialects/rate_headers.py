# SPDX-License-Identifier: Apache-2.0
"""How limits stand, as headers: OpenAI's or Cohere's ``x-ratelimit-*``, and IETF's ``RateLimit``.

Source: OpenAI's API reference, "Rate limits" (durations such as ``6m0s``); Cohere's Python
client, which reads ``X-RateLimit-Reset`` as seconds since 1970; IETF HTTPAPI working group,
draft-ietf-httpapi-ratelimit-headers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from taketurns.units import US_PER_MS, ceil_s_from_us


class Limit(NamedTuple):
    """One limit, as it's told.

    Attributes:
        name: Letters, digits, ``_``, ``.``, ``-``, brackets.
        unit: ``requests``, ``tokens``, ``input_tokens``, ``output_tokens`` or ``inputs``.
        max: Its value.
        window_us: Length of its window.
        reset_us: How long until what a request takes counts no more; None: till the month ends.
    """

    name: str
    unit: str
    max: int
    window_us: int
    reset_us: int | None


SF_INTEGER_MAX = 999_999_999_999_999
"""Largest integer of structured fields (RFC 9651, section 3.3.1): larger limits are told as it."""

OPENAI_UNITS = ("requests", "tokens")
"""Units that OpenAI has headers for."""


class RateHeaders:
    """Tells how the same limits stand, answer after answer: what doesn't change is made once.

    OpenAI's ``x-ratelimit-*`` tell, of several limits of a unit, of the one that leaves
    least, Cohere's of the tightest of all; ``RateLimit-Policy`` of all, and ``RateLimit`` of
    the tightest.

    Args:
        limits: In their order; none: no headers.
    """

    __slots__ = ("_limits", "_maxes", "_openai", "_resets")

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._maxes = tuple(item.max for item in limits)
        self._resets = tuple(
            None if item.reset_us is None else reset_texts(item.reset_us) for item in limits
        )
        policy = f"RateLimit-Policy: {', '.join(map(_policy, limits))}\r\nRateLimit: "
        self._limits = tuple(f'{policy}"{item.name}";r=' for item in limits)
        self._openai = tuple(
            (
                tuple(f"x-ratelimit-limit-{unit}: {item.max}\r\n" for item in limits),
                f"x-ratelimit-reset-{unit}: ",
                f"\r\nx-ratelimit-remaining-{unit}: ",
                places[0],
                places[1:],
            )
            for unit in OPENAI_UNITS
            if (places := [place for place, item in enumerate(limits) if item.unit == unit])
        )

    def lines(
        self, left: Sequence[int], month_reset: tuple[str, str], *, epoch_s: int | None = None
    ) -> str:
        """Return the headers as lines, each with its end.

        Args:
            left: What each limit leaves, in their order; below 0: nothing.
            month_reset: How long until the month ends, see :func:`reset_texts`.
            epoch_s: For Cohere's clients, the time in seconds since 1970; None: for OpenAI's.
        """
        maxes, resets = self._maxes, self._resets
        if not maxes:
            return ""
        tight, least, most = 0, left[0], maxes[0]
        for place in range(1, len(maxes)):
            its_left, its_most = left[place], maxes[place]
            # Shares of their limits compared without dividing, since a limit of 0 has none.
            share, other = its_left * most, least * its_most
            if share < other or (share == other and its_left < least):
                tight, least, most = place, its_left, its_most
        seconds = (resets[tight] or month_reset)[1]
        lines = ""
        if epoch_s is not None:
            lines = (
                f"X-RateLimit-Limit: {most}\r\nX-RateLimit-Remaining: {max(0, least)}\r\n"
                f"X-RateLimit-Reset: {epoch_s + int(seconds)}\r\n"
            )
        for limits, reset_is, remaining_is, first, others in () if lines else self._openai:
            place, remaining = first, left[first]
            for another in others:
                if left[another] < remaining:
                    place, remaining = another, left[another]
            reset = (resets[place] or month_reset)[0]
            lines += f"{limits[place]}{reset_is}{reset}{remaining_is}{max(0, remaining)}\r\n"
        told = least if 0 <= least <= SF_INTEGER_MAX else min(max(0, least), SF_INTEGER_MAX)
        return f"{lines}{self._limits[tight]}{told};t={seconds}\r\n"


def reset_texts(reset_us: int) -> tuple[str, str]:
    """Return a time as OpenAI writes it, and in whole seconds; neither is too early."""
    return duration(reset_us), str(ceil_s_from_us(reset_us))


def _policy(limit: Limit) -> str:
    most, window_s = min(limit.max, SF_INTEGER_MAX), ceil_s_from_us(limit.window_us)
    return f'"{limit.name}";q={most};w={window_s};qu="{limit.unit}"'


def duration(microseconds: int) -> str:
    """Return a duration as OpenAI writes it: ``120ms``, ``7.5s``, ``2h3m0s``; rounded up."""
    milliseconds = -(-microseconds // US_PER_MS)
    if milliseconds < 1_000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1_000:g}s"
    minutes, seconds = divmod(ceil_s_from_us(microseconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
