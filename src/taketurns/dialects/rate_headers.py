# SPDX-License-Identifier: Apache-2.0
"""How limits stand, as headers: OpenAI's ``x-ratelimit-*`` and IETF's ``RateLimit``.

Source: OpenAI's API reference, "Rate limits" (durations such as ``6m0s``);
IETF HTTPAPI working group, draft-ietf-httpapi-ratelimit-headers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from taketurns.units import US_PER_MS, ceil_s_from_us

CACHED_MAX = 1_024
"""Most texts that are kept at hand: nearly every answer has the same ones."""


class Standing(NamedTuple):
    """How one limit stands for a tenant.

    Attributes:
        name: The limit's name: letters, digits, ``_``, ``.``, ``-``, brackets.
        unit: ``requests``, ``tokens``, ``input_tokens``, ``output_tokens`` or ``inputs``.
        limit: Its value.
        remaining: What is left, at least 0.
        window_us: Length of its window.
        reset_us: How long until nothing counts any more.
    """

    name: str
    unit: str
    limit: int
    remaining: int
    window_us: int
    reset_us: int


SF_INTEGER_MAX = 999_999_999_999_999
"""Largest integer of structured fields (RFC 9651, section 3.3.1): larger limits are told as it."""

OPENAI_UNITS = {"requests": "requests", "tokens": "tokens"}
"""Units that OpenAI has headers for."""


def openai_headers(standings: Sequence[Standing]) -> dict[str, str]:
    """Return ``x-ratelimit-*``: of several limits of a unit the one that leaves least."""
    headers: dict[str, str] = {}
    for unit in OPENAI_UNITS:
        of_unit = [item for item in standings if item.unit == unit]
        if of_unit:
            tight = min(of_unit, key=lambda item: item.remaining)
            headers[f"x-ratelimit-limit-{unit}"] = str(tight.limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(tight.remaining)
            headers[f"x-ratelimit-reset-{unit}"] = duration(tight.reset_us)
    return headers


def ietf_headers(standings: Sequence[Standing]) -> dict[str, str]:
    """Return ``RateLimit-Policy`` of all limits and ``RateLimit`` of the tightest."""
    if not standings:
        return {}
    policies = [_policy(item.name, item.limit, item.window_us, item.unit) for item in standings]
    tight = standings[0]
    for item in standings[1:]:
        # Shares of their limits compared without dividing: r1/q1 < r2/q2. A limit of 0 has none.
        share, least = item.remaining * tight.limit, tight.remaining * item.limit
        if share < least or (share == least and item.remaining < tight.remaining):
            tight = item
    left = min(tight.remaining, SF_INTEGER_MAX)
    return {
        "RateLimit-Policy": ", ".join(policies),
        "RateLimit": f'"{tight.name}";r={left};t={ceil_s_from_us(tight.reset_us)}',
    }


@lru_cache(CACHED_MAX)
def _policy(name: str, limit: int, window_us: int, unit: str) -> str:
    window_s = ceil_s_from_us(window_us)
    return f'"{name}";q={min(limit, SF_INTEGER_MAX)};w={window_s};qu="{unit}"'


@lru_cache(CACHED_MAX)
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
