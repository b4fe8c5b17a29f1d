# SPDX-License-Identifier: Apache-2.0
"""One timer looks at all answers under way, and at none when there are none."""

from taketurns.gateway.relay import SendWatch
from taketurns.gateway.watch import LOOK_US_MAX, RelayRules, Watch
from taketurns.ports.clock import VirtualClock
from taketurns.units import US_PER_S


class Answer:
    """Counts the looks at it."""

    def __init__(self, watch=None):
        self.looks = []
        self._watch = watch

    def look(self, passed_us, rules):
        self.looks.append(passed_us)
        if self._watch is not None:
            self._watch.remove(self)


def test_every_answer_is_looked_at_once_a_period_until_it_is_removed():
    clock = VirtualClock()
    watch = Watch(clock, RelayRules())
    first, second, once = Answer(), Answer(), Answer(watch)
    for answer in (first, second, once):
        watch.add(answer)
    clock.run_until(3 * LOOK_US_MAX)
    watch.remove(first)
    watch.remove(first)
    clock.run_until(5 * LOOK_US_MAX)
    assert [len(answer.looks) for answer in (first, second, once)] == [3, 5, 1]
    assert len(watch) == 1
    watch.remove(second)
    # Nothing is left to look at: the timer runs out.
    clock.run()
    watch.add(first)
    clock.run_until(clock.now_us() + LOOK_US_MAX)
    assert len(first.looks) == 4


def test_it_looks_often_enough_for_the_shortest_time_that_it_looks_for():
    for rules, period_us in [
        (RelayRules(), US_PER_S),
        (RelayRules(ping_us=400_000), 100_000),
        (RelayRules(ping_us=None, unread_us=2 * US_PER_S), 500_000),
        (RelayRules(ping_us=1), 1),
    ]:
        clock = VirtualClock()
        watch = Watch(clock, rules)
        answer = Answer()
        watch.add(answer)
        clock.run_until(period_us)
        assert answer.looks == [period_us]


class Peer:
    """A client whose unread bytes are given."""

    def __init__(self, *unread):
        self._unread = iter(unread)
        self.was_cut = False

    @property
    def unread(self):
        return next(self._unread)

    def cut(self):
        self.was_cut = True


def test_a_client_that_reads_a_little_is_not_cut_off():
    rules = RelayRules(unread_us=3 * US_PER_S)
    for unread, cut in [
        ((9, 9, 9, 8, 8, 8, 7), False),
        ((9, 9, 9, 9, 8), True),
        ((0, 0, 0, 0), True),
    ]:
        peer = Peer(*unread)
        watched = SendWatch(peer)
        for _ in unread:
            watched.look(US_PER_S, rules)
        assert peer.was_cut is cut
