# SPDX-License-Identifier: Apache-2.0
"""An idle engine waits for a fuller batch only where that is wanted, once, and never when full."""

import pytest

from taketurns.core.decision import Expired, Granted
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler

LINGER_US = 5_000


def pool(linger_us=LINGER_US, items_max=4, slots=1):
    rules = BatchRules(size_max=10, items_max=items_max, linger_us=linger_us)
    scheduler = Scheduler(
        PoolRules(quantum=10, min_charge=1, batch=rules), [Tier("t")], [Tenant("a"), Tenant("b")]
    )
    scheduler.set_engine("e", slots)
    return scheduler


def ticket(name, size=1, **more):
    return Ticket(name, name[0], "t", size, size, **more)


def granted(decisions):
    return [[t.id for t in d.tickets] for d in decisions if isinstance(d, Granted)]


def test_the_first_item_waits_for_others_and_they_go_together():
    scheduler = pool()
    scheduler.submit(ticket("a1"))
    assert scheduler.advance(100) == []
    assert scheduler.next_wake_us() == 100 + LINGER_US
    scheduler.submit(ticket("b1"))
    assert scheduler.advance(100 + LINGER_US - 1) == []
    assert granted(scheduler.advance(100 + LINGER_US)) == [["a1", "b1"]]
    assert scheduler.next_wake_us() is None


@pytest.mark.parametrize(("sizes", "items_max"), [([5, 5], 9), ([1, 1], 2)])
def test_a_full_batch_does_not_wait(sizes, items_max):
    scheduler = pool(items_max=items_max)
    scheduler.submit(ticket("a1", sizes[0]))
    assert scheduler.advance(0) == []
    scheduler.submit(ticket("b1", sizes[1]))
    assert granted(scheduler.advance(1)) == [["a1", "b1"]]


def test_what_a_full_batch_leaves_goes_at_once_to_the_next_free_slot():
    scheduler = pool(items_max=2, slots=2)
    for name in ("a1", "a2", "a3"):
        scheduler.submit(ticket(name))
    assert granted(scheduler.advance(0)) == [["a1", "a2"], ["a3"]]


def test_what_waited_for_a_slot_does_not_wait_once_more():
    scheduler = pool(items_max=2)
    for name in ("a1", "a2"):
        scheduler.submit(ticket(name))
    scheduler.advance(0)
    scheduler.submit(ticket("b1"))
    scheduler.advance(10)
    scheduler.finish("a1")
    scheduler.finish("a2")
    assert granted(scheduler.advance(10 + LINGER_US)) == [["b1"]]


def test_after_an_empty_queue_the_wait_begins_anew():
    scheduler = pool()
    scheduler.submit(ticket("a1"))
    scheduler.advance(0)
    scheduler.cancel("a1")
    assert scheduler.advance(10) == []
    assert scheduler.next_wake_us() is None
    scheduler.submit(ticket("a2"))
    assert scheduler.advance(7_000) == []
    assert scheduler.next_wake_us() == 7_000 + LINGER_US


def test_an_item_that_expires_while_it_lingers_leaves_nothing_behind():
    scheduler = pool()
    scheduler.submit(ticket("a1", deadline_us=50))
    assert scheduler.advance(0) == []
    assert scheduler.next_wake_us() == 50
    (decision,) = scheduler.advance(50)
    assert isinstance(decision, Expired)
    assert scheduler.next_wake_us() is None


def test_by_default_an_idle_engine_takes_what_is_there():
    scheduler = pool(linger_us=0)
    scheduler.submit(ticket("a1"))
    assert granted(scheduler.advance(0)) == [["a1"]]


def test_a_wait_is_not_negative():
    with pytest.raises(ValueError, match="linger_us"):
        BatchRules(1, 1, linger_us=-1)
