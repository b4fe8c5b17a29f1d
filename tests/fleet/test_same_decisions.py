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


class RedisBatchMachine(RedisMachine):
    """Batch mode: tickets of many tenants share a slot, filled from one group."""

    batches = BATCHES
    groups = ("x", "y", "z")


@pytest.mark.parametrize("machine", [RedisMachine, RedisBatchMachine])
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
