# SPDX-License-Identifier: Apache-2.0
"""Requests per minute: first come, first served behind a limit for each tenant."""

from collections import deque

from taketurns.sim.request import Request
from taketurns.sim.schedulers.fcfs import FirstCome
from taketurns.units import US_PER_S

MINUTE_US = 60 * US_PER_S


class PerMinute(FirstCome):
    """Refuses what goes beyond so many accepted requests in the last minute.

    Args:
        limit: Requests per tenant and minute, at least 1.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._accepted: dict[str, deque[int]] = {}

    def arrived(self, request: Request) -> bool:
        times = self._accepted.setdefault(request.tenant, deque())
        while times and request.arrived_us - times[0] > MINUTE_US:
            times.popleft()
        if len(times) >= self._limit:
            request.refused_by = "limit"
            return False
        times.append(request.arrived_us)
        return super().arrived(request)
