# SPDX-License-Identifier: Apache-2.0
"""Where requests come from: arrivals and lengths of each tenant, drawn from a seed.

Each tenant draws from a generator of its own, so that one tenant more changes
nothing for the others.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts
from taketurns.units import US_PER_S, us_from_s

Lengths = Callable[[Random], int]
Arrivals = Callable[[Random, float], Iterator[float]]
"""From a generator and a duration in seconds: times of arrival, in seconds and in order."""

ARRIVALS = ("even", "poisson", "gamma")


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one tenant sends, or a population of tenants.

    Attributes:
        tenant: Its name; of a population: the prefix of its tenants' names.
        arrivals: When.
        input: Input tokens.
        output: Output tokens.
        facts: What schedulers know of it.
        priority: Of its requests.
        deadline_s: Its requests wait at most so long; None: for ever.
        population: Tenants among whom requests are dealt, by Zipf's law; 1: itself alone.
        exponent: Zipf's exponent; 0: all alike.
    """

    tenant: str
    arrivals: Arrivals
    input: Lengths
    output: Lengths
    facts: TenantFacts
    priority: int
    deadline_s: float | None
    population: int = 1
    exponent: float = 0.0

    def requests(self, seed: str, duration_s: float) -> Iterator[Request]:
        """Yield its requests in the order of their arrival."""
        random = Random(f"{seed} {self.tenant}")
        name = self._dealer(random)
        deadline = None if self.deadline_s is None else us_from_s(self.deadline_s)
        input_of, output_of, tier, priority = (
            self.input,
            self.output,
            self.facts.tier,
            self.priority,
        )
        for number, when in enumerate(self.arrivals(random, duration_s)):
            arrived = round(when * US_PER_S)
            yield Request(
                f"{self.tenant}/{number}",
                name(),
                input_of(random),
                output_of(random),
                arrived,
                tier,
                priority,
                None if deadline is None else arrived + deadline,
            )

    def _dealer(self, random: Random) -> Callable[[], str]:
        if self.population == 1:
            return lambda: self.tenant
        shares = list(accumulate((rank + 1) ** -self.exponent for rank in range(self.population)))
        names = [f"{self.tenant}-{rank}" for rank in range(self.population)]
        return lambda: names[bisect_left(shares, random.random() * shares[-1])]


def merged(traffic: Sequence[Traffic], seed: str, duration_s: float) -> Iterator[Request]:
    """Yield the requests of all tenants in the order of their arrival."""
    if len(traffic) == 1:
        return traffic[0].requests(seed, duration_s)
    streams = [each.requests(seed, duration_s) for each in traffic]
    return heapq.merge(*streams, key=lambda request: request.arrived_us)


def read_traffic(name: str, section: Section) -> list[Traffic]:
    """Read one tenant of a scenario; several where it has a ``count``.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    copies = section.whole("count", 1, 1, 1_000_000)
    arrivals = _arrivals(section)
    section.raw("priority")
    deadline = section.raw("deadline")
    facts = read_facts(section)
    made = [
        Traffic(
            name if copies == 1 else f"{name}-{number}",
            arrivals,
            read_lengths(section, "input"),
            read_lengths(section, "output"),
            facts,
            section.whole("priority", 500, 0, 999),
            None if deadline is None else section.number("deadline", least=0.001),
            section.whole("population", 1, 1, 10_000_000),
            section.number("exponent", 1.0, 0, 10),
        )
        for number in range(1, copies + 1)
    ]
    section.done()
    return made


def read_facts(section: Section) -> TenantFacts:
    """Read what schedulers know of a tenant."""
    return TenantFacts(
        section.whole("weight", 1, 1, 1_000),
        section.text("tier", "all"),
        section.whole_or_none("parallel", None, "unlimited", 1),
    )


def read_lengths(section: Section, key: str) -> Lengths:
    """Read a length in tokens: a number, ``[least, most]``, or a log-normal distribution."""
    value = section.raw(key)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(x, int) for x in value):
        least, most = value
        if not 1 <= least <= most:
            raise section.fault(key, f"must be [least, most] with 1 <= least <= most, got {value}")
        return lambda random: random.randint(least, most)
    if isinstance(value, dict):
        inner = section.section(key)
        middle = math.log(inner.number("median", least=1))
        sigma = inner.number("sigma", least=0)
        limit = inner.whole("most", 1_000_000, 1)
        inner.done()
        return lambda random: min(limit, max(1, round(random.lognormvariate(middle, sigma))))
    fixed = section.whole(key, least=1)
    return lambda _random: fixed


def _arrivals(section: Section) -> Arrivals:
    """Read when a tenant's requests arrive."""
    if "burst" in section:
        burst = section.section("burst")
        at, requests = burst.number("at", 0), burst.whole("requests", least=1)
        burst.done()
        return lambda _random, _duration: iter([at] * requests)
    rate = section.number("rate", least=1e-9)
    kind = section.text("arrivals", "poisson", ARRIVALS)
    cv = section.number("cv", 1.0, 0.01)
    on, off = section.number("active", 0), section.number("silent", 0)
    period, depth = section.number("period", 0), section.number("depth", 1, 0, 1)
    start = section.number("start", 0)
    stop = section.number("stop", float("inf"))
    phase = section.number("phase", 0, 0, 1) if "phase" in section else None
    spread = cv if kind == "gamma" else 1.0
    times = _even(rate, phase) if kind == "even" else _renewal(rate, spread)
    if not (off or period or start) and stop == float("inf"):
        return times

    def arrivals(random: Random, duration: float) -> Iterator[float]:
        for when in times(random, duration):
            if not start <= when < stop:
                continue
            if off and when % (on + off) >= on:
                continue
            wave = (1 + math.cos(2 * math.pi * when / period)) / 2 if period else 0.0
            if not period or random.random() >= depth * wave:
                yield when

    return arrivals


def _even(rate: float, phase: float | None) -> Arrivals:
    """Arrive in equal steps, from a phase, random where none is given: as VTC's suites do."""

    def times(random: Random, duration: float) -> Iterator[float]:
        drawn = random.random()
        begin = drawn if phase is None else phase
        return ((begin + step) / rate for step in range(1, int(rate * duration) + 1))

    return times


def _renewal(rate: float, cv: float) -> Arrivals:
    """Arrive in gaps of a gamma distribution; Poisson where their coefficient of variation is 1."""
    shape = 1 / (cv * cv)

    def times(random: Random, duration: float) -> Iterator[float]:
        when, uniform, log = 0.0, random.random, math.log
        while True:
            if cv == 1:
                when -= log(1 - uniform()) / rate
            else:
                when += random.gammavariate(shape, 1) / (shape * rate)
            if when >= duration:
                return
            yield when

    return times
