# SPDX-License-Identifier: Apache-2.0
"""Deadlines come in their order, and those of tickets that left never come."""

import pytest

from taketurns.core.deadlines import Deadlines
from taketurns.core.model import Ticket
from taketurns.core.queue import entry_of


class Watched:
    """Waiting tickets and their deadlines."""

    def __init__(self):
        self.waiting = {}
        self.deadlines = Deadlines(self.waiting)
        self.arrivals = 0

    def add(self, deadline_us, name=None):
        self.arrivals += 1
        ticket = Ticket(name or f"t{self.arrivals}", "acme", "only", deadline_us=deadline_us)
        entry = entry_of(ticket, self.arrivals)
        self.waiting[ticket.id] = entry
        self.deadlines.add(entry)
        return entry

    def drop(self, entry):
        del self.waiting[entry[3].id]
        self.deadlines.forget()


@pytest.fixture
def watched():
    return Watched()


def test_where_no_ticket_waits_nothing_is_due(watched):
    assert watched.deadlines.next_us() is None
    assert watched.deadlines.due(10**9) == []


def test_a_deadline_has_passed_when_the_clock_reaches_it(watched):
    entry = watched.add(10)
    assert watched.deadlines.due(9) == []
    assert watched.deadlines.next_us() == 10
    assert watched.deadlines.due(10) == [entry]
    assert watched.deadlines.next_us() is None


def test_they_come_by_deadline_then_arrival(watched):
    late, soon = watched.add(7), watched.add(5, name="z")
    soon_too, later = watched.add(5, name="a"), watched.add(10)
    assert watched.deadlines.due(9) == [soon, soon_too, late]
    assert watched.deadlines.due(10) == [later]


def test_one_whose_ticket_left_never_comes(watched):
    gone, stays = watched.add(5), watched.add(6)
    watched.drop(gone)
    assert watched.deadlines.next_us() == 6
    assert watched.deadlines.due(9) == [stays]


@pytest.mark.parametrize("deadline_us", [5, 8])
def test_an_old_ticket_of_the_same_id_is_not_mistaken_for_the_new_one(watched, deadline_us):
    old = watched.add(5, name="same")
    watched.drop(old)
    new = watched.add(deadline_us, name="same")
    assert watched.deadlines.due(deadline_us - 1) == []
    assert watched.deadlines.due(deadline_us) == [new]
    watched.drop(new)
    assert watched.deadlines.next_us() is None


def test_memory_stays_bounded_over_10_000_tickets_that_leave(watched):
    watched.add(1)
    for _ in range(10_000):
        watched.drop(watched.add(10**6))
        assert len(watched.deadlines.heap) <= 2 * len(watched.waiting) + 66
    assert watched.deadlines.next_us() == 1


def test_memory_stays_bounded_over_10_000_changes_of_one_ticket(watched):
    for _ in range(10_000):
        watched.add(5, name="same")
        watched.deadlines.forget()
        assert len(watched.deadlines.heap) <= 2 * len(watched.waiting) + 66
    assert len(watched.deadlines.due(5)) == 1


def test_clearing_the_dead_keeps_the_order_of_the_living(watched):
    living = [watched.add(100 - number) for number in range(20)]
    for _ in range(200):
        watched.drop(watched.add(1_000))
    assert watched.deadlines.due(100) == living[::-1]
