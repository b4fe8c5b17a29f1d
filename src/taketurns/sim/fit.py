# SPDX-License-Identifier: Apache-2.0
"""Fits an engine model to what a gateway has logged of its requests.

From a request's wait, first byte and end come the time to its first token and
the time per further token; from all requests of an engine together, how many
ran beside it. Least squares then give the constants of the two laws

    first token  = request + input x input tokens
    later token  = step + step_request x requests that run
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

LEAST = 20
"""Fewest requests that a fit is made from."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a log says of one streamed request that was completed. Times are seconds."""

    engine: str
    dispatched_s: float
    first_s: float
    finished_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found. Times are milliseconds.

    Attributes:
        requests: How many it was fitted to.
        request_ms: Time to the first token without any input.
        input_ms: And for each input token.
        step_ms: Time for a further token, alone.
        step_request_ms: And for each request that runs at the same time.
        resident_most: Most tokens that one engine held at once.
        running_most: Most requests that one engine ran at once.
        first_error: Typical error of the time to the first token, of its mean.
        step_error: Typical error of the time for a further token, of its mean.
    """

    requests: int
    request_ms: float
    input_ms: float
    step_ms: float
    step_request_ms: float
    resident_most: int
    running_most: int
    first_error: float
    step_error: float

    def engines(self) -> dict[str, Any]:
        """Return it as the section ``engines`` of a scenario."""
        return {
            "kind": "continuous",
            "prefill_token_ms": self.input_ms,
            "step_ms": self.step_ms,
            "step_request_ms": self.step_request_ms,
            "step_token_ms": 0,
            "overhead_ms": 0,
            "pool_tokens": max(1, self.resident_most),
            "prefill_tokens_max": max(1, self.resident_most),
            "requests_max": max(1, self.running_most),
        }


def streamed(rows: Iterable[Mapping[str, Any]], model: str = "") -> list[Streamed]:
    """Return what can be used of a request log: completed streams of one model, or of all."""
    found = []
    for row in rows:
        if row["outcome"] != "completed" or row["first_byte_s"] is None or row["wait_s"] is None:
            continue
        if (model and row["model"] != model) or row["output_tokens"] < 2:
            continue
        arrived = datetime.fromisoformat(row["time"]).timestamp()
        found.append(
            Streamed(
                row["engine"],
                arrived + row["wait_s"],
                arrived + row["first_byte_s"],
                arrived + row["total_s"],
                row["input_tokens"],
                row["output_tokens"],
            )
        )
    return found


def fit(requests: Sequence[Streamed]) -> Fit:
    """Fit the model.

    Raises:
        ValueError: There are fewer than `LEAST` requests.
    """
    if len(requests) < LEAST:
        raise ValueError(f"has {len(requests)} completed streams; at least {LEAST} are needed")
    firsts = [(float(one.input_tokens), (one.first_s - one.dispatched_s) * 1e3) for one in requests]
    steps: list[tuple[float, float]] = []
    resident_most = running_most = 0
    by_engine: dict[str, list[Streamed]] = defaultdict(list)
    for one in requests:
        by_engine[one.engine].append(one)
    for group in by_engine.values():
        beside, running, resident = _beside(group)
        running_most, resident_most = max(running_most, running), max(resident_most, resident)
        for one, mean in zip(group, beside, strict=True):
            per_token = (one.finished_s - one.first_s) / (one.output_tokens - 1) * 1e3
            steps.append((mean, per_token))
    request_ms, input_ms, first_error = line(firsts)
    step_ms, step_request_ms, step_error = line(steps)
    return Fit(
        len(requests),
        round(request_ms, 4),
        round(input_ms, 6),
        round(step_ms, 4),
        round(step_request_ms, 5),
        resident_most,
        running_most,
        round(first_error, 4),
        round(step_error, 4),
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return constant and slope, both at least 0, of the least squares; and the relative error."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    square = sum((x - mean_x) ** 2 for x, _ in points)
    product = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope = max(0.0, product / square) if square else 0.0
    constant = mean_y - slope * mean_x
    if constant < 0:
        constant = 0.0
        slope = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    residual = math.sqrt(sum((y - constant - slope * x) ** 2 for x, y in points) / count)
    return constant, slope, residual / mean_y if mean_y else 0.0


def _beside(group: Sequence[Streamed]) -> tuple[list[float], int, int]:
    """Return how many ran on average while each had its further tokens; and the most at once."""
    events = sorted(
        [(one.first_s, 1, one.input_tokens + one.output_tokens) for one in group]
        + [(one.finished_s, -1, -one.input_tokens - one.output_tokens) for one in group]
    )
    times, areas = [events[0][0]], [0.0]
    running = resident = running_most = resident_most = 0
    for when, change, tokens in events:
        areas.append(areas[-1] + running * (when - times[-1]))
        times.append(when)
        running += change
        resident += tokens
        running_most, resident_most = max(running_most, running), max(resident_most, resident)
    after = dict(zip(times, areas, strict=True))
    means = []
    for one in group:
        took = one.finished_s - one.first_s
        area = after[one.finished_s] - after[one.first_s]
        means.append(area / took if took else 1.0)
    return means, running_most, resident_most
