# SPDX-License-Identifier: Apache-2.0
"""The bodies under way stay below each bound, and what is over is given back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.gateway.held_bytes import HeldBytes, TooManyBytesError


def hold(held, size, *, tenant="acme", model="chat", tenant_max=100, model_max=150):
    return held.hold(size, tenant=tenant, model=model, tenant_max=tenant_max, model_max=model_max)


def refused(held, size, **more):
    with pytest.raises(TooManyBytesError) as caught, hold(held, size, **more):
        pass
    return caught.value.own, caught.value.limit


def test_a_tenants_own_bound_is_told_from_the_models_and_that_of_all():
    held = HeldBytes(200)
    with hold(held, 60):
        assert refused(held, 41) == (True, 100)
        with hold(held, 40, tenant="acme"), hold(held, 50, tenant="globex"):
            assert refused(held, 1, tenant="globex") == (False, 150)
            with hold(held, 50, tenant="globex", model="embed"):
                assert held.total == 200
                assert refused(held, 1, tenant="pico", model="embed") == (False, 200)


def test_a_bound_may_be_met_exactly():
    held = HeldBytes(1000)
    with hold(held, 60), hold(held, 40):
        assert held.total == 100


def test_models_have_bounds_of_their_own_for_the_same_tenant():
    held = HeldBytes(1000)
    with hold(held, 100), hold(held, 100, model="embed"):
        assert held.total == 200


def test_a_single_body_is_let_in_whatever_its_size():
    held = HeldBytes(10)
    with hold(held, 5000):
        assert refused(held, 1) == (True, 100)
        assert refused(held, 1, tenant="globex") == (False, 150)
        assert refused(held, 1, tenant="globex", model="embed") == (False, 10)
    with hold(held, 5000):
        assert held.total == 5000


def test_what_is_held_is_given_back_whatever_ends_the_block():
    held = HeldBytes(100)
    for error in (KeyError, GeneratorExit, KeyboardInterrupt):
        with contextlib.suppress(error), hold(held, 90):
            raise error
        assert held.total == 0
    with hold(held, 100):
        assert held.total == 100


def test_a_refusal_leaves_nothing_behind():
    held = HeldBytes(100)
    with hold(held, 50):
        for _ in range(3):
            refused(held, 60)
        assert held.total == 50
        with hold(held, 50):
            pass


def test_an_empty_body_holds_nothing():
    held = HeldBytes(100)
    with hold(held, 0), hold(held, 100):
        assert held.total == 100


TENANTS = ("a", "b", "c")
STEPS = st.tuples(st.sampled_from(TENANTS), st.sampled_from(("m", "n")), st.integers(0, 60))


@given(st.lists(st.one_of(STEPS, st.integers(0, 5)), max_size=30))
def test_bounds_hold_and_tenants_are_forgotten_in_any_order(steps):
    held = HeldBytes(120)
    under_way = []
    for step in steps:
        if isinstance(step, int):
            if under_way:
                under_way.pop(step % len(under_way))[-1].close()
            continue
        tenant, model, size = step
        mine = [s for t, m, s, _ in under_way if (t, m) == (tenant, model)]
        its = [s for _, m, s, _ in under_way if m == model]
        every = [s for _, _, s, _ in under_way]
        fits = all(
            not sum(sizes) or sum(sizes) + size <= most
            for sizes, most in ((mine, 70), (its, 100), (every, 120))
        )
        stack = contextlib.ExitStack()
        bounds = {"tenant_max": 70, "model_max": 100}
        if fits:
            stack.enter_context(hold(held, size, tenant=tenant, model=model, **bounds))
            under_way.append((tenant, model, size, stack))
        else:
            with pytest.raises(TooManyBytesError):
                hold(held, size, tenant=tenant, model=model, **bounds)
        assert held.total == sum(s for _, _, s, _ in under_way)
    while under_way:
        under_way.pop()[-1].close()
    assert held.total == 0
    assert not held._by_tenant
    assert not any(held._by_model.values())
