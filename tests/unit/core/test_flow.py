# SPDX-License-Identifier: Apache-2.0
"""A flow begins with nothing, and knows when it may have no more tickets in flight."""

import pytest

from taketurns.core.flow import OUT, TURN, Flow
from taketurns.core.model import Ticket
from taketurns.core.queue import entry_of


def test_a_fresh_flow_is_out_of_the_ring_with_a_turn_to_have_in_the_round_that_is():
    flow = Flow("acme", 3, None, 7)
    assert (flow.balance, flow.round, flow.place, flow.in_flight) == (0, 6, OUT, 0)
    assert flow.queue.count == 0


@pytest.mark.parametrize(
    ("cap", "in_flight", "capped"),
    [(None, 0, False), (None, 9_999, False), (1, 0, False), (1, 1, True), (2, 3, True)],
)
def test_a_flow_is_capped_when_it_has_as_many_in_flight_as_its_cap_or_more(cap, in_flight, capped):
    flow = Flow("acme", 1, cap, 0)
    flow.in_flight = in_flight
    assert flow.capped is capped


def test_a_copy_has_balance_and_tickets_but_no_cap_and_no_entry():
    flow = Flow("acme", 3, 1, 7)
    flow.balance, flow.place, flow.turn_left, flow.largest, flow.in_flight = -4, TURN, 2, 9, 1
    flow.queue.push(entry_of(Ticket("t", "acme", "standard"), 1))
    twin = flow.copy()
    assert (twin.tenant, twin.weight, twin.balance, twin.round) == ("acme", 3, -4, 6)
    assert (twin.place, twin.turn_left, twin.largest) == (TURN, 2, 9)
    assert (twin.cap, twin.in_flight, twin.entry) == (None, 1, None)
    twin.queue.pop()
    assert flow.queue.count == 1


def test_its_affinity_is_that_of_the_ticket_that_goes_next():
    flow = Flow("a", 1, None, 0)
    assert flow.affinity == 0
    flow.queue.push(entry_of(Ticket("late", "a", "t", affinity=7, priority=9), 1))
    flow.queue.push(entry_of(Ticket("first", "a", "t", affinity=5, priority=1), 2))
    assert flow.affinity == 5
