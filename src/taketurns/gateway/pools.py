# SPDX-License-Identifier: Apache-2.0
"""What the pools of both kinds have in common: the model they serve, and how fast they work."""

from dataclasses import dataclass
from typing import NamedTuple

from taketurns.config.served import ModelConfig
from taketurns.core.cost import CostModel
from taketurns.units import US_PER_S

RETRY_AFTER_S_MAX = 60


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, as the operator set it up.

    Attributes:
        name: By which clients ask for it.
        section: What the operator wrote of it.
        tenants: Those who may use it.
        queue_timeout_us: Longest wait in the queue, by tier.
        wait_target_us: Wait within which a request should start, by tier; None: any.
        cost: What its requests cost.
    """

    name: str
    section: ModelConfig
    tenants: frozenset[str]
    queue_timeout_us: dict[str, int]
    wait_target_us: dict[str, int | None]
    cost: CostModel

    @property
    def output_weight(self) -> int:
        """Cost units of one output token, where tokens count."""
        return self.section.token_cost.output


class Caller(NamedTuple):
    """Who sends a request, and how urgent it is among the caller's own.

    Attributes:
        tenant: Its name.
        tier: Its tier.
        priority: 0 first, 999 last.
        wait_us_max: Longest wait that the client itself asked for, or None.
    """

    tenant: str
    tier: str
    priority: int
    wait_us_max: int | None

    def deadline_us(self, model: ServedModel, now_us: int) -> int:
        """Return when the request gives up waiting: the client's limit can only shorten it."""
        wait_us = model.queue_timeout_us[self.tier]
        if self.wait_us_max is not None:
            wait_us = min(wait_us, self.wait_us_max)
        return now_us + wait_us


class Pace:
    """How fast a pool works its queue off, to tell those it refuses when to come back."""

    def __init__(self) -> None:
        self._last_us: int | None = None
        self._us_per_ticket = 0.0

    def finished(self, tickets: int, now_us: int, *, backlog: bool) -> None:
        """Count tickets that finished; only time with a backlog tells the pace."""
        last_us, self._last_us = self._last_us, now_us if backlog else None
        if last_us is not None:
            us = (now_us - last_us) / tickets
            known = self._us_per_ticket
            self._us_per_ticket = us if known == 0 else known + (us - known) * 0.05

    def retry_after_s(self, queued: int) -> int:
        """Return when a tenth of what is queued will be worked off: 1 to 60 seconds."""
        seconds = -(-self._us_per_ticket * queued * 0.1 // US_PER_S)
        return int(min(max(1, seconds), RETRY_AFTER_S_MAX))
