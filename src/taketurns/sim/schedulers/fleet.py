# SPDX-License-Identifier: Apache-2.0
"""Several gateways in front of the same engines: each with its own state, or with one they share.

Traffic enters unevenly: each tenant has its own shares of gateways. With
*local* state every gateway is a scheduler for itself with its part of each
engine's slots. With *shared* state there is one scheduler; a ticket reaches it
after a network delay, and a slot is free again after another one. When the
store of the shared state is lost, gateways go on alone until it's back.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from taketurns.sim.request import Request
from taketurns.sim.schedulers.base import Surroundings
from taketurns.sim.schedulers.round_robin import RoundRobin

InnerFactory = Callable[[Surroundings, int], RoundRobin]
"""Makes a scheduler with so many slots for each engine."""


@dataclass(frozen=True, slots=True)
class FleetRules:
    """How the gateways stand to each other.

    Attributes:
        gateways: How many, at least 1.
        slots: Slots of each engine, at least one a gateway.
        shared: They share one state.
        delay_us: From a gateway to the shared state, one way.
        ingress: For tenants: their shares of the gateways; others enter evenly.
        lost_us: From when until when the store is lost; None: never.
        dies_us: When the last gateway dies, with all that waits there; None: never.
        notice_us: How long it takes the others to notice.
    """

    gateways: int
    slots: int
    shared: bool
    delay_us: int
    ingress: Mapping[str, Sequence[float]]
    lost_us: tuple[int, int] | None
    dies_us: int | None
    notice_us: int


class Fleet:
    """Implements :class:`~taketurns.sim.schedulers.base.SimScheduler` over those of the gateways.

    Args:
        rules: How the gateways stand to each other.
        inner: Makes a gateway's scheduler, or the shared one.
        around: What it is made for.
    """

    pushes = True
    keeps_head = True
    follows = True

    def __init__(self, rules: FleetRules, inner: InnerFactory, around: Surroundings) -> None:
        self._rules = rules
        self._around = around
        self._random = around.random
        self._living = rules.gateways
        part = max(1, rules.slots // rules.gateways)
        needs_local = not rules.shared or rules.lost_us is not None
        self._local = [
            inner(self._seen_by(number), part)
            for number in range(rules.gateways if needs_local else 0)
        ]
        self._shared = inner(self._seen_by(rules.gateways), rules.slots) if rules.shared else None
        self._all = [*self._local, *([self._shared] if self._shared else [])]
        self._turns: list[deque[int]] = [deque() for _ in range(around.engines)]
        self._owner: dict[str, int] = {}
        self._held: list[dict[str, Request]] = [{} for _ in range(rules.gateways)]
        self._gateway: dict[str, int] = {}
        self._under_way = 0
        if rules.dies_us is not None:
            around.clock.call_at(rules.dies_us, self._die)
            around.clock.call_at(rules.dies_us + rules.notice_us, self._notice)
        if rules.lost_us is not None and self._shared is not None:
            around.clock.call_at(rules.lost_us[0], partial(self._shared.resize, 0))
            around.clock.call_at(rules.lost_us[1], partial(self._shared.resize, rules.slots))

    @property
    def waiting(self) -> int:
        return sum(each.waiting for each in self._all) + self._under_way

    def arrived(self, request: Request) -> bool:
        gateway = self._enter(request.tenant)
        self._gateway[request.id] = gateway
        self._held[gateway][request.id] = request
        if self._shared is None or self._lost():
            self._owner[request.id] = gateway
            return self._local[gateway].arrived(request)
        self._owner[request.id] = len(self._all) - 1
        self._under_way += 1
        then = self._around.clock.now_us() + self._rules.delay_us
        self._around.clock.call_at(then, partial(self._reach, request))
        return True

    def head(self, engine: int) -> Request | None:
        turns = self._turns[engine]
        return self._all[turns[0]].head(engine) if turns else None

    def admitted(self, engine: int, request: Request) -> None:
        del self._held[self._gateway.pop(request.id)][request.id]
        self._all[self._turns[engine].popleft()].admitted(engine, request)

    def decoded(self, engine: int, step: int) -> None:
        for each in self._all:
            each.decoded(engine, step)

    def finished(self, request: Request) -> None:
        owner = self._all[self._owner.pop(request.id)]
        if owner is self._shared:
            then = self._around.clock.now_us() + self._rules.delay_us
            self._around.clock.call_at(then, partial(owner.finished, request))
        else:
            owner.finished(request)

    def figures(self) -> dict[str, float]:
        return {}

    def _seen_by(self, number: int) -> Surroundings:
        """Return the surroundings of one scheduler: what it grants stands in line at the engine."""

        def wake(engine: int) -> None:
            self._turns[engine].append(number if self._local else 0)
            self._around.wake(engine)

        return replace(self._around, wake=wake)

    def _enter(self, tenant: str) -> int:
        shares = list(self._rules.ingress.get(tenant, ()))[: self._living] or [1] * self._living
        sums = list(accumulate(shares))
        if not sums[-1]:
            return 0
        return bisect_left(sums, self._random.random() * sums[-1])

    def _lost(self) -> bool:
        lost = self._rules.lost_us
        return lost is not None and lost[0] <= self._around.clock.now_us() < lost[1]

    def _reach(self, request: Request) -> None:
        assert self._shared is not None
        self._under_way -= 1
        if request.id in self._owner:
            self._shared.arrived(request)

    def _die(self) -> None:
        """Lose the last gateway, and what waits there: its clients' sockets died with it."""
        self._living -= 1
        held = self._held[self._living]
        for request in list(held.values()):
            owner = self._all[self._owner[request.id]]
            # One that was granted already stands in the engine, which goes on with it.
            if owner.cancel(request.id) or request.arrived_us >= self._around.clock.now_us():
                del held[request.id], self._owner[request.id], self._gateway[request.id]
                self._around.gone(request)

    def _notice(self) -> None:
        for number, each in enumerate(self._local):
            each.resize(self._rules.slots // self._living if number < self._living else 0)
