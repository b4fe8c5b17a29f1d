# SPDX-License-Identifier: Apache-2.0
"""The virtual clock calls back in order, once, and stands where it is told to."""

import asyncio

from taketurns.ports.clock import VirtualClock
from taketurns.system import SystemClock


def test_it_starts_where_it_is_told_to_and_stands_still():
    assert VirtualClock().now_us() == 0
    clock = VirtualClock(start_us=7)
    assert clock.now_us() == clock.now_us() == 7


def test_callbacks_run_at_their_times_in_order_and_equal_times_as_asked_for():
    clock = VirtualClock()
    ran = []
    for name, when_us in (("c", 30), ("a", 10), ("b1", 20), ("b2", 20), ("b3", 20)):
        clock.call_at(when_us, lambda name=name: ran.append((name, clock.now_us())))
    clock.run()
    assert ran == [("a", 10), ("b1", 20), ("b2", 20), ("b3", 20), ("c", 30)]


def test_run_until_runs_what_is_due_up_to_its_end_inclusive_and_stands_there():
    clock = VirtualClock()
    ran = []
    for when_us in (10, 20, 21):
        clock.call_at(when_us, lambda when_us=when_us: ran.append(when_us))
    clock.run_until(20)
    assert (ran, clock.now_us()) == ([10, 20], 20)
    clock.run_until(20)
    assert ran == [10, 20]
    clock.run_until(15)
    assert clock.now_us() == 20
    clock.run_until(100)
    assert (ran, clock.now_us()) == ([10, 20, 21], 100)


def test_a_callback_is_not_run_inside_the_call_that_asks_for_it():
    clock = VirtualClock(start_us=50)
    ran = []
    clock.call_at(50, lambda: ran.append("due"))
    clock.call_at(0, lambda: ran.append("past"))
    assert ran == []
    clock.run()
    assert ran == ["past", "due"]


def test_time_does_not_go_back_for_a_callback_of_the_past():
    clock = VirtualClock(start_us=50)
    seen = []
    clock.call_at(10, lambda: seen.append(clock.now_us()))
    clock.run_until(60)
    assert seen == [50]


def test_a_callback_that_asks_for_another_gets_it_in_the_same_run():
    clock = VirtualClock()
    ran = []

    def again():
        ran.append(clock.now_us())
        if len(ran) < 3:
            clock.call_at(clock.now_us() + 10, again)

    clock.call_at(0, again)
    clock.run_until(15)
    assert ran == [0, 10]
    clock.run()
    assert ran == [0, 10, 20]


def test_a_cancelled_timer_is_never_called_and_moves_no_time():
    clock = VirtualClock()
    ran = []
    timer = clock.call_at(10, lambda: ran.append("no"))
    timer.cancel()
    timer.cancel()
    clock.run()
    assert (ran, clock.now_us()) == ([], 0)


def test_cancelling_after_the_call_has_no_effect():
    clock = VirtualClock()
    ran = []
    timer = clock.call_at(10, lambda: ran.append("yes"))
    clock.run()
    timer.cancel()
    assert ran == ["yes"]


def test_a_callback_may_cancel_its_own_timer_and_a_later_one():
    clock = VirtualClock()
    ran = []
    later = clock.call_at(20, lambda: ran.append("later"))
    own = clock.call_at(10, lambda: (ran.append("own"), own.cancel(), later.cancel()))
    clock.run()
    assert ran == ["own"]


def test_the_system_clock_is_the_loops_and_never_calls_early():
    async def scenario():
        loop = asyncio.get_running_loop()
        clock = SystemClock(loop)
        assert abs(clock.now_us() - loop.time() * 1e6) < 1e6
        called = loop.create_future()
        when_us = clock.now_us() + 2_000
        clock.call_at(when_us, lambda: called.set_result(clock.now_us()))
        dropped = clock.call_at(when_us, lambda: called.set_exception(AssertionError()))
        dropped.cancel()
        assert await called >= when_us

    asyncio.run(scenario())
