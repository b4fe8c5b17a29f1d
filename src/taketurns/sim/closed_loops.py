# SPDX-License-Identifier: Apache-2.0
"""Clients in closed loops: each sends a request, waits for it, thinks, and sends the next."""

from dataclasses import dataclass
from random import Random

from taketurns.sim.reading import Section
from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import TenantFacts
from taketurns.sim.workloads import Lengths, read_facts, read_lengths
from taketurns.units import us_from_s


@dataclass(frozen=True, slots=True)
class Loop:
    """Clients that are alike.

    Attributes:
        tenant: Whose they are.
        threads: How many.
        calls: Requests of each.
        think_s: Time between an answer and the next request; and before the first.
        input: Input tokens.
        output: Output tokens.
        facts: What schedulers know of the tenant.
    """

    tenant: str
    threads: int
    calls: int
    think_s: float
    input: Lengths
    output: Lengths
    facts: TenantFacts

    def clients(self, seed: str) -> "list[LoopClient]":
        """Return its clients for one run."""
        return [
            LoopClient(self, number, Random(f"{seed} {self.tenant} {number}"))
            for number in range(self.threads)
        ]


class LoopClient:
    """Implements :class:`~taketurns.sim.request.Client`.

    Args:
        loop: What it does.
        number: Which of its loop's clients it is.
        random: Draws lengths.
    """

    def __init__(self, loop: Loop, number: int, random: Random) -> None:
        self._loop = loop
        self._number = number
        self._random = random
        self._sent = 0

    def next(self, now_us: int) -> Request | None:
        loop = self._loop
        if self._sent >= loop.calls:
            return None
        self._sent += 1
        return Request(
            f"{loop.tenant}/{self._number}/{self._sent}",
            loop.tenant,
            loop.input(self._random),
            loop.output(self._random),
            now_us + us_from_s(loop.think_s),
            loop.facts.tier,
        )


def read_loop(tenant: str, section: Section) -> Loop:
    """Read clients of a scenario that wait for their answers.

    Raises:
        ConfigError: A value is missing, unknown or out of range.
    """
    loop = Loop(
        tenant,
        section.whole("threads", least=1, most=1_000_000),
        section.whole("calls", least=1),
        section.number("think", 0.0),
        read_lengths(section, "input"),
        read_lengths(section, "output"),
        read_facts(section),
    )
    section.done()
    return loop
