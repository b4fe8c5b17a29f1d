# SPDX-License-Identifier: Apache-2.0
"""A histogram with less than one per cent of error, in bounded memory; integers only."""

import math
from collections import defaultdict
from collections.abc import Sequence

BITS = 7
"""Leading bits that are kept of a value: its bucket is within a 128th of it."""


class Histogram:
    """Counts whole numbers, such as microseconds; some 4,000 buckets cover a day of those."""

    __slots__ = ("_buckets", "largest")

    def __init__(self) -> None:
        self._buckets: defaultdict[int, int] = defaultdict(int)
        self.largest = 0

    def add(self, values: Sequence[int]) -> None:
        """Count values, each at least 0, and one or more of them: together they cost least."""
        buckets = self._buckets
        for value in values:
            shift = value.bit_length() - BITS
            buckets[value if shift <= 0 else (shift << BITS) + (value >> shift)] += 1
        self.largest = max(self.largest, *values)

    def merge(self, other: "Histogram") -> None:
        """Count all that another one has counted."""
        for bucket, count in other._buckets.items():  # noqa: SLF001 - of the same class
            self._buckets[bucket] += count
        self.largest = max(self.largest, other.largest)

    def quantile(self, share: float) -> float:
        """Return a value that so large a share stayed within; 0 where there is none.

        Args:
            share: 0 to 1.
        """
        wanted = math.ceil(share * sum(self._buckets.values()))
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                return min(_middle(bucket), self.largest)
        return 0.0


def _middle(bucket: int) -> float:
    """Return the middle of a bucket's values."""
    if bucket < 1 << BITS:
        return bucket
    # The leading bits are 64 to 127, so the shift is what is left of whole 128s.
    shift, leading = divmod(bucket, 1 << BITS)
    return (leading + 0.5) * (1 << shift) - 0.5
