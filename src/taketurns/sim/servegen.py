# SPDX-License-Identifier: Apache-2.0
"""Clients as ServeGen describes them: rates by the hour, burstiness, quantiles of lengths.

Source: Y. Xiang et al., "ServeGen: Workload Characterization and Generation of
Large Language Model Serving in Production", 2025. Each client's gaps between
requests are of a gamma distribution with the hour's rate and coefficient of
variation; lengths are drawn between the quantiles that are known.
"""

import heapq
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from taketurns.sim.request import Request
from taketurns.units import us_from_s

HOUR_S = 3_600


@dataclass(frozen=True, slots=True)
class ServeGenClient:
    """One client.

    Attributes:
        name: Its name.
        rates: Requests per second in each hour.
        cvs: Coefficient of variation of the gaps in each hour; 0 where there are none.
        shares: Shares for which quantiles are known, rising.
        inputs: Input tokens at those.
        outputs: Output tokens at those.
    """

    name: str
    rates: Sequence[float]
    cvs: Sequence[float]
    shares: Sequence[float]
    inputs: Sequence[int]
    outputs: Sequence[int]

    def requests(self, random: Random, hour: int, scale: float, most: int) -> Iterator[Request]:
        """Yield its requests from an hour on, in order of arrival.

        Args:
            random: Draws gaps and lengths.
            hour: Where time 0 is.
            scale: Rates are so many times as high.
            most: Longest input and output.
        """
        number = 0
        for at in range(hour, len(self.rates)):
            rate = self.rates[at] * scale
            begin = when = float((at - hour) * HOUR_S)
            if not rate:
                continue
            shape = 1 / max(0.1, self.cvs[at] or 1.0) ** 2
            while True:
                when += random.gammavariate(shape, 1) / (shape * rate)
                if when >= begin + HOUR_S:
                    break
                number += 1
                yield Request(
                    f"{self.name}/{number}",
                    self.name,
                    min(most, self._length(self.inputs, random.random())),
                    min(most, self._length(self.outputs, random.random())),
                    us_from_s(when),
                )

    def _length(self, quantiles: Sequence[int], share: float) -> int:
        """Return a length between the two quantiles around a share."""
        shares = self.shares
        at = bisect_right(shares, share)
        if at == 0 or at == len(shares):
            return max(1, quantiles[min(at, len(shares) - 1)])
        part = (share - shares[at - 1]) / (shares[at] - shares[at - 1])
        return max(1, round(quantiles[at - 1] + part * (quantiles[at] - quantiles[at - 1])))


def read_clients(lines: Iterable[str]) -> list[ServeGenClient]:
    """Read one client a line.

    Raises:
        KeyError: A line lacks something.
        ValueError: A line is not JSON.
    """
    clients = []
    for line in lines:
        row = json.loads(line)
        clients.append(
            ServeGenClient(
                f"client-{row['client']}",
                row["rate_rps"],
                row["cv_max"],
                row["q"],
                row["input_q"],
                row["output_q"],
            )
        )
    return clients


def generated(
    clients: Sequence[ServeGenClient], seed: str, hour: int, scale: float, most: int
) -> Iterator[Request]:
    """Yield the requests of all clients in the order of their arrival."""
    streams = [
        client.requests(Random(f"{seed} {client.name}"), hour, scale, most) for client in clients
    ]
    return heapq.merge(*streams, key=lambda request: request.arrived_us)
