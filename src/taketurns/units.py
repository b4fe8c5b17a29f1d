# SPDX-License-Identifier: Apache-2.0
"""Units of measure: the only place where seconds become microseconds and back.

Inside the package, time is an ``int`` count of microseconds in a name that
ends in ``_us``; seconds (``float``, ``_s``) exist only at the rim: in
configuration, on the command line, in HTTP headers and in metrics.

Why microseconds: until the year 2255 they fit the 53 bits that a double holds
exactly, so Python, SQLite, JSON, JavaScript and Lua agree on the same number.
"""

NS_PER_US = 1_000
US_PER_MS = 1_000
US_PER_S = 1_000_000

EXACT_INT_MAX = 2**53 - 1
"""Greatest integer that survives a round trip through a double."""


def us_from_s(seconds: float) -> int:
    """Convert seconds to microseconds, rounding half to even."""
    return round(seconds * US_PER_S)


def s_from_us(microseconds: int) -> float:
    """Convert microseconds to seconds."""
    return microseconds / US_PER_S


def ceil_s_from_us(microseconds: int) -> int:
    """Convert microseconds to whole seconds, rounding up: for ``Retry-After``."""
    return -(-microseconds // US_PER_S)
