# SPDX-License-Identifier: Apache-2.0
"""Limits count in a real Redis as they do in memory: the same answers to the same requests."""

import os

import pytest
from fleet.conftest import linked, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taketurns.core.limits import Admitted, Amounts, Denied, Ledger, LimitRule, Span, Unit
from taketurns.fleet.limit_calls import (
    ADMITTED,
    LEASE_US,
    LOST,
    REFUSED,
    UNDONE,
    LimitCalls,
    Place,
    denied,
    tag_of,
)

SECOND = 1_000_000
START_US = 1_700_000_000 * SECOND
ONE = Amounts()
REQUESTS = LimitRule("rpm", Unit.REQUESTS, Span.SLIDING, 3, 60 * SECOND)
TOKENS = LimitRule("tpm", Unit.TOKENS, Span.SLIDING, 100, 7 * SECOND)
TRIED = LimitRule("tried", Unit.INPUTS, Span.SLIDING, 4, SECOND, shadow=True)
NONE = LimitRule("none", Unit.OUTPUT_TOKENS, Span.SLIDING, 50, 61)
PARALLEL = LimitRule("at-once", Unit.REQUESTS, Span.PARALLEL, 3)
RULES = (REQUESTS, TOKENS, TRIED, NONE, PARALLEL)
PLACE = Place("acme", REQUESTS)

amounts = st.builds(
    Amounts,
    st.integers(0, 5),
    st.integers(0, 60),
    st.integers(0, 60),
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("admit"),
            st.lists(st.sampled_from(RULES), min_size=1, max_size=4, unique=True),
            amounts,
        ),
        st.tuples(st.just("settle"), st.integers(0, 20), st.none() | amounts),
        st.tuples(
            st.just("wait"),
            st.sampled_from([1, 2, 61, 1000, SECOND // 60, SECOND, 8 * SECOND, 60 * SECOND])
            | st.integers(1, 70 * SECOND),
            st.none(),
        ),
    ),
    max_size=40,
)


async def play(url, moves, number):
    """Let memory and Redis answer the same moves."""
    async with linked(url) as link:
        calls = LimitCalls(link, now_us=START_US, lease_us=10**12)
        ledger = Ledger()
        tenant = f"tenant-{number}"
        under_way = []
        for step, (what, first, second) in enumerate(moves):
            if what == "wait":
                calls.now_us += first
            elif what == "admit":
                result = ledger.admit(first, tenant, second, now_us=calls.now_us, month="")
                reply = await calls.admit(tenant, first, second, f"{number}-{step}", {})
                if isinstance(result, Denied):
                    assert reply.code == REFUSED
                    assert denied(reply.counted, second) == result
                    continue
                assert reply.code == ADMITTED
                assert [item.amount for item in reply.counted] == [c.amount for c in result.charges]
                assert [item.used + item.amount for item in reply.counted] == [
                    charge.counter.used for charge in result.charges
                ]
                shadowed = tuple(item.status for item in reply.counted if item.fits == 2)
                assert shadowed == result.shadowed
                # The same part was charged.
                again = await calls.admit(tenant, first, second, f"{number}-{step}", {})
                assert again == reply
                under_way.append((f"{number}-{step}", result, reply.counted))
            elif under_way:
                request_id, admitted, counted = under_way.pop(first % len(under_way))
                admitted.settle(second)
                for _ in range(2):
                    await calls.settle(request_id, counted, second)
        for rule in RULES:
            (status,) = ledger.status([rule], tenant, ONE, now_us=calls.now_us, month="")
            full = Amounts(10**9, 10**9, 10**9)
            reply = await calls.admit(tenant, [rule], full, f"{number}-end-{rule.name}", {})
            assert reply.counted[0].used == status.used


EXAMPLES = 2_000 if os.environ.get("TAKETURNS_PROOF") else 60


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(moves=steps)
def test_memory_and_redis_give_the_same_answers(shared_redis, moves):
    counter[0] += 1
    run(play(shared_redis.url, moves, counter[0]))


counter = [0]


def at(redis, scenario):
    """Run a scenario with calls to an empty server."""

    async def whole():
        async with linked(redis.url) as link:
            await scenario(LimitCalls(link, now_us=START_US), link)

    run(whole())


def test_an_id_is_charged_once_and_settled_once(redis):
    async def scenario(calls, link):
        first = await calls.admit("acme", [REQUESTS], ONE, "a", {})
        assert await calls.admit("acme", [REQUESTS], ONE, "a", {}) == first
        assert (await calls.admit("acme", [REQUESTS], ONE, "b", {})).counted[0].used == 1
        for _ in range(3):
            await calls.settle("a", first.counted, None)
        assert (await calls.admit("acme", [REQUESTS], ONE, "c", {})).counted[0].used == 1

    at(redis, scenario)


@pytest.mark.parametrize("charged", [True, False])
def test_what_is_undone_is_not_charged_whenever_it_comes(redis, charged):
    rules = [REQUESTS, PARALLEL]

    async def scenario(calls, link):
        if charged:
            await calls.admit("acme", rules, ONE, "a", {})
        for _ in range(2):
            await calls.undo("acme", rules, "a")
        assert (await calls.admit("acme", rules, ONE, "a", {})).code == UNDONE
        reply = await calls.admit("acme", rules, ONE, "b", {})
        assert [item.used for item in reply.counted] == [0, 0]

    at(redis, scenario)


def test_nothing_is_charged_where_one_of_several_refuses(redis):
    full = LimitRule("full", Unit.REQUESTS, Span.SLIDING, 0, 60 * SECOND)

    async def scenario(calls, link):
        reply = await calls.admit("acme", [REQUESTS, PARALLEL, full], ONE, "a", {})
        assert reply.code == REFUSED
        assert denied(reply.counted, ONE).never == (full,)
        reply = await calls.admit("acme", [REQUESTS, PARALLEL], ONE, "b", {})
        assert [item.used for item in reply.counted] == [0, 0]

    at(redis, scenario)


def test_a_request_whose_gateway_died_ends_with_its_lease(redis):
    one = LimitRule("one", Unit.REQUESTS, Span.PARALLEL, 2)

    async def scenario(calls, link):
        await calls.admit("acme", [one], ONE, "dead", {})
        await calls.admit("acme", [one], ONE, "alive", {})
        calls.now_us += LEASE_US - 1
        await calls.renew(Place("acme", one), ["alive"])
        assert (await calls.admit("acme", [one], ONE, "a", {})).code == REFUSED
        calls.now_us += 1
        assert (await calls.admit("acme", [one], ONE, "b", {})).code == ADMITTED

    at(redis, scenario)


def test_time_never_goes_back(redis):
    async def scenario(calls, link):
        for name in "abc":
            await calls.admit("acme", [REQUESTS], ONE, name, {})
        calls.now_us -= 10 * SECOND
        reply = await calls.admit("acme", [REQUESTS], ONE, "d", {})
        assert reply.counted[0].wait_us == 60 * SECOND
        calls.now_us += 70 * SECOND
        assert (await calls.admit("acme", [REQUESTS], ONE, "e", {})).code == ADMITTED

    at(redis, scenario)


def test_by_the_servers_own_clock(redis):
    async def scenario(calls, link):
        calls.now_us = -1
        short = LimitRule("short", Unit.REQUESTS, Span.SLIDING, 2, SECOND // 5)
        for name in "ab":
            assert (await calls.admit("acme", [short], ONE, name, {})).code == ADMITTED
        reply = await calls.admit("acme", [short], ONE, "c", {})
        while reply.code == REFUSED:
            assert 0 < reply.counted[0].wait_us <= SECOND // 5
            reply = await calls.admit("acme", [short], ONE, "c", {})

    at(redis, scenario)


def test_a_window_that_was_lost_is_noticed_and_put_back(redis):
    async def scenario(calls, link):
        born = (await calls.admit("acme", [REQUESTS], ONE, "a", {})).counted[0].born
        known = {PLACE: born}
        calls.now_us += SECOND
        assert (await calls.admit("acme", [REQUESTS], ONE, "b", known)).code == ADMITTED
        redis.ask("FLUSHALL")
        calls.now_us += SECOND
        assert (await calls.admit("acme", [REQUESTS], ONE, "c", known)).code == LOST
        own = [(2 * SECOND, 1), (SECOND, 1), (61 * SECOND, 5)]
        again = await calls.restore(PLACE, "r", born, [], own)
        assert again == await calls.restore(PLACE, "r", born, [], own)
        assert again[0] != born
        assert again[1] == 2
        known = {PLACE: again[0]}
        assert (await calls.admit("acme", [REQUESTS], ONE, "d", known)).code == ADMITTED
        reply = await calls.admit("acme", [REQUESTS], ONE, "e", known)
        assert (reply.code, reply.counted[0].wait_us) == (REFUSED, 58 * SECOND)

    at(redis, scenario)


def test_a_window_that_was_kept_gets_what_is_new_only(redis):
    many = LimitRule("many", Unit.TOKENS, Span.SLIDING, 1000, 60 * SECOND)
    place = Place("acme", many)

    async def scenario(calls, link):
        ledger = Ledger()
        born = 0
        for step in range(50):
            calls.now_us += 2 * SECOND
            ledger.admit([many], "acme", Amounts(1, 7, 0), now_us=calls.now_us, month="")
            reply = await calls.admit("acme", [many], Amounts(1, 7, 0), f"a{step}", {place: born})
            assert reply.code == ADMITTED
            born = reply.counted[0].born
        new = [(age * SECOND, 3) for age in (59, 30, 30, 5, 1, 0)]
        _, used = await calls.restore(place, "r", born, new, [(1, 999)])
        (status,) = ledger.status([many], "acme", ONE, now_us=calls.now_us, month="")
        assert used == status.used + 18
        # Parts are in order: each ends in its time.
        for step in range(70):
            calls.now_us += SECOND
            reply = await calls.admit("acme", [many], Amounts(1, 2000, 0), f"b{step}", {})
            (status,) = ledger.status([many], "acme", ONE, now_us=calls.now_us, month="")
            extra = sum(3 for age, _ in new if age // SECOND + step + 1 < 60)
            # What is put in a part goes with it: up to a second later.
            assert status.used <= reply.counted[0].used <= status.used + extra + 6

    at(redis, scenario)


def test_what_can_not_be_read_begins_anew(redis):
    async def scenario(calls, link):
        for number, spoilt in enumerate((b"", b"junk", b"\x93\x01\x02\xa1a", b"\xc0", b"\xff")):
            await link.command("SET", PLACE.key, spoilt)
            reply = await calls.admit("acme", [REQUESTS], ONE, f"a{number}", {})
            assert (reply.code, reply.counted[0].used) == (ADMITTED, 0)

    at(redis, scenario)


def test_every_key_ends_by_itself(redis):
    async def scenario(calls, link):
        calls.now_us = -1
        reply = await calls.admit("acme", [*RULES], ONE, "a", {})
        await calls.admit("acme", [*RULES], ONE, "b", {})
        await calls.settle("a", reply.counted, None)
        await calls.undo("acme", [*RULES], "c")
        await calls.restore(PLACE, "r", 0, [(0, 1)], [])
        await calls.renew(Place("acme", PARALLEL), ["b"])
        keys = await link.command("KEYS", "*")
        assert len(keys) == 5 + 3
        for key in keys:
            assert await link.command("PTTL", key) > 0, key

    at(redis, scenario)


def test_tags():
    total = LimitRule("all", Unit.REQUESTS, Span.SLIDING, 3, 60 * SECOND, total=True)
    assert tag_of(total, "acme") == "*"
    assert tag_of(REQUESTS, "acme") == "acme"
    assert isinstance(Ledger().admit([REQUESTS], "a", ONE, now_us=0, month=""), Admitted)
