# SPDX-License-Identifier: Apache-2.0
"""Windows are put together: what several gateways see is what one would have seen."""

from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.engine_load import EngineLoad
from taketurns.core.signs import FIRST_BYTES_MAX, NOTHING, Signs, beside

NUMBERS = st.integers(0, 10**9)
WINDOWS = st.builds(
    Signs,
    length_us=st.integers(0, 4_000_000),
    work=NUMBERS,
    slot_us=NUMBERS,
    seen=NUMBERS,
    pending_us=NUMBERS,
    begun=NUMBERS,
    first_bytes=st.lists(NUMBERS, max_size=FIRST_BYTES_MAX).map(tuple),
    gauge=st.none() | st.integers(0, 50),
    gauge_age_us=NUMBERS,
    in_flight=st.integers(0, 100),
)
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["start", "first", "end", "work"]),
        st.integers(1, 40_000),
    ),
    max_size=60,
)


class Watched:
    """A load, and the streams of one gateway."""

    def __init__(self):
        self.load = EngineLoad()
        self.pending, self.begun = [], []

    def happens(self, what, now_us):
        load = self.load
        if what == "start":
            load.started(now_us, stream=True)
            self.pending.append(now_us)
        elif what == "first" and self.pending:
            started_us = self.pending.pop(0)
            load.first_byte(now_us - started_us, now_us)
            self.begun.append(started_us)
        elif what == "end" and self.begun:
            self.begun.pop(0)
            load.ended(now_us, pending=False)
        elif what == "work":
            load.produced(7)


def plain(signs):
    return signs._replace(first_bytes=tuple(sorted(signs.first_bytes)))


@given(EVENTS)
def test_what_gateways_see_beside_each_other_is_what_one_sees(events):
    gateways = [Watched() for _ in range(3)]
    # The one that sees all is told what each of them saw.
    whole = EngineLoad()
    now_us = 0
    for at, what, passes_us in events:
        now_us += passes_us
        gateway = gateways[at]
        before = (len(gateway.pending), len(gateway.begun), gateway.pending[:1])
        gateway.happens(what, now_us)
        after = (len(gateway.pending), len(gateway.begun))
        if what == "start":
            whole.started(now_us, stream=True)
        elif what == "first" and after != before[:2]:
            whole.first_byte(now_us - before[2][0], now_us)
        elif what == "end" and after != before[:2]:
            whole.ended(now_us, pending=False)
        elif what == "work":
            whole.produced(7)
    seen = beside([gateway.load.cut(now_us) for gateway in gateways])
    assert plain(seen) == plain(whole.cut(now_us))


@given(st.lists(WINDOWS, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_gateways_does_not_matter(windows, draw):
    shuffled = list(windows)
    draw.shuffle(shuffled)
    assert plain(beside(shuffled)) == plain(beside(windows))


@given(WINDOWS.filter(lambda window: window.length_us and window.gauge is not None))
def test_one_gateway_sees_what_it_sees(window):
    assert beside([window]) == window
    assert beside([window, NOTHING]) == window


def test_windows_of_different_lengths_are_added_up_per_time():
    # Two gateways with ten requests each; one of them was cut later.
    one = Signs(1_000_000, 500, 10_000_000, 20, 40_000, 2, in_flight=10)
    other = Signs(2_000_000, 1_000, 20_000_000, 40, 80_000, 4, in_flight=10)
    assert beside([one, other]) == Signs(2_000_000, 2_000, 40_000_000, 60, 160_000, 8, in_flight=20)


def test_the_latest_reading_of_a_gauge_counts_not_the_sum():
    old, new = Signs(5, gauge=9, gauge_age_us=700), Signs(5, gauge=2, gauge_age_us=30)
    assert beside([old, new, Signs(5)])[-3:] == (2, 30, 0)
    assert old.then(Signs(5))[-3:] == (9, 705, 0)
    assert old.then(new)[-3:] == (2, 30, 0)


def test_of_many_first_bytes_an_even_choice_is_kept():
    quick, slow = (10,) * FIRST_BYTES_MAX, (90,) * FIRST_BYTES_MAX
    kept = beside(
        [Signs(1, first_bytes=quick), Signs(1, first_bytes=slow), Signs(1, first_bytes=slow)]
    )
    assert len(kept.first_bytes) == FIRST_BYTES_MAX
    assert kept.first_bytes.count(10) in {FIRST_BYTES_MAX // 3, FIRST_BYTES_MAX // 3 + 1}
    assert Signs(1, first_bytes=quick).then(Signs(1, first_bytes=slow)).first_bytes == quick


@given(WINDOWS, WINDOWS)
def test_windows_that_follow_each_other_are_one(one, other):
    both = one.then(other)
    assert (both.length_us, both.work) == (one.length_us + other.length_us, one.work + other.work)
    assert both.in_flight == other.in_flight
    assert NOTHING.then(one) == one
