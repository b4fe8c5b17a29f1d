# SPDX-License-Identifier: Apache-2.0
"""Traces: requests that were recorded somewhere, read line by line.

A trace without tenants is dealt to some by Zipf's law, from the run's seed.
"""

import csv
import gzip
import heapq
import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import IO, NamedTuple

from taketurns.errors import ConfigError, ConfigFault
from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts
from taketurns.sim.servegen import generated, read_clients
from taketurns.units import us_from_s

DATA = files("taketurns.sim") / "data"
"""Where the traces lie that come with the package."""


class Recorded(NamedTuple):
    """One request of a trace. The tenant is "" where the trace has none."""

    arrived_s: float
    tenant: str
    input_tokens: int
    output_tokens: int


def _vtc(lines: Iterable[str]) -> Iterator[Recorded]:
    for row in csv.DictReader(lines):
        yield Recorded(
            float(row["arrival_s"]),
            row["client"],
            int(row["prompt_tokens"]),
            int(row["output_tokens"]),
        )


def _azure(lines: Iterable[str]) -> Iterator[Recorded]:
    first: datetime | None = None
    for row in csv.DictReader(lines):
        # Python reads microseconds; the trace has a digit more.
        when = datetime.fromisoformat(row["TIMESTAMP"][:26])
        first = first or when
        yield Recorded(
            (when - first).total_seconds(),
            "",
            int(row["ContextTokens"]),
            int(row["GeneratedTokens"]),
        )


def _mooncake(lines: Iterable[str]) -> Iterator[Recorded]:
    for line in lines:
        row = json.loads(line)
        yield Recorded(row["timestamp"] / 1e3, "", row["input_length"], row["output_length"])


def _burst_gpt(lines: Iterable[str]) -> Iterator[Recorded]:
    for row in csv.DictReader(lines):
        yield Recorded(
            float(row["Timestamp"]),
            "",
            int(row["Request tokens"]),
            int(row["Response tokens"]),
        )


REORDERED_MAX = 100_000
"""Lines of a request log that are held to put them in order: as many may run at once."""


def _request_log(lines: Iterable[str], model: str = "") -> Iterator[Recorded]:
    """Read the gateway's own log, which is written as requests end.

    What was invalid is left out, and other models where one is given; what was
    refused arrived too.
    """
    held: list[tuple[float, int, Recorded]] = []
    first: float | None = None
    for number, line in enumerate(lines):
        row = json.loads(line)
        if not row["tenant"] or row["outcome"] == "invalid":
            continue
        if model and row["model"] != model:
            continue
        when = datetime.fromisoformat(row["time"]).timestamp()
        tokens = int(row.get("input_tokens", 0)), int(row.get("output_tokens", 0))
        heapq.heappush(held, (when, number, Recorded(when, row["tenant"], *tokens)))
        if len(held) > REORDERED_MAX:
            when, _, recorded = heapq.heappop(held)
            first = when if first is None else first
            yield recorded._replace(arrived_s=when - first)
    while held:
        when, _, recorded = heapq.heappop(held)
        first = when if first is None else first
        yield recorded._replace(arrived_s=when - first)


FORMATS: dict[str, Callable[[Iterable[str]], Iterator[Recorded]]] = {
    "vtc": _vtc,
    "azure-2023": _azure,
    "mooncake": _mooncake,
    "burst-gpt": _burst_gpt,
    "request-log": _request_log,
}


SERVEGEN = "servegen"
"""Format of a file that has no requests but describes clients."""


def read_trace(
    section: Section, folder: Path, *, deal: bool = True
) -> Callable[[Random], Iterator[Request]]:
    """Read which trace a scenario plays, and how.

    Args:
        section: Its section.
        folder: Against which its file is meant.
        deal: Deal requests without a tenant to some; else their tenant is "".

    Returns:
        Makes the requests, in the order of their arrival, from a generator that deals tenants.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    file = section.text("file")
    kind = section.text("format", options=(*FORMATS, SERVEGEN))
    speed = section.number("speed", 1.0, 1e-6)
    limit = section.whole("tokens_most", 1_000_000, 1)
    model = section.text("model", "")
    dealt = section.section("assign")
    tenants, exponent = dealt.whole("tenants", 10, 1), dealt.number("exponent", 1.0, 0, 10)
    dealt.done()
    hour, scale = section.whole("hour", 0), section.number("scale", 1.0, 1e-6)
    section.done()
    if kind == SERVEGEN:
        return _servegen(file, folder, hour, scale, limit)
    shares = list(accumulate((rank + 1) ** -exponent for rank in range(tenants)))

    if kind == "request-log":
        rows: Callable[[Iterable[str]], Iterator[Recorded]] = partial(_request_log, model=model)
    else:
        rows = FORMATS[kind]

    def requests(random: Random) -> Iterator[Request]:
        with open_text(file, folder) as lines:
            number = 0
            for number, recorded in enumerate(_checked(rows(lines), file)):
                tenant = recorded.tenant
                if deal and not tenant:
                    tenant = f"tenant-{bisect_left(shares, random.random() * shares[-1])}"
                yield Request(
                    str(number),
                    tenant,
                    min(limit, max(1, recorded.input_tokens)),
                    min(limit, max(1, recorded.output_tokens)),
                    us_from_s(recorded.arrived_s / speed),
                )

    return requests


def _servegen(
    file: str, folder: Path, hour: int, scale: float, limit: int
) -> Callable[[Random], Iterator[Request]]:
    def requests(random: Random) -> Iterator[Request]:
        with open_text(file, folder) as lines:
            try:
                clients = read_clients(lines)
            except (KeyError, ValueError, TypeError, OSError) as error:
                raise ConfigError(
                    [ConfigFault("trace.file", f"is not of this format: {error!r}")], source=file
                ) from error
        yield from generated(clients, str(random.random()), hour, scale, limit)

    return requests


def dealt(
    play: Callable[[Random], Iterator[Request]],
    seed: str,
    facts: Mapping[str, TenantFacts],
    exponent: float,
    tier: str,
    timeouts_us: Mapping[str, int],
) -> Iterator[Request]:
    """Yield a trace's requests with the tiers of their tenants, and deadlines of those.

    Args:
        play: Makes the requests; those without a tenant are dealt to the known ones.
        seed: Decides who gets what.
        facts: The known tenants.
        exponent: Zipf's, in the order of the tenants; 0: all alike.
        tier: Of tenants that are not known.
        timeouts_us: Longest wait, by tier.
    """
    random = Random(f"tenants {seed}")
    names = list(facts)
    shares = list(accumulate((rank + 1) ** -exponent for rank in range(len(names))))
    for request in play(Random(seed)):
        if not request.tenant and names:
            request.tenant = names[bisect_left(shares, random.random() * shares[-1])]
        known = facts.get(request.tenant)
        request.tier = known.tier if known else tier
        if request.tier in timeouts_us:
            request.deadline_us = request.arrived_us + timeouts_us[request.tier]
        yield request


def open_text(file: str, folder: Path) -> IO[str]:
    """Open a text file, packed by gzip or not: one of the package's, or a path.

    Raises:
        ConfigError: It can't be opened.
    """
    own = DATA / file
    path = Path(str(own)) if own.is_file() else folder / file
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", encoding="utf-8")
        return path.open(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            [ConfigFault("trace.file", f"can't be read: {error}")], source=file
        ) from error


def _checked(rows: Iterator[Recorded], file: str) -> Iterator[Recorded]:
    """Yield rows in order; say where one can't be read."""
    last = 0.0
    number = 0
    while True:
        number += 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise ConfigError(
                [ConfigFault(f"row {number}", f"is not of this format: {error!r}")], source=file
            ) from error
        # Some traces are out of order by a little: keep time from going back.
        last = max(last, row.arrived_s)
        yield row._replace(arrived_s=last)
