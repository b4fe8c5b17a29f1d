# SPDX-License-Identifier: Apache-2.0
"""A histogram of times with one per cent of error, in bounded memory."""

import math

GROWTH = math.log(1.01)


class Histogram:
    """Counts times in buckets that grow by a hundredth; some 2,000 cover a day.

    Args:
        least_us: Times below this count as none; at least 1.
    """

    __slots__ = ("_buckets", "_least_us", "count", "largest_us", "sum_us")

    def __init__(self, least_us: int = 100) -> None:
        self._least_us = least_us
        self._buckets: dict[int, int] = {}
        self.count = 0
        self.sum_us = 0
        self.largest_us = 0

    def add(self, time_us: int) -> None:
        """Count a time, at least 0."""
        least = self._least_us
        bucket = 0 if time_us < least else 1 + int(math.log(time_us / least) / GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum_us += time_us
        self.largest_us = max(self.largest_us, time_us)

    def quantile_s(self, share: float) -> float:
        """Return a time in seconds that so large a share stayed within; 0 where there is none.

        Args:
            share: 0 to 1.
        """
        wanted = math.ceil(share * self.count)
        for bucket in sorted(self._buckets):
            wanted -= self._buckets[bucket]
            if wanted <= 0:
                middle = self._least_us * math.exp(GROWTH * (bucket - 0.5)) if bucket else 0
                return min(middle, self.largest_us) / 1e6
        return 0.0

    @property
    def mean_s(self) -> float:
        """Mean time in seconds."""
        return self.sum_us / self.count / 1e6 if self.count else 0.0
