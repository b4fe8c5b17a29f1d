# SPDX-License-Identifier: Apache-2.0
"""Those who are refused are told to come back when there will be room, in 1 to 60 seconds."""

from taketurns.gateway.pools import Pace


def busy(us_per_ticket, count=200, tickets=1):
    pace = Pace()
    for number in range(count):
        pace.finished(tickets, number * us_per_ticket * tickets, backlog=True)
    return pace


def test_without_a_measure_it_is_one_second():
    assert Pace().retry_after_s(100_000) == 1


def test_a_tenth_of_the_queue_is_waited_for():
    assert busy(1_000_000).retry_after_s(100) == 10
    assert busy(100_000).retry_after_s(100) == 1
    assert busy(100_000).retry_after_s(110) == 2
    assert busy(100_000, tickets=4).retry_after_s(500) == 5


def test_it_is_one_to_sixty_seconds():
    assert busy(1).retry_after_s(1) == 1
    assert busy(1_000_000).retry_after_s(0) == 1
    assert busy(10_000_000).retry_after_s(100_000) == 60


def test_time_without_a_backlog_tells_nothing():
    pace = busy(1_000_000)
    pace.finished(1, 10**12, backlog=False)
    pace.finished(1, 10**13, backlog=True)
    assert pace.retry_after_s(100) in {10, 60}
    idle = Pace()
    for number in range(100):
        idle.finished(1, number * 10**9, backlog=False)
    assert idle.retry_after_s(100) == 1
