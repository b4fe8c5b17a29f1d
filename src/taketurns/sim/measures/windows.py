# SPDX-License-Identifier: Apache-2.0
"""Service in windows of time: VTC's difference of service, and accumulated difference.

Definitions and constants are those of the code published with Y. Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024: a request's service is
input + 2 x output tokens, spread evenly from its first token to its last;
windows of 60 s begin at 19 ticks, a twentieth of the span after its first 30 s
apart. In a window with service s_i and rate of demand r_i of tenant i,

    difference = sum over i of min(max_j s_j - s_i, |r_i - s_i|)

so that a tenant counts only as far as it asked for more than it got. Refused
requests count neither as service nor as demand. The accumulated difference is
the largest minus the smallest service since the warm-up's end.
"""

from bisect import bisect_right
from collections import defaultdict

from taketurns.sim.request import Request
from taketurns.units import US_PER_S

WARM_UP_US = 30 * US_PER_S
WINDOW_US = 60 * US_PER_S
TICKS = 20


def service_of(request: Request) -> int:
    """Return a request's service: an output token counts as two of input."""
    return request.input_tokens + 2 * request.output_tokens


class ServiceWindows:
    """Keeps a few numbers for each tenant.

    Args:
        span_us: Time that is looked at, from the start.
    """

    def __init__(self, span_us: int) -> None:
        self._tick_us = max(1, (span_us - WARM_UP_US)) / TICKS
        self._starts = [self._tick_us * tick for tick in range(1, TICKS)]
        self._service: dict[str, list[float]] = defaultdict(lambda: [0.0] * (TICKS - 1))
        self._demand: dict[str, list[float]] = defaultdict(lambda: [0.0] * (TICKS - 1))
        self._passed: dict[str, list[float]] = defaultdict(lambda: [0.0] * (TICKS - 1))

    def finished(self, request: Request) -> None:
        """Count a request."""
        service = service_of(request)
        tenant = request.tenant
        demand = self._demand[tenant]
        for tick in self._windows(request.arrived_us, request.arrived_us):
            demand[tick] += service
        begin, end = request.first_us, request.finished_us
        if end - begin < 10:
            return
        per_us = service / (end - begin)
        served = self._service[tenant]
        for tick in self._windows(begin, end):
            start = self._starts[tick]
            served[tick] += per_us * max(0.0, min(start + WINDOW_US, end) - max(start, begin))
        passed = self._passed[tenant]
        first = max(0, int((begin - WARM_UP_US) // self._tick_us))
        for tick in range(first, TICKS - 1):
            start = WARM_UP_US + tick * self._tick_us
            if start >= end:
                break
            passed[tick] += per_us * max(0.0, min(start + self._tick_us, end) - max(start, begin))

    def _windows(self, begin_us: int, end_us: int) -> range:
        """Return the ticks whose windows touch a stretch of time."""
        first = int(max(0, -(-(begin_us - WINDOW_US) // self._tick_us) - 1))
        return range(first, bisect_right(self._starts, end_us))

    def rates(self) -> dict[str, list[float]]:
        """Return each tenant's service per second in each window."""
        seconds = WINDOW_US / US_PER_S
        return {name: [x / seconds for x in row] for name, row in sorted(self._service.items())}

    def differences(self) -> list[float]:
        """Return the difference of service in each window, in service per second."""
        seconds = WINDOW_US / US_PER_S
        found = []
        for tick in range(TICKS - 1):
            rows = [
                (self._service[name][tick] / seconds, self._demand[name][tick] / seconds)
                for name in sorted(self._demand)
            ]
            most = max((served for served, _ in rows), default=0.0)
            found.append(sum(min(most - got, abs(asked - got)) for got, asked in rows))
        return found

    def accumulated(self) -> list[float]:
        """Return the accumulated difference at each tick."""
        totals = dict.fromkeys(self._demand, 0.0)
        found = []
        for tick in range(TICKS - 1):
            for name in totals:
                totals[name] += self._passed[name][tick]
            found.append(max(totals.values(), default=0.0) - min(totals.values(), default=0.0))
        return found
