# SPDX-License-Identifier: Apache-2.0
"""A grant goes to the engine with the least share of its slots in use, and to none without one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.slots import OVERLOAD_PERCENT, Slots


@pytest.fixture
def slots():
    return Slots()


def take(slots, times=1):
    return [slots.take() for _ in range(times)]


def test_a_pool_begins_without_engines(slots):
    assert (slots.total, slots.free, slots.engines) == (0, 0, ())
    assert not slots.available


def test_slots_are_counted_over_all_engines(slots):
    slots.set_engine("a", 2)
    slots.set_engine("b", 3)
    take(slots, 2)
    assert (slots.total, slots.free) == (5, 3)
    assert [engine.name for engine in slots.engines] == ["a", "b"]


def test_the_engine_with_the_least_share_in_use_takes_the_next_and_the_older_where_equal(slots):
    slots.set_engine("small", 1)
    slots.set_engine("large", 4)
    names = [engine.name for engine in take(slots, 5)]
    assert names == ["small", "large", "large", "large", "large"]


def test_equal_engines_take_turns(slots):
    slots.set_engine("a", 2)
    slots.set_engine("b", 2)
    assert [engine.name for engine in take(slots, 4)] == ["a", "b", "a", "b"]
    assert not slots.available


def test_a_slot_that_is_released_can_be_taken_again(slots):
    slots.set_engine("a", 1)
    (engine,) = take(slots)
    assert not slots.available
    slots.release(engine)
    assert take(slots) == [engine]


def test_negative_slots_are_an_error(slots):
    with pytest.raises(ValueError, match="slots must be at least 0, got -1"):
        slots.set_engine("a", -1)
    assert slots.engines == ()


def test_an_engine_of_no_slots_is_there_and_starts_nothing(slots):
    slots.set_engine("a", 0)
    assert [engine.name for engine in slots.engines] == ["a"]
    assert not slots.available


def test_fewer_slots_than_are_in_use_free_none_until_enough_have_finished(slots):
    slots.set_engine("a", 3)
    (engine, *_) = take(slots, 3)
    slots.set_engine("a", 1)
    assert (slots.total, slots.free) == (1, 0)
    slots.release(engine)
    slots.release(engine)
    assert not slots.available
    assert engine.in_flight == 1
    slots.release(engine)
    assert slots.free == 1


def test_an_engine_cut_down_to_what_it_runs_takes_no_more(slots):
    slots.set_engine("a", 3)
    take(slots)
    slots.set_engine("a", 1)
    assert not slots.available
    assert slots.free == 0


def test_more_slots_are_free_at_once(slots):
    slots.set_engine("a", 1)
    take(slots)
    slots.set_engine("a", 3)
    assert (slots.total, slots.free) == (3, 2)


def test_a_removed_engine_takes_its_slots_along(slots):
    slots.set_engine("a", 2)
    slots.set_engine("b", 1)
    slots.remove_engine("a")
    slots.remove_engine("never there")
    assert (slots.total, slots.free) == (1, 1)
    assert [engine.name for engine in slots.engines] == ["b"]


def test_work_on_a_removed_engine_frees_nothing_on_a_new_one_of_the_same_name(slots):
    slots.set_engine("a", 2)
    old, _ = take(slots, 2)
    slots.remove_engine("a")
    slots.set_engine("a", 1)
    (new,) = take(slots)
    assert new is not old
    slots.release(old)
    slots.release(old)
    assert not slots.available
    assert (slots.total, slots.free) == (1, 0)
    slots.release(new)
    assert slots.available == {"a": new}


AFFINITIES = range(1, 400)


def place_of(slots, affinity):
    engine = slots.take(affinity)
    slots.release(engine)
    return engine.name


def pool_of(*names, size=50):
    slots = Slots()
    for name in names:
        slots.set_engine(name, size)
    return slots


def test_the_same_affinity_goes_to_the_same_engine_and_all_engines_get_some():
    slots = pool_of("a", "b", "c")
    places = {affinity: place_of(slots, affinity) for affinity in AFFINITIES}
    assert places == {affinity: place_of(slots, affinity) for affinity in AFFINITIES}
    shares = Counter(places.values())
    assert set(shares) == {"a", "b", "c"}
    assert min(shares.values()) > len(AFFINITIES) / 4


def test_an_engine_that_goes_moves_no_others():
    slots = pool_of("a", "b", "c")
    before = {affinity: place_of(slots, affinity) for affinity in AFFINITIES}
    slots.set_engine("b", 0)
    for affinity, place in before.items():
        if place != "b":
            assert place_of(slots, affinity) == place
    slots.set_engine("b", 50)
    assert before == {affinity: place_of(slots, affinity) for affinity in AFFINITIES}


def test_where_it_goes_does_not_depend_on_the_order_of_the_engines():
    one, other = pool_of("a", "b", "c"), pool_of("c", "a", "b")
    for affinity in AFFINITIES:
        assert place_of(one, affinity) == place_of(other, affinity)


def test_an_affinity_overloads_no_engine():
    slots = pool_of("a", "b", "c", "d")
    for number in range(1, 101):
        slots.take(17)
        loads = [engine.in_flight for engine in slots.engines]
        assert max(loads) <= number / 4 * OVERLOAD_PERCENT / 100 + 1
    assert sum(loads) == 100


def test_an_affinity_takes_what_slot_there_is():
    slots = pool_of("a", "b", size=1)
    assert {slots.take(5).name, slots.take(5).name} == {"a", "b"}
    assert not slots.available


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["take", "release", "resize", "remove"]), st.integers(0, 5)),
        max_size=40,
    )
)
def test_free_slots_are_those_of_engines_that_have_some(events):
    slots, running = Slots(), []
    for what, number in events:
        if what == "take" and slots.available:
            running.append(slots.take())
        elif what == "release" and running:
            slots.release(running.pop(number % len(running)))
        elif what == "resize":
            slots.set_engine(f"engine-{number % 2}", number)
        elif what == "remove":
            slots.remove_engine(f"engine-{number % 2}")
        assert slots.free == sum(
            engine.slots - engine.in_flight for engine in slots.available.values()
        )
