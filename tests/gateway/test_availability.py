# SPDX-License-Identifier: Apache-2.0
"""An engine that can't be reached draws no requests, and comes back by itself."""

from taketurns.gateway.availability import PAUSE_US, PAUSE_US_MAX, Availability
from taketurns.ports.clock import VirtualClock


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


def pool():
    clock, slots = VirtualClock(), {}
    availability = Availability(slots.__setitem__, clock)
    availability.set_slots("a", 4)
    return clock, slots, availability


def test_an_engine_is_tried_with_one_slot_and_gets_all_once_it_has_answered():
    clock, slots, availability = pool()
    assert (slots, availability.any) == ({"a": 4}, True)
    availability.unreachable("a")
    availability.unreachable("a")
    assert (slots, availability.any) == ({"a": 0}, False)
    clock.run_until(PAUSE_US - 1)
    assert slots == {"a": 0}
    clock.run_until(PAUSE_US)
    assert (slots, availability.any) == ({"a": 1}, True)
    availability.reached("a")
    assert slots == {"a": 4}


def test_pauses_double_up_to_a_bound():
    clock, slots, availability = pool()
    pauses = []
    for _ in range(10):
        availability.unreachable("a")
        begin = clock.now_us()
        clock.run()
        pauses.append(clock.now_us() - begin)
        assert slots == {"a": 1}
    assert pauses[:3] == [PAUSE_US, 2 * PAUSE_US, 4 * PAUSE_US]
    assert pauses[-1] == PAUSE_US_MAX


def test_slots_that_change_meanwhile_hold_once_the_engine_is_back():
    clock, slots, availability = pool()
    availability.unreachable("a")
    availability.set_slots("a", 9)
    assert slots == {"a": 0}
    availability.reached("a")
    assert slots == {"a": 0}
    clock.run()
    availability.reached("a")
    assert slots == {"a": 9}


def test_a_closed_pool_tries_nothing():
    clock, slots, availability = pool()
    availability.unreachable("a")
    availability.close()
    clock.run()
    assert slots == {"a": 0}
