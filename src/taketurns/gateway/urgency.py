# SPDX-License-Identifier: Apache-2.0
"""How urgent a request is by its client's own word: a header's, or a body's."""

from collections.abc import Mapping
from typing import NamedTuple

from taketurns.core.model import PRIORITY_MAX
from taketurns.dialects.own_fields import WAIT_MS_MAX, OwnFields
from taketurns.errors import RequestError


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
    return Urgency(
        _whole_number(texts, priority, 0, PRIORITY_MAX), _whole_number(texts, wait, 1, WAIT_MS_MAX)
    )


def _whole_number(texts: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    digits = text.isascii() and text.isdigit() and len(text) <= 12
    if not digits or not least <= int(text) <= most:
        raise RequestError(
            400,
            "invalid_value",
            f"Header {name} must be a whole number from {least} to {most}.",
            param=name,
        )
    return int(text)
