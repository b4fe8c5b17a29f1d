# SPDX-License-Identifier: Apache-2.0
"""Whatever is called in whatever order: the naive scheduler, the core and Redis decide the same."""

import os
from itertools import count

import pytest
import redis as redis_client
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from property.test_state_machine import BATCHES, SchedulerMachine
from reference.redis_scheduler import RedisScheduler
from reference.side_by_side import SideBySide

from taketurns.core.model import PoolRules, Tier

RUNS = 5_000 if os.environ.get("TAKETURNS_PROOF") else 100
"""Sequences for each kind of pool."""

SERVER = {}
NUMBERS = count()


@pytest.fixture(autouse=True)
def server(redis):
    SERVER["client"] = redis_client.Redis.from_url(redis.unix_url)
    yield
    SERVER.pop("client").close()


class ThreeSideBySide(SideBySide):
    """As its parent, with the scheduler in Redis as the third."""

    def __init__(self, rules, tiers, tenants=()):
        super().__init__(rules, tiers, tenants)
        SERVER["client"].flushall()
        self.redis = RedisScheduler(
            SERVER["client"], f"pool-{next(NUMBERS)}", rules, tiers, tenants
        )

    def _both(self, name, *args, **kwargs):
        answer = super()._both(name, *args, **kwargs)
        self._compare(getattr(self.redis, name)(*args, **kwargs), answer)
        view, wake_us = self.redis.look()
        self._compare(view, self.naive.view())
        self._compare(wake_us, self.naive.next_wake_us())
        return answer


class RedisMachine(SchedulerMachine):
    """Slot mode."""

    side_by_side = ThreeSideBySide

    @rule(name=st.sampled_from(["one", "two"]))
    def remove_engine(self, name):
        self.both.remove_engine(name)


class RedisHeadroomMachine(RedisMachine):
    """Slot mode, with slots kept for tenants that hold none."""

    headroom = st.sampled_from([1, 25, 50, 90])


class RedisStickyMachine(RedisMachine):
    """Slot mode, with tickets that belong together, and with headroom."""

    headroom = st.sampled_from([0, 25])
    affinities = (0, 1, 2, 3, 2**48)


class RedisBatchMachine(RedisMachine):
    """Batch mode: tickets of many tenants share a slot, filled from one group."""

    batches = BATCHES
    groups = ("x", "y", "z")


@pytest.mark.parametrize(
    "machine", [RedisMachine, RedisHeadroomMachine, RedisStickyMachine, RedisBatchMachine]
)
def test_three_schedulers_decide_the_same(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=RUNS, stateful_step_count=40))


def test_more_expire_than_one_step_takes():
    rules = PoolRules(quantum=1)
    both = ThreeSideBySide(rules, [Tier("gold")])
    both.set_engine("one", 1)
    for _ in range(5):
        both.submit("a", "gold", deadline_us=0)
    assert len(both.advance()) == 5


def test_a_floor_loses_its_credit_though_nothing_waits():
    tiers = [Tier("gold"), Tier("silver", floor_percent=25)]
    both = ThreeSideBySide(PoolRules(quantum=1), tiers)
    both.set_engine("one", 1)
    both.submit("d", "silver", cost=2)
    both.submit("a", "gold", cost=9)
    both.advance()
    both.finish("t1")
    both.submit("a", "gold", cost=9)
    both.cancel("t0")
    both.cancel("t2")
    both.advance()


def test_rounds_of_kept_slots_pass_for_nobody_who_holds_one():
    both = ThreeSideBySide(PoolRules(quantum=1, headroom_percent=50), [Tier("gold")])
    both.set_engine("one", 3)
    for _ in range(3):
        both.submit("a", "gold", cost=40)
    # One more is free than is kept: it's A's, and then A waits.
    assert len(both.advance()) == 1
    for number in range(3):
        both.submit("b", "gold", cost=9)
        ((grant,),) = [both.advance()]
        assert grant.tickets[0].tenant == "b"
        both.submit("b", "gold", cost=9)
        assert both.advance() == []
        both.finish(grant.tickets[0].id, cost=number)
        (grant,) = both.advance()
        both.finish(grant.tickets[0].id)
    for _ in range(5):
        both.submit("b", "gold", cost=9)
    # Who is due when shows it, and what A owes how many rounds have passed for it.
    both.set_engine("one", 9)
    both.advance()
    both.settle("t0", 1)
    both.settle("t0", 30)
    both.finish("t0")
    both.advance()


def test_affinities_choose_among_many_engines_of_any_name():
    both = ThreeSideBySide(PoolRules(quantum=1, sticky=True), [Tier("gold")])
    names = ["http://10.0.0.1:8000", "gpu-\u00e9\u4e2d", "a", "b" * 60, "http://10.0.0.2:8000"]
    for name in names:
        both.set_engine(name, 40)
    numbers = [0, 1, 2**31, 2**32 - 1, 2**32, 2**48 - 1, 2**48]
    numbers += [number**9 % 2**48 for number in range(3, 90)]
    for affinity in numbers:
        both.submit("a", "gold", affinity=affinity)
    grants = both.advance()
    assert {grant.engine for grant in grants} == set(names)
    # One that has no slot more, or has gone, is none of them.
    both.remove_engine("a")
    both.set_engine("b" * 60, 1)
    for affinity in numbers:
        both.submit("a", "gold", affinity=affinity)
    both.advance()
