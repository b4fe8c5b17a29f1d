# SPDX-License-Identifier: Apache-2.0
"""Tells whether an engine and what is configured of it fit: its key, its paths, its model's name.

Sans I/O. An engine that answers 401, 403, 404 or 405 to every request was set
up wrongly, here or there. But a client may cause such answers, too, and what a
client sends must take no model out. So an engine doesn't fit only if it answers
nothing else; and it's left out for that only where another engine of the model
doesn't answer so: one always stays.
"""

from taketurns.units import US_PER_S

MISFITS = frozenset({401, 403, 404, 405})
"""Statuses with which an engine says that it doesn't know our key, path or model."""

LASTS_US = 10 * US_PER_S
"""How long an engine that has answered well before must answer so, and nothing else."""


class Fit:
    """One engine.

    Attributes:
        misfits: Answers of ``MISFITS`` in a row.
    """

    __slots__ = ("_since_us", "_well", "misfits")

    def __init__(self) -> None:
        self.misfits = 0
        self._since_us = 0
        self._well = False

    def answered(self, *, well: bool) -> None:
        """Note another answer: a good one, or one that blames the request."""
        self._well = self._well or well
        self.misfits = 0

    def misfit(self, now_us: int, limit: int) -> bool:
        """Note one of ``MISFITS``; True where it answers nothing else.

        Args:
            now_us: The time.
            limit: So many in a row are needed.
        """
        if self.misfits == 0:
            self._since_us = now_us
        self.misfits += 1
        lasts = not self._well or now_us - self._since_us >= LASTS_US
        return lasts and self.misfits >= limit
