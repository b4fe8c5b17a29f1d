# SPDX-License-Identifier: Apache-2.0
"""How urgent a request is by its client's own word: a header's, or a body's."""

from collections.abc import Mapping
from typing import NamedTuple

from taketurns.config.model import TenantConfig
from taketurns.core.model import PRIORITY_DEFAULT, PRIORITY_MAX
from taketurns.dialects import cohere
from taketurns.dialects.names import Dialect
from taketurns.dialects.own_fields import WAIT_MS_MAX, OwnFields, cohere_priority
from taketurns.errors import RequestError
from taketurns.gateway.pools import Caller
from taketurns.units import US_PER_MS


class Urgency(NamedTuple):
    """What a client says of a request's urgency.

    Attributes:
        priority: 0 first, 999 last; None: not said.
        wait_ms: Longest wait in the queue; None: not said.
    """

    priority: int | None = None
    wait_ms: int | None = None

    def else_by(self, fields: OwnFields | None) -> "Urgency":
        """Return it with what a body's own fields say where nothing was said before."""
        if fields is None:
            return self
        return Urgency(
            fields.priority if self.priority is None else self.priority,
            fields.deadline_ms if self.wait_ms is None else self.wait_ms,
        )


NO_URGENCY = Urgency()


def urgency_of(
    texts: Mapping[str, str],
    priority: str = "taketurns-priority",
    wait: str = "taketurns-deadline-ms",
) -> Urgency:
    """Read headers, or attributes like them.

    Args:
        texts: The headers.
        priority: Name of the one with the priority.
        wait: Name of the one with the longest wait, in milliseconds.

    Raises:
        RequestError: 400 where one isn't a whole number in its range.
    """
    asked, longest = texts.get(priority), texts.get(wait)
    if asked is None and longest is None:
        return NO_URGENCY
    return Urgency(
        _whole_number(asked, priority, 0, PRIORITY_MAX),
        _whole_number(longest, wait, 1, WAIT_MS_MAX),
    )


def caller_of(
    tenant: str, config: TenantConfig, urgency: Urgency, dialect: Dialect, body: bytes
) -> Caller:
    """Return who sends a request, and how urgent it is: the tenant's ceiling holds for all.

    Raises:
        RequestError: 400 where one of Cohere's has a priority that can't be.
    """
    priority, wait_ms = urgency
    if dialect is Dialect.COHERE:
        asked = cohere_priority(body)
        priority = asked if priority is None else priority
    if priority is None:
        priority = cohere.PRIORITY_DEFAULT if dialect is Dialect.COHERE else PRIORITY_DEFAULT
    return Caller(
        tenant=tenant,
        tier=config.tier,
        priority=max(config.min_priority, priority),
        wait_us_max=None if wait_ms is None else wait_ms * US_PER_MS,
    )


def calm_callers(tenants: Mapping[str, TenantConfig]) -> dict[str, Caller]:
    """Return each tenant as the caller of a request that says nothing of its urgency.

    Those of Cohere's dialect always say something: its default priority is another.
    """
    return {
        name: caller_of(name, config, NO_URGENCY, Dialect.OPENAI, b"")
        for name, config in tenants.items()
    }


def _whole_number(text: str | None, name: str, least: int, most: int) -> int | None:
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= 12
    if not digits or not least <= int(text) <= most:
        raise RequestError(
            400,
            "invalid_value",
            f"{name} must be a whole number from {least} to {most}.",
            param=name,
        )
    return int(text)
