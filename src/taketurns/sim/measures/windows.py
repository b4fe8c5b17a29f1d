# SPDX-License-Identifier: Apache-2.0
"""VTC's difference of service, and accumulated difference.

Definitions and constants are those of the code published with Y. Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024: windows of 60 s begin at
19 ticks, a twentieth of the span after its first 30 s apart. In a window with
service s_i and rate of demand r_i of tenant i,

    difference = sum over i of min(max_j s_j - s_i, |r_i - s_i|)

so that a tenant counts only as far as it asked for more than it got. Refused
requests count neither as service nor as demand. The accumulated difference is
the largest minus the smallest service since the warm-up's end.
"""

from taketurns.sim.measures.timeline import Timeline
from taketurns.units import US_PER_S

WARM_UP_US = 30 * US_PER_S
WINDOW_US = 60 * US_PER_S
TICKS = 20


class Windows:
    """The windows of a span.

    Args:
        span_us: Time that is looked at, from the start.
    """

    def __init__(self, span_us: int) -> None:
        tick_us = max(1, span_us - WARM_UP_US) / TICKS
        self._starts = [tick_us * tick for tick in range(1, TICKS)]
        self._ticks = [WARM_UP_US + start for start in self._starts]
        ends = [start + WINDOW_US for start in self._starts]
        self.edges = [float(WARM_UP_US), *self._starts, *ends, *self._ticks]
        """Edges that a timeline must have."""

    def differences(self, timeline: Timeline) -> list[float]:
        """Return the difference of service in each window, in service per second."""
        seconds = WINDOW_US / US_PER_S
        found = []
        for start in self._starts:
            served = timeline.between(timeline.served, start, start + WINDOW_US)
            demand = timeline.between(timeline.demand, start, start + WINDOW_US)
            most = max(served.values(), default=0.0)
            total = 0.0
            for tenant in sorted(served.keys() | demand.keys()):
                got = served.get(tenant, 0.0)
                total += min(most - got, abs(demand.get(tenant, 0.0) - got))
            found.append(total / seconds)
        return found

    def accumulated(self, timeline: Timeline) -> list[float]:
        """Return the accumulated difference at each tick."""
        totals = dict.fromkeys(sorted(timeline.tenants), 0.0)
        found = []
        before = float(WARM_UP_US)
        for tick in self._ticks:
            for tenant, got in timeline.between(timeline.served, before, tick).items():
                totals[tenant] += got
            before = tick
            found.append(max(totals.values(), default=0.0) - min(totals.values(), default=0.0))
        return found
