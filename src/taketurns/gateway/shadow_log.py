# SPDX-License-Identifier: Apache-2.0
"""Says what limits in shadow mode would have refused: a line a minute each, not a request."""

import logging

from taketurns.ports.clock import Clock
from taketurns.units import US_PER_S

LOG = logging.getLogger(__name__)

EVERY_US = 60 * US_PER_S


class ShadowLog:
    """Counts what each rule would have refused, and tells it at most once a minute.

    Bounded by the rules that were ever configured.

    Args:
        clock: The process's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._next_us: dict[str, int] = {}

    def count(self, rule: str) -> None:
        """Count a request that a rule would have refused."""
        count = self._counts[rule] = self._counts.get(rule, 0) + 1
        now_us = self._clock.now_us()
        if now_us >= self._next_us.get(rule, 0):
            self._next_us[rule] = now_us + EVERY_US
            self._counts[rule] = 0
            LOG.info("limit %s would have refused %d requests since it was last told", rule, count)
