# SPDX-License-Identifier: Apache-2.0
"""A batch while it's filled: its token budget, its item limit, and what padding costs."""

from taketurns.core.model import BatchRules


class OpenBatch:
    """Items chosen so far for one call to an engine.

    Attributes:
        count: Items.
    """

    __slots__ = ("_longest", "_rules", "_size", "count")

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._size = 0
        self._longest = 0
        self.count = 0

    def fits(self, size: int) -> bool:
        """Tell whether an item of ``size`` tokens has room. The first one always has."""
        rules = self._rules
        if self.count == 0:
            return True
        if self.count >= rules.items_max:
            return False
        if rules.padded:
            return (self.count + 1) * max(self._longest, size) <= rules.size_max
        return self._size + size <= rules.size_max

    def add(self, size: int) -> None:
        """Count an item in."""
        self.count += 1
        self._size += size
        self._longest = max(self._longest, size)

    @property
    def full(self) -> bool:
        """True where not even the smallest item has room."""
        return self.count > 0 and not self.fits(1)
