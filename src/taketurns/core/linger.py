# SPDX-License-Identifier: Apache-2.0
"""Lets an idle engine wait a little for a fuller batch, where that is wanted.

The first item that comes to an empty queue starts the wait; a full batch ends
it. Once it's over, everything goes at once until the queue is empty again, so
that what waited for a slot never waits once more.
"""

from collections.abc import Mapping

from taketurns.core.model import BatchRules
from taketurns.core.queue import Entry


class Linger:
    """The wait of one pool.

    Args:
        rules: How large a batch may be, and how long to wait.

    Attributes:
        until_us: When the wait ends; None: there's none.
    """

    __slots__ = ("_over", "_rules", "until_us")

    def __init__(self, rules: BatchRules) -> None:
        self._rules = rules
        self._over = False
        self.until_us: int | None = None

    def holds(self, now_us: int, waiting: Mapping[str, Entry]) -> bool:
        """Tell whether what waits is to wait on. O(items of a batch).

        Args:
            now_us: The time.
            waiting: What waits in the pool.
        """
        if not waiting:
            self.rest()
        if not waiting or self._over:
            return False
        if self.until_us is None:
            self.until_us = now_us + self._rules.linger_us
        full = len(waiting) >= self._rules.items_max or (
            sum(entry[3].size for entry in waiting.values()) >= self._rules.size_max
        )
        if full or now_us >= self.until_us:
            self._over = True
            self.until_us = None
        return not self._over

    def rest(self) -> None:
        """Note that the queue is empty: the next item starts a wait."""
        self._over = False
        self.until_us = None
