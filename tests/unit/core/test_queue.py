# SPDX-License-Identifier: Apache-2.0
"""A tenant's tickets come by priority, deadline and arrival, whatever leaves in between."""

import random

import pytest

from taketurns.core.model import Ticket
from taketurns.core.queue import NEVER_US, TicketQueue, entry_of


class Numbered:
    """Makes entries with rising arrival numbers."""

    def __init__(self):
        self.arrival = 0

    def __call__(self, priority=500, deadline_us=None, group="", cost=1):
        self.arrival += 1
        ticket = Ticket(
            f"t{self.arrival}",
            "acme",
            "standard",
            cost,
            priority=priority,
            deadline_us=deadline_us,
            group=group,
        )
        return entry_of(ticket, self.arrival)


@pytest.fixture
def entry():
    return Numbered()


def queue_of(*entries):
    queue = TicketQueue()
    for item in entries:
        queue.push(item)
    return queue


def drained(queue):
    return [queue.pop() for _ in range(queue.count)]


def held(queue):
    """Entries in memory, dead ones included."""
    return len(queue._heap) + sum(len(heap) for heap in queue._others.values())


def test_priority_comes_first_then_the_deadline_then_arrival(entry):
    late = entry(deadline_us=None)
    soon = entry(deadline_us=5)
    soon_too = entry(deadline_us=5)
    urgent = entry(priority=0)
    assert drained(queue_of(soon_too, urgent, late, soon)) == [urgent, soon, soon_too, late]


def test_no_deadline_is_later_than_any(entry):
    never, last = entry(), entry(deadline_us=NEVER_US - 1)
    assert never[1] == NEVER_US
    assert drained(queue_of(never, last)) == [last, never]


def test_an_empty_queue_has_no_head():
    queue = TicketQueue()
    assert queue.head() is None
    assert queue.head("") is None
    assert queue.head("other") is None
    assert (queue.count, queue.cost) == (0, 0)


def test_count_and_cost_are_those_of_the_living(entry):
    one, two, three = entry(cost=5), entry(cost=7), entry(cost=11)
    queue = queue_of(one, two, three)
    queue.remove(two)
    assert (queue.count, queue.cost) == (2, 16)
    assert queue.pop() is one
    assert (queue.count, queue.cost) == (1, 11)
    assert set(queue.entries()) == {three}


def test_a_removed_ticket_is_never_the_head(entry):
    entries = [entry() for _ in range(4)]
    queue = queue_of(*entries)
    queue.remove(entries[1])
    queue.remove(entries[0])
    assert queue.head() is entries[2]
    queue.remove(entries[3])
    assert drained(queue) == [entries[2]]
    assert held(queue) == 0


def test_each_group_has_its_own_head_and_the_queues_head_is_the_first_of_them(entry):
    a1, b1, a2, c1 = entry(group="a"), entry(group="b"), entry(group="a"), entry(group="c")
    b0 = entry(group="b", priority=0)
    queue = queue_of(a1, b1, a2, c1, b0)
    assert queue.head() is b0
    assert queue.head("a") is a1
    assert queue.head("c") is c1
    assert queue.head("d") is None
    assert queue.pop("a") is a1
    assert queue.pop() is b0
    assert queue.pop("c") is c1
    assert queue.head("c") is None
    assert drained(queue) == [b1, a2]


def test_a_group_outlives_the_one_that_came_first(entry):
    a, b, c = entry(group="a"), entry(group="b"), entry(group="c")
    queue = queue_of(a, b)
    assert queue.pop("a") is a
    assert queue.head() is b
    assert queue.head("a") is None
    more_of_b = entry(group="b")
    queue.push(more_of_b)
    queue.push(c)
    assert drained(queue) == [b, c, more_of_b]


def test_a_group_whose_tickets_are_all_removed_is_dropped(entry):
    a, b = entry(group="a"), entry(group="b")
    queue = queue_of(a, b)
    queue.remove(b)
    assert queue.head("b") is None
    assert not queue._others
    queue.remove(a)
    assert queue.head() is None


def test_a_copy_can_be_changed_alone_and_has_the_very_same_entries(entry):
    entries = [entry(group=group) for group in "abab"]
    queue = queue_of(*entries)
    queue.remove(entries[1])
    twin = queue.copy()
    assert all(
        one is other for one, other in zip(drained(twin), [*entries[:1], *entries[2:]], strict=True)
    )
    assert queue.count == 3
    assert queue.head() is entries[0]


@pytest.mark.parametrize("groups", ["a", "abc"])
def test_memory_stays_within_about_twice_the_living_over_10_000_removals(entry, groups):
    queue = queue_of(*(entry(group=groups[0]) for _ in range(10)))
    for number in range(10_000):
        # What is removed stands at the end: it never comes to the top by itself.
        item = entry(priority=999, group=groups[number % len(groups)])
        queue.push(item)
        queue.remove(item)
        assert held(queue) <= 2 * queue.count + 18
    assert queue.count == 10
    assert len(queue._others) <= 2


def test_memory_shrinks_too_when_the_living_are_served_before_the_dead_come_to_the_top(entry):
    living = [entry(priority=0) for _ in range(500)]
    dead = [entry(priority=999) for _ in range(500)]
    last = entry(priority=999)
    queue = queue_of(*living, *dead, last)
    for item in dead:
        queue.remove(item)
    for item in living:
        assert queue.pop() is item
        assert held(queue) <= 2 * queue.count + 18
    assert drained(queue) == [last]


def test_clearing_the_dead_drops_groups_that_have_none_living(entry):
    queue = queue_of(entry(group="a"))
    doomed = [entry(group=f"g{number}", priority=9) for number in range(3) for _ in range(2)]
    stays = [entry(group=f"g{number}", priority=1) for number in range(2)]
    filler = [entry(group="a", priority=999) for _ in range(40)]
    for item in (*doomed, *stays, *filler):
        queue.push(item)
    for item in (*doomed, *filler):
        queue.remove(item)
    assert held(queue) <= 2 * queue.count + 16
    assert queue.head("g2") is None
    assert sorted(item[3].group for item in drained(queue)) == ["a", "g0", "g1"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_pushes_pops_and_removals_gives_what_sorting_gives(seed, entry):
    draw = random.Random(seed)
    queue, living = TicketQueue(), []
    for _ in range(300):
        step = draw.random()
        if step < 0.5 or not living:
            item = entry(draw.choice([0, 5]), draw.choice([None, 1, 2]), draw.choice("aab"))
            living.append(item)
            queue.push(item)
        elif step < 0.7:
            item = draw.choice(living)
            living.remove(item)
            queue.remove(item)
        else:
            group = draw.choice([None, "a", "b"])
            expected = min((i for i in living if group in (None, i[3].group)), default=None)
            assert queue.head(group) is expected
            if expected is not None:
                assert queue.pop(group) is expected
                living.remove(expected)
        assert queue.count == len(living)
        assert sorted(queue.entries()) == sorted(living)
