# SPDX-License-Identifier: Apache-2.0
"""Asks a server how it fares: its health path, and how many requests wait inside it."""

import re
from collections.abc import Sequence

from taketurns.engines.client import HttpClient, parse_base_url
from taketurns.errors import EngineError
from taketurns.ports.engine import EngineLimits

METRICS_BYTES_MAX = 4 * 1024 * 1024
"""Longest page of metrics that is read; a longer one tells nothing."""

HEALTH_BYTES_MAX = 64 * 1024
"""Longest answer of a health path that keeps its connection."""

CONNECTIONS_MAX = 4
"""Enough for one question of each kind, while an old one is being given up."""


class EngineProbe:
    """Asks one server, over connections of its own.

    Args:
        name: The engine's name, for errors.
        url: Where it is.
        key: Bearer key, or empty.
        timeout_s: Longest that one question may take in all.
    """

    def __init__(self, name: str, url: str, *, key: str, timeout_s: float) -> None:
        limits = EngineLimits(timeout_s, timeout_s, timeout_s, timeout_s)
        self._client = HttpClient(
            parse_base_url(url), engine=name, limits=limits, connections_max=CONNECTIONS_MAX
        )
        self._headers = [("User-Agent", "taketurns")]
        if key:
            self._headers.append(("Authorization", f"Bearer {key}"))

    async def well(self, path: str) -> bool:
        """Tell whether a path answers in time, with a status under 400."""
        answered = await self._get(path, HEALTH_BYTES_MAX)
        return answered is not None and answered[0] < 400

    async def waiting(self, path: str, gauges: Sequence[str]) -> int | None:
        """Return how many requests wait inside the server; None: it doesn't say so in time.

        Args:
            path: Its page of metrics.
            gauges: Names, any of which tells it.
        """
        answered = await self._get(path, METRICS_BYTES_MAX)
        if answered is None or answered[0] != 200 or answered[1] is None:
            return None
        return read_gauge(answered[1], gauges)

    async def aclose(self) -> None:
        """Give up what is being asked, and close all connections."""
        await self._client.aclose()

    async def _get(self, path: str, bytes_max: int) -> tuple[int, bytes | None] | None:
        try:
            answer = await self._client.open(self._client.head("GET", path, self._headers))
            try:
                return answer.status, await answer.read(bytes_max)
            finally:
                await answer.aclose()
        except EngineError:
            return None


def read_gauge(page: bytes, names: Sequence[str]) -> int | None:
    """Return a gauge's value off a page in Prometheus's text format, summed over its labels.

    A name that merely begins like one of ``names`` is another gauge: vLLM has
    ``vllm:num_requests_waiting`` and ``vllm:num_requests_waiting_by_reason``.

    Returns:
        A whole number, at least 0, rounded down; None where it isn't there, or no number.
    """
    either = b"|".join(re.escape(name.encode()) for name in names)
    # Label values are quoted, and may hold a brace.
    line = rb'^(?:%b)(?:\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)' % either
    found = re.findall(line, page, re.MULTILINE)
    try:
        total = sum(float(value) for value in found)
        return max(0, int(total)) if found else None
    except (ValueError, OverflowError):
        return None
