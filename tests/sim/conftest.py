# SPDX-License-Identifier: Apache-2.0
"""What the simulator's tests share: small engines and requests, and who looks on."""

import pytest

from taketurns.sim.engines.continuous import ContinuousEngine, ContinuousProfile
from taketurns.sim.request import Request
from taketurns.sim.run import Run, Setting


class Watched:
    """An observer that keeps every request."""

    def __init__(self):
        self.all = []
        self.refusals = []
        self.late = []
        self.done = []
        self.begun = []

    def arrived(self, request):
        self.all.append(request)

    def refused(self, request):
        self.refusals.append(request.id)

    def expired(self, request, now_us):
        self.late.append(request.id)

    def admitted(self, request):
        self.begun.append(request.id)

    def finished(self, request):
        self.done.append(request.id)


ROUND = ContinuousProfile(
    prefill_token_us=10,
    step_us=1_000,
    step_request_us=100,
    step_token_us=1,
    overhead_us=0,
    pool_tokens=100,
    prefill_tokens_max=50,
)


def asks(name, at_us=0, *, tokens=(10, 5), tenant="acme", **fields):
    return Request(name, tenant, *tokens, at_us, **fields)


@pytest.fixture
def play():
    """Return a function that runs a scheduler over requests, and returns who looked on."""

    def play(
        scheduler,
        requests,
        *,
        profile=ROUND,
        engines=1,
        tenants=None,
        model=ContinuousEngine,
        clients=(),
    ):
        watched = Watched()

        def engine(place):
            return profile(place) if model is None else model(profile, place)

        setting = Setting(scheduler, engine, engines, tenants or {}, "0")
        run = Run(setting, iter(requests), watched, clients)
        run.go()
        watched.run = run
        return watched

    return play
