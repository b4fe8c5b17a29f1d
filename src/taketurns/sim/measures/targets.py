# SPDX-License-Identifier: Apache-2.0
"""How good a throttle's word was: whom it refused for nothing, and who started late.

The truth about a refused request is what becomes of it where nobody is refused
for the wait: a second run of the same seed, with :class:`Truth` looking on.
"""

from collections.abc import Set as AbstractSet

from taketurns.sim.request import Request


def in_time(request: Request) -> bool:
    """Tell whether a request with a target started within it."""
    target_us = request.target_us
    assert target_us is not None, "only of requests that have one"
    return 0 <= request.admitted_us - request.arrived_us <= target_us


class Targets:
    """Counts requests with a wait target. Memory grows with those that are refused for it.

    Args:
        offered_us: How long requests arrive.

    Attributes:
        turned_away: Ids of those that were refused for their wait.
    """

    def __init__(self, offered_us: int) -> None:
        self.turned_away: set[str] = set()
        self._offered_us = offered_us
        self._admitted = 0
        self._late = 0
        self._tokens = 0

    def refused(self, request: Request) -> None:
        """It was refused, for its wait or something else."""
        if request.target_us is not None and request.refused_by.startswith("throttle"):
            self.turned_away.add(request.id)

    def admitted(self, request: Request) -> None:
        """An engine begins with it, or it has expired."""
        if request.target_us is not None:
            self._admitted += 1
            self._late += not in_time(request)

    def finished(self, request: Request) -> None:
        """It has its last token."""
        if in_time(request) and request.finished_us <= self._offered_us:
            self._tokens += request.input_tokens + request.output_tokens

    def figures(self) -> dict[str, float]:
        """Return the figures; none where no request has a target.

        ``false_admits``: late or expired, of those that were let in.
        ``in_time_tokens_per_s``: goodput of those that started in time, over the offered window.
        """
        if not self._admitted:
            return {}
        return {
            "false_admits": self._late / self._admitted,
            "in_time_tokens_per_s": self._tokens / (self._offered_us / 1e6),
        }


class Truth:
    """Implements :class:`~taketurns.sim.run.Observer`, of a run without refusals for the wait.

    Args:
        asked: Ids of the requests that were refused with them.
        offered_us: How long requests arrive.
    """

    def __init__(self, asked: AbstractSet[str], offered_us: int) -> None:
        self._asked = asked
        self._targets = Targets(offered_us)
        self._offered = 0
        self._wrong = 0

    def arrived(self, request: Request) -> None:  # noqa: ARG002
        self._offered += 1

    def refused(self, request: Request) -> None:
        pass

    def expired(self, request: Request, now_us: int) -> None:  # noqa: ARG002
        self._targets.admitted(request)

    def admitted(self, request: Request) -> None:
        self._targets.admitted(request)
        if request.id in self._asked:
            self._wrong += in_time(request)

    def finished(self, request: Request) -> None:
        if request.target_us is not None:
            self._targets.finished(request)

    def figures(self) -> dict[str, float]:
        """Return the figures.

        ``false_rejects``: refused for the wait, though it would have been in time; of all
        that arrived. ``late_without`` and ``in_time_tokens_per_s_without``: as
        ``false_admits`` and ``in_time_tokens_per_s``, without those refusals.
        """
        without = self._targets.figures()
        return {
            "false_rejects": self._wrong / max(1, self._offered),
            "late_without": without.get("false_admits", 0.0),
            "in_time_tokens_per_s_without": without.get("in_time_tokens_per_s", 0.0),
        }
