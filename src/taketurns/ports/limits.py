# SPDX-License-Identifier: Apache-2.0
"""Limits that several gateways share: what they count beyond one process."""

from collections.abc import Sequence
from typing import Any, Protocol

from taketurns.core.limit_rules import Amounts, LimitRule
from taketurns.core.limits import Denied, Status


class Taken(Protocol):
    """What one request was charged of the limits that are shared."""

    @property
    def statuses(self) -> tuple[Status, ...]:
        """How its rules stand with it."""
        ...

    @property
    def shadowed(self) -> tuple[Status, ...]:
        """Rules in shadow mode that would have refused it."""
        ...


class SharedLimits(Protocol):
    """Counts sliding and parallel limits together with other gateways.

    Contract: all gateways together grant what one :class:`taketurns.core.limits.Ledger`
    would; what was taken is settled once, and needs no waiting for that.
    """

    async def admit(
        self, rules: Sequence[LimitRule], tenant: str, amounts: Amounts, request_id: str
    ) -> Taken | Denied:
        """Charge a request to all its limits, or to none.

        Args:
            rules: Sliding and parallel ones.
            tenant: Whose it is.
            amounts: What it takes.
            request_id: Its own.

        Raises:
            StoreUnavailableError: They can't be counted, and nothing is to be granted then.
        """
        ...

    def settle(self, taken: Any, used: Amounts | None) -> None:
        """Correct what :meth:`admit` gave out to what was used; None: it was not executed."""
        ...

    def standing(self, rules: Sequence[LimitRule], tenant: str) -> tuple[Status, ...]:
        """Return how rules stand, as this gateway last saw them."""
        ...

    def set_rules(self, rules: Sequence[LimitRule]) -> None:
        """Go by other rules; one that keeps its name and what it counts goes on counting."""
        ...
