# SPDX-License-Identifier: Apache-2.0
"""An engine that can't be reached draws no requests, and comes back by itself."""

import contextlib

import pytest

from taketurns.config.served import ModelConfig
from taketurns.core.own_finder import OwnFinder
from taketurns.errors import (
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from taketurns.gateway.availability import Availability
from taketurns.gateway.breaker import PAUSE_US, PAUSE_US_MAX
from taketurns.gateway.fit import LASTS_US
from taketurns.ports.clock import VirtualClock
from taketurns.testing.http_engine import Fault
from taketurns.units import US_PER_S


def two_engines(chat_model):
    engines = [{"url": f"http://backend-{number}", "slots": 2} for number in range(2)]
    return {"chat": chat_model(engines=engines)}


def test_requests_go_to_the_engine_that_is_there(play, chat_model):
    async def scenario(site):
        await site.backends[0].refuse()
        replies = [await site.chat() for _ in range(10)]
        assert {reply.status for reply in replies} == {200}
        assert len(site.backends[1].requests) == 10
        together = [site.start(site.chat()) for _ in range(40)]
        assert {(await task).status for task in together} == {200}
        await site.backends[0].listen()
        await site.until(lambda: site.pool("chat").turns.scheduler.snapshot().slots > 2)
        while not site.backends[0].requests:
            assert (await site.chat()).status == 200
        assert site.pool("chat").turns.scheduler.snapshot().slots == 4

    play(scenario, backends=2, models=two_engines(chat_model))


def test_texts_go_to_the_engine_that_is_there(play, embed_model):
    async def scenario(site):
        await site.backends[0].refuse()
        texts = [f"text {number}" for number in range(40)]
        reply = await site.embed(texts)
        assert reply.status == 200, reply.body
        (record,) = site.records
        assert (record.outcome, record.items) == ("completed", 40)
        assert record.cost == record.input_tokens

    engines = [{"url": f"http://backend-{number}", "slots": 1} for number in range(2)]
    models = {"embed": embed_model(engines=engines, batch={"items_max": 5})}
    play(scenario, backends=2, models=models)


def test_a_request_that_finds_no_engine_is_refused_unexecuted(play, chat_model):
    async def scenario(site):
        for backend in site.backends:
            await backend.refuse()
        reply = await site.chat()
        assert (reply.status, reply.error["code"]) == (503, "no_capacity")
        assert reply.headers["x-request-executed"] == "no"
        assert reply.headers["Retry-After"]
        assert site.records[0].cost == 0

    play(scenario, backends=2, models=two_engines(chat_model))


def test_requests_wait_a_while_for_an_engine_that_is_away(play, chat_model):
    async def scenario(site):
        await site.backends[0].refuse()
        waits = site.start(site.chat())
        await site.until(lambda: site.scheduler("chat").queued == 1)
        await site.backends[0].listen()
        assert (await waits).status == 200

    engines = [{"url": "http://backend-0", "slots": 2}]
    models = {"chat": chat_model(engines=engines, health={"no_engine_wait": "60s"})}
    play(scenario, backends=1, models=models)


def test_who_waits_is_told_once_no_engine_came_back_in_time(play, chat_model, embed_model):
    async def scenario(site):
        await site.backends[0].refuse()
        asked = [site.start(site.chat()) for _ in range(9)]
        asked += [site.start(site.embed([f"text {n}"])) for n in range(9)]
        replies = [await task for task in asked]
        assert {(reply.status, reply.error["code"]) for reply in replies} == {(503, "no_capacity")}
        assert {reply.headers["x-request-executed"] for reply in replies} == {"no"}

    engines = [{"url": "http://backend-0", "slots": 2}]
    health = {"no_engine_wait": "100ms"}
    models = {
        "chat": chat_model(engines=engines, health=health),
        "embed": embed_model(engines=engines, health=health),
    }
    play(scenario, backends=1, models=models)


def test_an_engine_that_fails_request_after_request_is_left_alone(play, chat_model):
    async def scenario(site):
        site.backends[0].faults.update(dict.fromkeys(range(1, 1000), Fault(status=500)))
        statuses = [(await site.chat()).status for _ in range(60)]
        failed = statuses.count(502)
        assert statuses.count(200) == 60 - failed
        assert failed == len(site.backends[0].requests) < 20
        states = {state.name: state.state for state in site.pool("chat").availability.states()}
        assert states["bad"] in {"broken", "trying"}
        assert states["good"] == "up"

    engines = [
        {"url": f"http://backend-{number}", "slots": 1, "name": name}
        for number, name in enumerate(["bad", "good"])
    ]
    models = {"chat": chat_model(engines=engines, health={"broken_after": 3})}
    play(scenario, backends=2, models=models)


def test_blaming_the_request_never_counts_against_the_engine(play, chat_model):
    async def scenario(site):
        site.backends[0].faults.update(dict.fromkeys(range(1, 31), Fault(status=400)))
        assert {(await site.chat()).status for _ in range(30)} == {400}
        (state,) = site.pool("chat").availability.states()
        assert state.state == "up"
        assert (await site.chat()).status == 200

    engines = [{"url": "http://backend-0", "slots": 1}]
    models = {"chat": chat_model(engines=engines, health={"broken_after": 3})}
    play(scenario, backends=1, models=models)


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_an_engine_that_refuses_every_request_is_out_where_another_answers(
    play, chat_model, caplog, status
):
    async def scenario(site):
        site.backends[0].faults.update(dict.fromkeys(range(1, 1000), Fault(status=status)))
        statuses = [(await site.chat()).status for _ in range(60)]
        assert 3 <= statuses.count(502) == len(site.backends[0].requests) < 20
        bad, good = site.pool("chat").availability.states()
        assert bad.state in {"broken", "trying"}
        assert (bad.misfits, bad.failures["misfit"]) == (statuses.count(502),) * 2
        assert (good.state, good.misfits) == ("up", 0)
        (told,) = [r.message for r in caplog.records if "in a row" in r.message]
        assert f"engine bad answered {status} to 3 requests in a row. Does it" in told
        ready = await site.send("GET", "/readyz", tenant=None)
        assert (ready.status, ready.json["status"]) == (200, "ready")
        assert "an engine refuses request after request" in ready.json["detail"]

    engines = [
        {"url": f"http://backend-{number}", "slots": 1, "name": name}
        for number, name in enumerate(["bad", "good"])
    ]
    models = {"chat": chat_model(engines=engines, health={"broken_after": 3})}
    play(scenario, backends=2, models=models)


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_refusals_never_take_the_last_engine_out(play, chat_model, status):
    async def scenario(site):
        for backend in site.backends:
            backend.faults.update(dict.fromkeys(range(1, 100), Fault(status=status)))
        for _ in range(30):
            assert (await site.chat()).status == 502
            assert "up" in {state.state for state in site.pool("chat").availability.states()}
        for backend in site.backends:
            backend.faults.clear()
        assert (await site.chat()).status == 200

    models = two_engines(chat_model)
    models["chat"]["health"] = {"broken_after": 3, "slow_start": "0s"}
    play(scenario, backends=2, models=models)


class Pool:
    """An availability in virtual time, over a scheduler that only notes what it's told."""

    def __init__(self, engines, **health):
        self.clock = VirtualClock()
        self.slots = {}
        self.lost = []
        self.availability = Availability(
            self.slots.__setitem__,
            self.clock,
            self.model(engines, **health),
            lambda name, least, most, *, start, on_change: OwnFinder(least, most, start=start),
            lambda: self.lost.append(self.clock.now_us()),
        )
        self.availability.configure(self.model(engines, **health))

    @staticmethod
    def model(engines, **health):
        parts = [{"url": f"http://h:{n}", "name": name, **more} for n, (name, more) in engines]
        return ModelConfig(endpoints=["chat"], engines=parts, health=health)

    def call(self, name, error=None):
        with contextlib.suppress(EngineError), self.availability.call(name, stream=False) as call:
            if error is not None:
                raise error
            call.answered()

    def state(self, name="a"):
        return {state.name: state.state for state in self.availability.states()}[name]


GONE = EngineUnavailableError("a", "gone")
BROKEN = EngineBrokenError("a", "broken")


def engines(**by_name):
    return list(enumerate(by_name.items(), start=1))


def test_an_engine_is_tried_with_one_slot_and_gets_all_once_it_has_answered():
    pool = Pool(engines(a={"slots": 4}), slow_start="0s", no_engine_wait="0s")
    assert (pool.slots, pool.availability.any) == ({"a": 4}, True)
    pool.call("a", GONE)
    pool.call("a", GONE)
    assert (pool.slots, pool.availability.any) == ({"a": 0}, False)
    pool.clock.run_until(PAUSE_US - 1)
    assert (pool.slots, pool.state()) == ({"a": 0}, "broken")
    pool.clock.run_until(PAUSE_US)
    assert (pool.slots, pool.availability.any, pool.state()) == ({"a": 1}, True, "trying")
    pool.call("a")
    assert (pool.slots, pool.state()) == ({"a": 4}, "up")


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_success():
    pool = Pool(engines(a={"slots": 4}), slow_start="0s")

    def pause():
        pool.call("a", GONE)
        begin_us = pool.clock.now_us()
        while pool.state() == "broken":
            pool.clock.run_until(pool.clock.now_us() + 1_000)
        return pool.clock.now_us() - begin_us

    pauses = [pause() for _ in range(10)]
    assert pauses[:3] == [PAUSE_US, 2 * PAUSE_US, 4 * PAUSE_US]
    assert pauses[-1] == PAUSE_US_MAX
    pool.call("a")
    pool.call("a")
    assert pause() == PAUSE_US


def test_failures_count_in_a_row():
    pool = Pool(engines(a={"slots": 4}), broken_after=3)
    for error in (BROKEN, BROKEN, None, BROKEN, BROKEN):
        pool.call("a", error)
    assert pool.state() == "up"
    pool.call("a", EngineTimeoutError("a", "slow"))
    assert pool.state() == "broken"


def test_a_client_that_leaves_says_nothing_of_the_engine():
    pool = Pool(engines(a={"slots": 4}), broken_after=1)
    for error in (KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)), pool.availability.call("a", stream=True):
            raise error
    assert pool.state() == "up"
    (state,) = pool.availability.states()
    assert state.in_flight == 0


def test_one_that_is_back_gets_its_slots_little_by_little():
    pool = Pool(engines(a={"slots": 100}), slow_start="10s")
    pool.call("a", GONE)
    pool.clock.run_until(PAUSE_US)
    pool.call("a")
    seen = []
    for _ in range(11):
        seen.append(pool.slots["a"])
        pool.clock.run_until(pool.clock.now_us() + US_PER_S)
    assert seen == [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert pool.state() == "up"


def test_checks_take_an_engine_out_and_bring_it_back_with_hysteresis():
    pool = Pool(engines(a={"slots": 4}), unhealthy_after=3, healthy_after=2, slow_start="0s")
    for well in (False, False, True, False, False):
        pool.availability.checked("a", well=well)
    assert pool.slots == {"a": 4}
    pool.availability.checked("a", well=False)
    assert (pool.slots, pool.state()) == ({"a": 0}, "unhealthy")
    for well in (True, False, True):
        pool.availability.checked("a", well=well)
    assert pool.slots == {"a": 0}
    pool.availability.checked("a", well=True)
    assert (pool.slots, pool.state()) == ({"a": 4}, "up")


def test_a_drained_engine_gets_nothing_until_it_is_used_again():
    pool = Pool(engines(a={"slots": 4}, b={"slots": 2}), slow_start="0s")
    assert pool.availability.drain("a", drained=True)
    assert (pool.slots, pool.state()) == ({"a": 0, "b": 2}, "drained")
    assert pool.availability.usable
    assert pool.availability.drain("a", drained=False)
    assert pool.slots == {"a": 4, "b": 2}
    assert not pool.availability.drain("c", drained=True)


def test_slots_that_change_meanwhile_hold_once_the_engine_is_back():
    pool = Pool(engines(a={"slots": 4}), slow_start="0s")
    pool.call("a", GONE)
    pool.availability.configure(pool.model(engines(a={"slots": 9}), slow_start="0s"))
    assert pool.slots == {"a": 0}
    pool.clock.run_until(PAUSE_US)
    pool.call("a")
    assert pool.slots == {"a": 9}
    pool.availability.configure(pool.model(engines(a={"slots": 0})))
    assert pool.slots == {"a": 0}
    assert not pool.availability.usable


def test_an_engine_that_is_left_out_gets_nothing_more():
    pool = Pool(engines(a={"slots": 4}, b={"slots": 2}))
    pool.availability.configure(pool.model(engines(b={"slots": 3})))
    assert pool.slots == {"a": 0, "b": 3}


def test_hope_is_lost_after_the_wait_and_again_with_each_try_that_fails():
    pool = Pool(engines(a={"slots": 4}), no_engine_wait="1s", slow_start="0s")
    pool.call("a", GONE)
    pool.clock.run_until(PAUSE_US)
    assert pool.availability.any
    pool.call("a", GONE)
    pool.clock.run_until(PAUSE_US * 3)
    pool.call("a", GONE)
    pool.clock.run_until(US_PER_S)
    assert pool.lost == [US_PER_S]
    assert not pool.availability.any
    pool.clock.run_until(PAUSE_US * 7)
    assert pool.availability.any
    pool.call("a", GONE)
    pool.clock.run_until(pool.clock.now_us())
    assert pool.lost == [US_PER_S, PAUSE_US * 7]
    pool.clock.run_until(PAUSE_US * 15)
    pool.call("a")
    pool.call("a", GONE)
    assert pool.availability.any


def test_one_that_refuses_though_nothing_runs_there_is_asked_again_in_a_moment():
    pool = Pool(engines(a={"slots": 4}), no_engine_wait="0s")
    pool.call("a", EngineRefusedError("a", 503, b""))
    assert (pool.slots, pool.state(), pool.availability.any) == ({"a": 0}, "paused", True)
    pool.clock.run_until(PAUSE_US)
    assert (pool.slots, pool.state()) == ({"a": 1}, "up")
    assert pool.lost == []


@pytest.mark.parametrize("status", [429, 503])
def test_an_engine_that_says_it_is_full_gets_no_more_than_it_holds_and_recovers(status):
    pool = Pool(engines(a={"slots": 8}))
    with contextlib.ExitStack() as held:
        for _ in range(5):
            held.enter_context(pool.availability.call("a", stream=False))
        pool.call("a", EngineRefusedError("a", status, b""))
        assert (pool.slots, pool.state()) == ({"a": 5}, "up")
        seen = []
        for second in range(1, 5):
            pool.clock.run_until(second * US_PER_S)
            seen.append(pool.slots["a"])
        assert seen == [6, 7, 8, 8]


def test_found_slots_begin_anew_when_the_engine_is_back():
    pool = Pool(engines(a={"slots": "auto", "slots_min": 2, "kind": "vllm"}))
    assert pool.slots == {"a": 8}
    pool.availability.gauged("a", 3)
    for _ in range(3):
        pool.availability.checked("a", well=False)
    assert pool.slots == {"a": 0}
    for _ in range(2):
        pool.availability.checked("a", well=True)
    assert pool.slots == {"a": 2}


def test_a_closed_pool_tries_nothing():
    pool = Pool(engines(a={"slots": 4}), no_engine_wait="1s")
    pool.call("a", GONE)
    pool.availability.close()
    pool.clock.run()
    assert pool.slots == {"a": 0}
    assert pool.lost == []


def test_an_engine_that_was_well_is_out_only_once_it_has_long_refused_everything():
    pool = Pool(engines(a={"slots": 4}, b={"slots": 4}), slow_start="0s")
    unknown = EngineRefusedError("a", 404, b"")
    for name in ("a", "b"):
        pool.call(name)

    def refuse(error=unknown):
        for _ in range(20):
            pool.call("a", error)

    refuse()
    assert pool.state() == "up"
    pool.clock.run_until(LASTS_US - 1)
    refuse(EngineRefusedError("a", 400, b""))
    refuse()
    pool.clock.run_until(2 * LASTS_US - 2)
    refuse()
    assert pool.state() == "up"
    pool.clock.run_until(2 * LASTS_US - 1)
    pool.call("a", unknown)
    assert (pool.state(), pool.slots) == ("broken", {"a": 0, "b": 4})
    pool.clock.run_until(2 * LASTS_US + PAUSE_US)
    assert pool.state() == "trying"
    pool.call("a", unknown)
    assert pool.state() == "broken"
    pool.clock.run_until(3 * LASTS_US)
    pool.call("a")
    assert (pool.state(), pool.slots) == ("up", {"a": 4, "b": 4})
