# SPDX-License-Identifier: Apache-2.0
"""What the simulator asks of a scheduler: the port that every plug-in implements."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from taketurns.ports.clock import Clock
from taketurns.sim.request import Request


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """What a scheduler may know of a tenant beforehand.

    Attributes:
        weight: Its share against the others, at least 1.
        tier: Its tier.
        cap: Most requests in flight at once; None: no cap.
    """

    weight: int = 1
    tier: str = "all"
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a scheduler is made for.

    Attributes:
        clock: The run's clock.
        random: For schedulers that roll dice; seeded for the run.
        tenants: The tenants that differ from the defaults.
        engines: How many engines there are; they are numbered from 0.
        wake: Tells an engine that a request was pushed to it.
        gone: Told of requests that expired in the queue.
        throttled: Whoever would start too late is refused; else they are let in, to see
            what had become of them.
    """

    clock: Clock
    random: Random
    tenants: Mapping[str, TenantFacts]
    engines: int
    wake: Callable[[int], None]
    gone: Callable[[Request], None]
    throttled: bool = True


class SimScheduler(Protocol):
    """Decides which request an engine admits next.

    An engine with room asks for the ``head``, and calls ``admitted`` if it fits
    into its memory; else it asks again later.

    Attributes:
        pushes: Engines are given requests as their slots allow, and woken; else
            they ask for them whenever they have room.
        keeps_head: A head that didn't fit stays the engine's head until it does.
        follows: Wants to be told of decoding steps, see :meth:`decoded`.
    """

    pushes: bool
    keeps_head: bool
    follows: bool

    @property
    def waiting(self) -> int:
        """Requests that were accepted and not admitted."""
        ...

    def arrived(self, request: Request) -> bool:
        """Queue a request; False where it's refused: ``request.refused_by`` says by what."""
        ...

    def head(self, engine: int) -> Request | None:
        """Return what an engine should admit next; None: nothing that it may."""
        ...

    def admitted(self, engine: int, request: Request) -> None:
        """Take the head out: an engine begins with it now."""
        ...

    def decoded(self, engine: int, step: int) -> None:
        """Learn how many decoding steps an engine has made; called before it asks for a head."""
        ...

    def finished(self, request: Request) -> None:
        """Settle a request whose last token is there."""
        ...

    def figures(self) -> dict[str, float]:
        """Return what only the scheduler knows, by name."""
        ...
