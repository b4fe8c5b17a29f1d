# SPDX-License-Identifier: Apache-2.0
"""What the gateway's request log and metrics say of a scene: waits, shares of service, batches.

Functions over records are pure. A request is backlogged from its arrival to its dispatch.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from taketurns.core.fairness import jain_index
from taketurns.demo.children import DemoError, GatewayProcess


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was answered, as the gateway logged it.

    Attributes:
        tenant: Whose it was.
        arrived_s: When it came, in seconds since 1970, to a millisecond.
        wait_s: From the queue to an engine.
        total_s: From its arrival to its answer.
        cost: Tokens it was charged.
    """

    tenant: str
    arrived_s: float
    wait_s: float
    total_s: float
    cost: int

    @property
    def dispatched_s(self) -> float:
        """When it went to the engine."""
        return self.arrived_s + self.wait_s


Span = tuple[float, float]


def read_log(path: Path) -> list[Served]:
    """Return the requests of a gateway's log in the order of their arrival.

    Raises:
        DemoError: One of them was not answered.
    """
    found = []
    for line in path.read_text().splitlines():
        told = json.loads(line)
        if told["outcome"] != "completed":
            raise DemoError(
                f"a request of tenant {told['tenant']!r} was not answered: {told['outcome']} "
                f"{told['status']} {told['code']}"
            )
        found.append(
            Served(
                told["tenant"],
                datetime.fromisoformat(told["time"]).timestamp(),
                told["wait_s"],
                told["total_s"],
                told["cost"],
            )
        )
    return sorted(found, key=lambda served: served.arrived_s)


def of(served: Iterable[Served], tenant: str) -> list[Served]:
    """Return one tenant's requests."""
    return [request for request in served if request.tenant == tenant]


def backlogged(served: Iterable[Served]) -> list[Span]:
    """Return the spans of time in which at least one of the requests waited, in order."""
    spans: list[Span] = []
    for request in sorted(served, key=lambda request: request.arrived_s):
        begin, end = request.arrived_s, request.dispatched_s
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        else:
            spans.append((begin, end))
    return spans


def both(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """Return the spans of time that are in both lists, in order."""
    common = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return sorted((begin, end) for begin, end in common if begin < end)


def shares(
    served: Iterable[Served], tenants: Sequence[str], spans: Sequence[Span], *, batch_s: float
) -> dict[str, float]:
    """Return each tenant's share of the cost that was dispatched within the spans.

    Args:
        served: All requests.
        tenants: Whose shares; what others got is left out.
        spans: When.
        batch_s: Time from a batch to the next. A span that ends with a dispatch
            ends with the whole batch, whose requests the log's milliseconds may
            put a little later; the next batch is further away than half of this.

    Returns:
        Shares from 0 to 1, adding up to 1; all 0 where nothing was dispatched.
    """
    costs: Counter[str] = Counter(dict.fromkeys(tenants, 0))
    for request in served:
        at_s = request.dispatched_s
        if request.tenant in costs and any(a <= at_s <= b + batch_s / 2 for a, b in spans):
            costs[request.tenant] += request.cost
    total = costs.total()
    return {tenant: cost / total if total else 0.0 for tenant, cost in costs.items()}


def jain(of_tenants: dict[str, float]) -> float:
    """Return Jain's index of tenants' shares; their weights are equal in the demo."""
    return jain_index(list(of_tenants.values()))


@dataclass(frozen=True, slots=True)
class BatchCount:
    """The gateway's count of batches at an instant.

    Attributes:
        at_s: When, on the event loop's clock.
        batches: Batches that were sent to the engine so far.
        items: Texts in them.
    """

    at_s: float
    batches: float
    items: float


@dataclass(frozen=True, slots=True)
class BatchPace:
    """How fast batches follow one another while there is a backlog.

    Attributes:
        batch_s: "One batch": the mean time from one batch to the next. It is the
            engine's time for a full batch and the gateway's for handing it out.
        items: Mean number of texts in a batch.
        texts_per_s: Texts embedded a second.
    """

    batch_s: float
    items: float
    texts_per_s: float


def pace(before: BatchCount, after: BatchCount) -> BatchPace:
    """Return the pace between two counts; at least one batch was sent between them."""
    took_s = after.at_s - before.at_s
    batches, items = after.batches - before.batches, after.items - before.items
    return BatchPace(took_s / batches, items / batches, items / took_s)


async def count_batches(gateway: GatewayProcess) -> BatchCount:
    """Read the count of batches off a gateway's metrics."""
    reader, writer = await asyncio.open_connection(gateway.host, gateway.admin_port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    at_s = asyncio.get_running_loop().time()
    counts = []
    for name in ("count", "sum"):
        match = re.search(
            rf'^taketurns_batch_items_{name}{{model="minilm"}} (\S+)', text, re.MULTILINE
        )
        counts.append(float(match[1]) if match else 0.0)
    return BatchCount(at_s, *counts)
