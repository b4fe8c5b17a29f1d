# SPDX-License-Identifier: Apache-2.0
"""How much the others get before a flow's turn: by its backlog, its balance, its place."""

import pytest

from taketurns.core.flow import NEW, OUT, TURN, WAITING, Flow
from taketurns.core.ring import Ring
from taketurns.core.turn import level_before, would_be_new


@pytest.fixture
def ring():
    ring = Ring(10, 64)
    ring.round = 100
    return ring


def flow(place, balance, since, weight=1):
    found = Flow("a", weight, None, 0)
    found.place, found.balance, found.round = place, balance, since
    return found


@pytest.mark.parametrize(("before", "level"), [(0, 10), (9, 10), (10, 10), (20, 20), (95, 90)])
def test_a_stranger_needs_as_many_rounds_as_pay_for_what_goes_before(ring, before, level):
    assert level_before(ring, None, 1, before) == level
    assert level_before(ring, None, 5, 5 * before) == level
    assert level_before(ring, flow(OUT, 0, 99), 1, before) == level


def test_what_is_paid_for_in_a_turn_lets_nobody_go_before(ring):
    in_turn = flow(TURN, 25, 100)
    assert level_before(ring, in_turn, 1, 24) == 0
    # 25 are spent then, and the next round pays for five more.
    assert level_before(ring, in_turn, 1, 25) == 10
    assert level_before(ring, in_turn, 1, 35) == 20


def test_a_debt_is_paid_first_and_rounds_that_passed_have_repaid_of_it(ring):
    assert level_before(ring, flow(WAITING, -30, 100), 1, 0) == 40
    assert level_before(ring, flow(WAITING, -30, 98), 1, 0) == 20
    assert level_before(ring, flow(OUT, -30, 90), 1, 0) == 10
    assert level_before(ring, flow(OUT, -30, 97), 1, 0) == 10


def test_only_a_waiting_flow_has_credit_for_rounds_that_passed(ring):
    assert level_before(ring, flow(WAITING, 0, 95), 1, 35) == 10
    assert level_before(ring, flow(NEW, 0, 95), 1, 35) == 30


def test_who_has_nothing_queued_and_no_debt_would_be_new(ring):
    assert would_be_new(ring, None)
    assert would_be_new(ring, flow(OUT, 0, 100))
    assert would_be_new(ring, flow(OUT, -90, 90))
    assert not would_be_new(ring, flow(OUT, -91, 90))
    assert not would_be_new(ring, flow(WAITING, 0, 99))
