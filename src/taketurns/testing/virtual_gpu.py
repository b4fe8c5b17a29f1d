# SPDX-License-Identifier: Apache-2.0
"""An engine that computes batches in virtual time, behind the real scheduler.

A batch takes a fixed time and a time per token, as a GPU does that is
loaded well: shares and waits can be looked at without a gateway and without waiting.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from taketurns.core.decision import Expired, Granted
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.dispatch import Dispatcher
from taketurns.ports.clock import VirtualClock
from taketurns.units import US_PER_MS, US_PER_S

TIER = "only"


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """A request of some texts.

    Attributes:
        tenant: Whose it is.
        arrived_us: When it came.
        left: Texts that aren't computed.
        on_done: Called with the request when the last is.
        done_us: When that was, or None.
    """

    tenant: str
    arrived_us: int
    left: int
    on_done: "Callable[[VirtualRequest], None] | None" = None
    done_us: int | None = None

    @property
    def latency_us(self) -> int:
        """How long it took; it must be done."""
        assert self.done_us is not None, "the request is done"
        return self.done_us - self.arrived_us


@dataclass(slots=True)
class VirtualBatch:
    """A batch that was computed: tokens by tenant, and when."""

    began_us: int
    ended_us: int
    tokens: dict[str, int] = field(default_factory=dict)


class VirtualGpu:
    """One engine with one slot, its queue, and its clock.

    Args:
        rules: How batches are filled.
        tenants: Weights of tenants that differ from 1.
        fixed_us: What a batch takes beside its tokens.
        tokens_per_s: How many tokens it computes a second.

    Attributes:
        clock: Run it.
        batches: All that were computed.
    """

    def __init__(
        self,
        rules: PoolRules,
        *,
        tenants: Sequence[Tenant] = (),
        fixed_us: int = 5 * US_PER_MS,
        tokens_per_s: int = 100_000,
    ) -> None:
        self.clock = VirtualClock()
        self.batches: list[VirtualBatch] = []
        self._fixed_us = fixed_us
        self._tokens_per_s = tokens_per_s
        self._requests: dict[str, VirtualRequest] = {}
        self._numbers = count()
        scheduler = Scheduler(rules, [Tier(TIER)], tenants)
        self._dispatcher = Dispatcher(scheduler, self.clock, self._perform)
        self._dispatcher.set_engine("gpu", 1)

    def batch_us(self, tokens: int) -> int:
        """Return what a batch of so many tokens takes."""
        return self._fixed_us + tokens * US_PER_S // self._tokens_per_s

    def submit(
        self,
        tenant: str,
        sizes: Sequence[int],
        on_done: Callable[[VirtualRequest], None] | None = None,
    ) -> VirtualRequest:
        """Send a request of texts of so many tokens each, now.

        Raises:
            ValueError: A queue is full.
        """
        request = VirtualRequest(tenant, self.clock.now_us(), len(sizes), on_done)
        tickets = [
            Ticket(f"t{next(self._numbers)}", tenant, TIER, cost=size, size=size) for size in sizes
        ]
        self._requests.update((ticket.id, request) for ticket in tickets)
        refused = self._dispatcher.submit(tickets)
        if refused is not None:
            raise ValueError(f"refused: {refused.reason.value}")
        return request

    def _perform(self, decision: Granted | Expired) -> None:
        assert isinstance(decision, Granted), "no ticket here has a deadline"
        now_us = self.clock.now_us()
        tickets = decision.tickets
        ended_us = now_us + self.batch_us(sum(ticket.size for ticket in tickets))
        batch = VirtualBatch(now_us, ended_us)
        for ticket in tickets:
            batch.tokens[ticket.tenant] = batch.tokens.get(ticket.tenant, 0) + ticket.size
        self.batches.append(batch)
        self.clock.call_at(ended_us, lambda: self._finish(tickets))

    def _finish(self, tickets: Sequence[Ticket]) -> None:
        done = []
        for ticket in tickets:
            request = self._requests.pop(ticket.id)
            request.left -= 1
            if request.left == 0:
                request.done_us = self.clock.now_us()
                done.append(request)
        for request in done:
            # First what comes next of a client that waited, then the slot is free.
            if request.on_done is not None:
                request.on_done(request)
        for ticket in tickets:
            self._dispatcher.finish(ticket.id, cost=ticket.size)
