# SPDX-License-Identifier: Apache-2.0
"""What tenants have queued and send: by priority, fading with time, forgotten in the end."""

import pytest

from taketurns.core.demand import HORIZON_US, Demand, Own

LEVEL = 10**9


def soon(demand):
    """All that is queued or expected."""
    demand.recount()
    return demand.soon.served(LEVEL, 0, 1)


@pytest.fixture
def demand():
    return Demand(10)


def test_what_goes_before_a_ticket_is_what_has_its_priority_or_a_better_one(demand):
    own = demand.offer("a", 1, 0, 0)
    assert own.before(999) == 0
    demand.queue(own, 5, 100)
    assert (own.before(4), own.before(5), own.before(6)) == (0, 100, 100)
    demand.queue(own, 7, 30)
    assert (own.before(4), own.before(5), own.before(6), own.before(7)) == (0, 100, 100, 130)
    demand.queue(own, 5, -100)
    assert own.by_priority == {7: 30}
    assert demand.backlogs.cost == own.cost == 30


def test_what_a_tenant_sends_is_expected_again_in_part(demand):
    own = demand.offer("a", 1, 2_560, 0)
    assert soon(demand) == own.soon == 890
    assert demand.offered == 2_560


def test_a_steady_sender_is_expected_to_go_on(demand):
    for number in range(2_000):
        own = demand.offer("a", 1, 100, number * 10_000)
    demand.recount()
    in_a_horizon = 100 * HORIZON_US // 10_000
    assert own.soon == pytest.approx(in_a_horizon, rel=0.03)


def test_what_was_sent_fades_and_the_tenant_is_forgotten(demand):
    demand.offer("a", 1, 1_000, 0)
    other = demand.offer("b", 1, 0, 2 * HORIZON_US)
    assert demand.own["a"].offered == 500
    demand.offer("b", 1, 0, 3 * HORIZON_US)
    for number in range(4, 64):
        demand.offer("b", 1, 0, number * HORIZON_US)
    assert list(demand.own) == ["b"]
    assert demand.own["b"] is other
    assert soon(demand) == 0


def test_a_tenant_with_a_backlog_is_not_forgotten(demand):
    demand.queue(demand.offer("a", 1, 100, 0), 0, 100)
    for number in range(100):
        demand.offer("b", 1, 0, number * HORIZON_US)
    demand.recount()
    assert demand.own["a"].soon == 100


def test_time_that_goes_back_changes_nothing(demand):
    own = demand.offer("a", 1, 1_000, 500)
    demand.offer("a", 1, 0, 100)
    assert (own.offered, own.as_of_us) == (1_000, 500)


def test_a_weight_counts_from_then_on(demand):
    own = demand.offer("a", 1, 0, 0)
    demand.queue(own, 0, 1_000)
    assert demand.backlogs.served(40, 0, 1) == 40
    demand.weigh("a", 3)
    demand.weigh("stranger", 9)
    assert demand.backlogs.served(40, 0, 1) == demand.soon.served(40, 0, 1) == 120
    assert own.weight == 3


def test_the_horizon_follows_the_targets(demand):
    for _ in range(2_000):
        demand.aim(100_000)
    assert demand.horizon_us == pytest.approx(100_000, rel=0.01)
    for _ in range(2_000):
        demand.aim(-10)
    assert demand.horizon_us == 1


def test_a_record_begins_empty():
    own = Own(2, 7)
    assert (own.cost, own.soon, own.offered, own.as_of_us, own.weight) == (0, 0, 0, 7, 2)
