# SPDX-License-Identifier: Apache-2.0
"""A request of the simulation: what it asks for, and when what happened to it."""

from typing import Protocol


class Client(Protocol):
    """A client in a closed loop: sends a request, waits for it, thinks, sends the next."""

    def next(self, now_us: int) -> "Request | None":
        """Return its next request, which arrives at some time from now on; None: no more."""
        ...


class Request:
    """One request.

    Attributes:
        id: Unique in the run.
        tenant: Whose it is.
        input_tokens: At least 1.
        output_tokens: At least 1. Schedulers don't look at it, but for those that play the oracle.
        arrived_us: When it arrives.
        tier: The tenant's tier.
        priority: 0 first, 999 last, among the tenant's own.
        deadline_us: Expires when it waits until then; None: never.
        admitted_us: When an engine began with it; -1: not yet.
        first_us: When its first token was there; -1: not yet.
        finished_us: When its last token was there; -1: not yet.
        engine: Number of the engine that runs it.
        start_step: Decoding steps that its engine had made when it was admitted.
        expected: Output tokens that its scheduler expected.
        standing: What stands charged for it, in the scheduler's cost unit.
        target_us: Wait within which it should start; None: it has no target.
        refused_by: What refused it, where something did.
        number: Its place in the order of arrival, among those that were accepted.
        client: Whose thread waits for it, in a closed loop; None in an open one.
    """

    __slots__ = (
        "admitted_us",
        "arrived_us",
        "client",
        "deadline_us",
        "engine",
        "expected",
        "finished_us",
        "first_us",
        "id",
        "input_tokens",
        "number",
        "output_tokens",
        "priority",
        "refused_by",
        "standing",
        "start_step",
        "target_us",
        "tenant",
        "tier",
    )

    def __init__(
        self,
        request_id: str,
        tenant: str,
        input_tokens: int,
        output_tokens: int,
        arrived_us: int,
        tier: str = "all",
        priority: int = 500,
        deadline_us: int | None = None,
    ) -> None:
        self.id = request_id
        self.tenant = tenant
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.arrived_us = arrived_us
        self.tier = tier
        self.priority = priority
        self.deadline_us = deadline_us
        self.admitted_us = -1
        self.first_us = -1
        self.finished_us = -1
        self.engine = -1
        self.start_step = 0
        self.expected = 0
        self.standing = 0
        self.number = 0
        self.target_us: int | None = None
        self.refused_by = ""
        self.client: Client | None = None

    def produced(self, step: int) -> int:
        """Return how many tokens it has when its engine has made so many steps."""
        return min(self.output_tokens, step - self.start_step + 1)
