# SPDX-License-Identifier: Apache-2.0
"""Limits hold on the wire: never over, settled to what was used, told when to come back."""

import asyncio
import contextlib
import json
import logging
import re
import sqlite3

import openai
import pytest
import yaml

from taketurns.cli.explain import explain
from taketurns.config.model import Config
from taketurns.core.limits import Admitted, Ledger, Plan
from taketurns.errors import (
    EngineBrokenError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from taketurns.testing.engine import ScriptedAnswer, chat_answer, chat_events
from taketurns.units import US_PER_MS, US_PER_S

TOKEN = "admin-token-of-these-tests"
CHAT = "/v1/chat/completions"
EVENTS = {"content-type": "text/event-stream"}
STREAM = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
CLIENTS = 500


def rule(unit, per=None, most=1, **more):
    return {"unit": unit, "max": most, **({"per": per} if per else {}), **more}


def used(site, *, tenant="acme", endpoint="chat", model="chat"):
    """Return what counts against each limit, by its name."""
    admission = site.gateway.admission
    tier = site.gateway.config.tenants[tenant].tier
    rules = admission.rules(tenant=tenant, tier=tier, endpoint=endpoint, model=model)
    return {status.rule.name: status.used for status in admission.statuses(rules, tenant)}


async def calm(site):
    """Wait until every request that came has ended."""
    await site.until(lambda: not site.gateway.active)


async def wait_ms(site, milliseconds):
    """Wait so long by the gateway's own clock."""
    clock = site.gateway._clock
    due_us = clock.now_us() + milliseconds * US_PER_MS
    await site.until(lambda: clock.now_us() >= due_us)


def script(site, *answers):
    site.engines["gpu-0"]._script.extend(answers)


def refusal(reply, status=429, code="rate_limit_exceeded"):
    """Check a refusal and return how many milliseconds it says to wait."""
    assert (reply.status, reply.error["code"]) == (status, code)
    assert reply.headers["x-request-executed"] == "no"
    milliseconds = int(reply.headers["retry-after-ms"])
    assert int(reply.headers["Retry-After"]) == max(1, -(-milliseconds // 1000))
    return milliseconds


def reload(site, **sections):
    wanted = Config.model_validate(
        {**site.gateway.config.model_dump(exclude_unset=True), **sections}
    )
    site.gateway.reload(lambda: wanted)
    return site.gateway.config is wanted


# How many get in


@pytest.mark.parametrize("endpoint", ["chat", "embeddings"])
def test_of_many_clients_at_once_exactly_as_many_get_in_as_the_limit_allows(play, endpoint):
    async def scenario(site):
        if endpoint == "chat":
            ask, model = site.chat, "chat"
        else:
            ask, model = site.embed, "embed"
        replies = await asyncio.gather(*(ask(f"text {n}") for n in range(CLIENTS)))
        refused = [reply for reply in replies if reply.status != 200]
        assert len(replies) - len(refused) == 37
        for reply in refused:
            refusal(reply)
        await calm(site)
        assert used(site, endpoint=endpoint, model=model) == {"hourly": 37}
        outcomes = [record.outcome for record in site.records]
        assert (outcomes.count("completed"), outcomes.count("refused")) == (37, CLIENTS - 37)

    play(scenario, limits=[rule("requests", "hour", 37, name="hourly")])


class NotingLedger(Ledger):
    """Notes when something was admitted."""

    __slots__ = ("admitted_us",)

    def __init__(self):
        super().__init__()
        self.admitted_us = []

    def plan(self, rules, tenant):
        found = super().plan(rules, tenant)
        return NotingPlan(found.rules, found.counters, self.admitted_us)


class NotingPlan(Plan):
    """Notes when something was admitted."""

    __slots__ = ("admitted_us",)

    def __init__(self, rules, counters, admitted_us):
        super().__init__(rules, counters)
        self.admitted_us = admitted_us

    def admit(self, amounts, *, now_us, month):
        result = super().admit(amounts, now_us=now_us, month=month)
        if isinstance(result, Admitted):
            self.admitted_us.append(now_us)
        return result


def test_no_window_of_a_second_ever_holds_more_than_its_limit(play):
    limit = 20

    async def scenario(site):
        site.gateway.admission._ledger = ledger = NotingLedger()
        times_us = ledger.admitted_us

        async def hammer():
            passed = 0
            # More than fits in three windows.
            while len(times_us) <= 3 * limit:
                passed += (await site.chat()).status == 200
            return passed

        passed = sum(await asyncio.gather(*(hammer() for _ in range(6))))
        assert len(times_us) == passed
        for first_us, next_us in zip(times_us, times_us[limit:], strict=False):
            assert next_us - first_us >= US_PER_S

    play(scenario, limits=[rule("requests", "second", limit)])


def test_total_counts_all_tenants_together_and_each_every_one_alone(play):
    async def scenario(site):
        for tenant in ("acme", "globex", "pico"):
            assert (await site.chat(tenant=tenant)).status == 200
        refused = await site.chat(tenant="globex")
        refusal(refused)
        assert "all-of-us" in refused.error["message"]
        await calm(site)
        for tenant in ("acme", "globex", "pico"):
            assert used(site, tenant=tenant) == {"all-of-us": 3, "own": 1}

    rules = [
        rule("requests", "hour", 3, scope="total", name="all-of-us"),
        rule("requests", "hour", 2, name="own"),
    ]
    play(scenario, limits=rules)


def test_the_most_specific_rule_holds_alone(play):
    async def scenario(site):
        assert [(await site.chat()).status for _ in range(4)] == [200, 200, 200, 429]
        assert [(await site.chat(tenant="globex")).status for _ in range(2)] == [200, 429]
        statuses = [(await site.chat(tenant="pico")).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert used(site) == {"acmes": 3}
        assert used(site, tenant="globex") == {"all": 1}
        assert used(site, tenant="pico") == {"trials": 2}

    rules = [
        rule("requests", "hour", 1, name="all"),
        rule("requests", "hour", 2, tier="trial", name="trials"),
        rule("requests", "hour", 3, tenant="acme", name="acmes"),
    ]
    play(scenario, limits=rules)


def test_inputs_are_texts_and_documents(play, embed_model, chat_model):
    async def scenario(site):
        assert (await site.embed(["a", "b", "c"])).status == 200
        refusal(await site.embed(["a"] * 8))
        rerank = {"model": "embed", "query": "q", "documents": ["a", "b", "c", "d"]}
        held = site.engines["cpu-0"]
        held.hold()
        waiting = site.start(site.post("/v1/rerank", rerank))
        await site.until(lambda: len(held.calls) == 2)
        # The query is none of the documents.
        assert used(site) == {"texts": 7}
        held.release()
        assert (await waiting).status == 200
        assert (await site.chat()).status == 200
        await calm(site)
        assert used(site) == {"texts": 8}
        refusal(await site.embed(["a", "b", "c"]))
        assert (await site.embed(["a", "b"])).status == 200

    models = {"chat": chat_model(), "embed": embed_model(endpoints=["embeddings", "rerank"])}
    play(scenario, models=models, limits=[rule("inputs", "hour", 10, name="texts")])


def test_a_shadow_rule_lets_pass_counts_and_tells(play, caplog):
    async def scenario(site):
        assert [(await site.chat()).status for _ in range(3)] == [200, 200, 200]
        refusal(await site.chat())
        metrics = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_limit_refusals_total{limit="tried",mode="shadow"} 2.0' in metrics
        assert 'taketurns_limit_refusals_total{limit="real",mode="enforce"} 1.0' in metrics
        await calm(site)
        assert used(site) == {"tried": 3, "real": 3}
        # Clients are told of what holds only.
        reply = await site.chat(tenant="globex")
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert "tried" not in reply.headers["RateLimit-Policy"]

    rules = [
        rule("requests", "hour", 1, mode="shadow", name="tried"),
        rule("requests", "hour", 3, name="real"),
    ]
    with caplog.at_level(logging.INFO):
        play(scenario, limits=rules)
    # A line a minute, whatever comes.
    assert caplog.text.count("limit tried would have refused 1 requests") == 1


def test_a_limit_of_nothing_forbids_and_is_not_tried_again(play):
    async def scenario(site):
        for reply in [await site.chat(), await site.chat()]:
            assert (reply.status, reply.error["code"]) == (403, "not_allowed")
            assert reply.error["type"] == "permission_error"
            assert "limit none" in reply.error["message"].lower()
            assert "Retry-After" not in reply.headers
            assert reply.headers["x-request-executed"] == "no"
        assert (await site.embed(["a"])).status == 200

    rules = [
        rule("requests", "hour", 0, name="none", endpoint="chat"),
        rule("requests", "hour", 9, name="some"),
    ]
    play(scenario, limits=rules)


def test_a_refusal_leaves_nothing_behind_in_any_other_limit(play):
    async def scenario(site):
        assert (await site.embed(["a", "b"])).status == 200
        await calm(site)
        names = {"endpoint": "embeddings", "model": "embed"}
        before = used(site, **names)
        assert (before["n"], before["texts"], before["together"]) == (1, 2, 0)
        for _ in range(3):
            refusal(await site.embed(["c", "d"]))
        assert used(site, **names) == before

    rules = [
        rule("requests", "hour", 10, name="n"),
        rule("tokens", "day", 10_000, name="tokens"),
        rule("requests", "month", 10, name="month"),
        rule("parallel", most=10, name="together"),
        rule("inputs", "hour", 3, name="texts"),
    ]
    play(scenario, limits=rules)


def test_without_a_rule_nothing_is_counted_or_told(play):
    async def scenario(site):
        reply = await site.chat()
        assert reply.status == 200
        assert not [name for name in reply.headers if "ratelimit" in name.lower()]
        assert used(site) == {}

    play(scenario, limits=[rule("requests", "hour", 0, tenant="globex")])


# When to come back


@pytest.mark.parametrize(
    ("unit", "most"),
    # One request's input has to fit.
    [("requests", 2), ("tokens", 20), ("input_tokens", 20), ("output_tokens", 2), ("inputs", 2)],
)
def test_who_waits_as_long_as_told_gets_in(play, unit, most):
    async def scenario(site):
        for _ in range(2):
            while (reply := await site.chat()).status == 200:
                pass
            milliseconds = refusal(reply)
            assert 0 < milliseconds <= 1000
            assert f"Try again in {milliseconds / 1000:g} s." in reply.error["message"]
            await wait_ms(site, milliseconds)
            assert (await site.chat()).status == 200

    play(scenario, limits=[rule(unit, "second", most)])


def test_those_refused_together_are_told_moments_apart_at_which_each_gets_in(play):
    limit = 5

    async def scenario(site):
        for _ in range(limit):
            assert (await site.chat()).status == 200
        clock = site.gateway._clock

        async def insist():
            wait_us = refusal(await site.chat()) * US_PER_MS
            told_us = clock.now_us() + wait_us
            await site.until(lambda: clock.now_us() >= told_us)
            return (await site.chat()).status

        statuses = await asyncio.gather(*(insist() for _ in range(limit)))
        assert statuses == [200] * limit

    play(scenario, limits=[rule("requests", "second", limit)])


def test_however_many_are_refused_together_they_are_spread_over_a_period(play):
    limit, period_ms = 10, 3_600_000

    async def scenario(site):
        replies = await asyncio.gather(*(site.chat() for _ in range(limit + 55)))
        waits_ms = sorted(refusal(reply) for reply in replies if reply.status != 200)
        assert len(waits_ms) == 55
        assert waits_ms[-1] <= 2 * period_ms
        # Eleven moments a tenth of a period apart; the first is where the first leave.
        by_moment = {}
        for wait in waits_ms:
            moment = round((wait - waits_ms[0]) * limit / period_ms)
            by_moment[moment] = by_moment.get(moment, 0) + 1
        assert by_moment == dict.fromkeys(range(limit + 1), 5)

    play(scenario, limits=[rule("requests", "hour", limit)])


def test_the_official_client_comes_back_when_told_and_gets_in(play):
    async def scenario(site):
        client = await site.openai(max_retries=2)
        messages = [{"role": "user", "content": "hi"}]
        while "rate_limit_exceeded" not in [record.code for record in site.records]:
            answer = await client.chat.completions.create(model="chat", messages=messages)
            assert answer.choices[0].message.content == "one two three"
            await calm(site)
        assert [record.code for record in site.records][-2:] == ["rate_limit_exceeded", ""]

    play(scenario, limits=[rule("requests", "second", 1)])


# Reserved, settled, given back


def test_tokens_are_reserved_by_max_tokens_and_settled_to_the_engines_count(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.hold()
        asking = site.start(site.chat(fields={"max_tokens": 500}))
        await site.until(lambda: len(engine.calls) == 1)
        (held,) = used(site).values()
        assert 500 < held < 600
        query = "/limits?tenant=acme&endpoint=chat&model=chat"
        (row,) = (await site.admin(query, TOKEN)).json["rules"]
        assert row["used"] == held
        engine.release()
        first = await asking
        assert int(first.headers["x-ratelimit-remaining-tokens"]) == 1000 - held
        assert int(first.headers["x-ratelimit-limit-tokens"]) == 1000
        usage = first.json["usage"]["total_tokens"]
        await calm(site)
        (row,) = (await site.admin(query, TOKEN)).json["rules"]
        assert row["used"] == usage
        second = await site.chat(fields={"max_tokens": 500})
        # How many bytes make a token was learned from the first.
        left = int(second.headers["x-ratelimit-remaining-tokens"])
        assert 1000 - usage - held <= left < 1000 - usage - 500

    play(scenario, server={"admin_token": TOKEN}, limits=[rule("tokens", "hour", 1000)])


def test_more_than_was_reserved_counts_against_those_that_follow(play):
    async def scenario(site):
        script(site, ScriptedAnswer([chat_answer("word " * 300)]))
        assert (await site.chat(fields={"max_tokens": 1})).status == 200
        await calm(site)
        assert used(site) == {"t": 303}
        refusal(await site.chat(fields={"max_tokens": 1}))

    play(scenario, limits=[rule("tokens", "hour", 100, name="t")])


@pytest.mark.parametrize("unit", ["input_tokens", "tokens"])
def test_a_request_whose_known_part_is_larger_than_a_limit_can_never_pass(play, unit):
    async def scenario(site):
        reply = await site.chat("word " * 500)
        assert (reply.status, reply.error["code"]) == (400, "request_exceeds_limit")
        assert reply.error["type"] == "invalid_request_error"
        assert "small" in reply.error["message"]
        assert "Retry-After" not in reply.headers
        assert used(site) == {"other": 0, "small": 0}
        assert (await site.chat()).status == 200

    rules = [rule("requests", "hour", 9, name="other"), rule(unit, "hour", 50, name="small")]
    play(scenario, limits=rules)


@pytest.mark.parametrize("unit", ["output_tokens", "tokens"])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 100_000}])
def test_a_guess_larger_than_a_limit_is_let_in_and_reserves_it_whole(play, unit, fields):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.hold()
        asking = site.start(site.chat(fields=fields))
        await site.until(lambda: len(engine.calls) == 1)
        assert used(site) == {"small": 50}
        refusal(await site.chat(fields=fields))
        engine.release()
        assert (await asking).status == 200
        await calm(site)
        assert used(site) == {"small": 3 if unit == "output_tokens" else 6}
        # What is used leaves no room for a guess as large as the limit.
        refusal(await site.chat(fields=fields))
        assert (await site.chat(fields={"max_tokens": 10})).status == 200

    play(scenario, limits=[rule(unit, "hour", 50, name="small")])


EVERY_LIMIT = [
    rule("requests", "day", 1000, name="requests"),
    rule("inputs", "hour", 1000, name="inputs"),
    rule("input_tokens", "hour", 100_000, name="input_tokens"),
    rule("output_tokens", "hour", 100_000, name="output_tokens"),
    rule("requests", "month", 1000, name="month"),
    rule("tokens", "month", 1_000_000, name="month-tokens"),
    rule("parallel", most=50, name="parallel"),
    rule("parallel", most=50, scope="total", name="parallel-total"),
]


def counts(executed, inputs=1, input_tokens=0, output_tokens=0):
    """Return what every limit should have counted of one request that has ended."""
    ran = int(executed)
    return {
        "requests": ran,
        "inputs": inputs * ran,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "month": ran,
        "month-tokens": input_tokens + output_tokens,
        "parallel": 0,
        "parallel-total": 0,
    }


def of_record(record, inputs=1):
    """Return what should have counted of a request that ran."""
    assert record.input_tokens > 0
    return counts(True, inputs, record.input_tokens, record.output_tokens)


async def answered(site):
    assert (await site.chat(fields={"max_tokens": 500})).status == 200
    return counts(True, 1, 3, 3)


async def streamed(site):
    script(
        site, ScriptedAnswer(chat_events("a b c d", usage=True, prompt_tokens=9), headers=EVENTS)
    )
    assert (await site.post(CHAT, STREAM)).status == 200
    return counts(True, 1, 9, 4)


async def streamed_without_usage(site):
    script(site, ScriptedAnswer(chat_events("a b c d"), headers=EVENTS))
    assert (await site.post(CHAT, STREAM)).status == 200
    await calm(site)
    assert site.records[-1].output_tokens >= 3
    return of_record(site.records[-1])


async def invalid(site):
    assert (await site.chat(fields={"max_tokens": "many"})).status == 400
    return counts(False)


async def unreachable(site):
    error = EngineUnavailableError("gpu-0", "nobody is there")
    script(site, *[ScriptedAnswer(open_error=error)] * 3)
    assert (await site.chat()).status == 503
    return counts(False)


async def rejected(site):
    script(site, ScriptedAnswer([b'{"error":{"message":"too long"}}'], status=400))
    assert (await site.chat()).status == 400
    return counts(False)


async def busy(site):
    script(site, *[ScriptedAnswer([b"{}"], status=429)] * 3)
    assert (await site.chat()).status == 503
    return counts(False)


async def failed(site):
    script(site, ScriptedAnswer([b"oops"], status=500))
    assert (await site.chat()).status == 502
    return of_record(site.records[-1])


async def timed_out(site):
    script(site, ScriptedAnswer(open_error=EngineTimeoutError("gpu-0", "too slow")))
    assert (await site.chat()).status == 504
    return of_record(site.records[-1])


async def broken_whole(site):
    error = EngineBrokenError("gpu-0", "it broke")
    script(site, ScriptedAnswer([b'{"half'], body_error=error))
    assert (await site.chat()).status == 502
    return of_record(site.records[-1])


async def broken_stream(site):
    error = EngineBrokenError("gpu-0", "it broke")
    events = chat_events("a b c d e f g h")
    script(site, ScriptedAnswer(events[:7], headers=EVENTS, body_error=error))
    with contextlib.suppress(OSError, EOFError):
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, STREAM))
        await wire.rest()
    await calm(site)
    assert site.records[-1].output_tokens > 0
    return of_record(site.records[-1])


async def failed_inside(site):
    async def fail(*args):
        raise ZeroDivisionError

    pool = site.pool("chat")
    pool._take_turn = fail
    assert (await site.chat()).status == 500
    del pool._take_turn
    return counts(False)


async def cancelled_in_the_queue(site):
    held = await site.fill()
    wire = await site.wire()
    await wire.send(site.raw_post(CHAT, {**STREAM, "max_tokens": 99}))
    await site.queued("chat", 1)
    assert used(site)["output_tokens"] == 99
    assert used(site)["parallel"] == 1
    wire.cut()
    await site.queued("chat", 0)
    site.engines["gpu-0"].release()
    await asyncio.gather(*held)
    return counts(False)


async def cancelled_before_the_answer(site):
    engine = site.engines["gpu-0"]
    engine.hold()
    before = len(engine.calls)
    wire = await site.wire()
    await wire.send(site.raw_post(CHAT, {**STREAM, "stream": False}))
    await site.until(lambda: len(engine.calls) > before)
    wire.cut()
    await calm(site)
    engine.release()
    await calm(site)
    return of_record(site.records[-1])


async def cancelled_mid_stream(site):
    events = chat_events("a b c d e f g h i j")
    script(site, ScriptedAnswer([b"".join(events[:8]), *events[8:]], headers=EVENTS))
    engine = site.engines["gpu-0"]
    wire = await site.wire()
    await wire.send(site.raw_post(CHAT, {**STREAM, "max_tokens": 500}))
    await wire.reader.readuntil(b'"g ')
    engine.body_gate.hold()
    wire.cut()
    await calm(site)
    engine.body_gate.release()
    assert 0 < site.records[-1].output_tokens < 500
    return of_record(site.records[-1])


async def expired(site):
    held = await site.fill()
    reply = await site.chat(headers={"taketurns-deadline-ms": "20"})
    assert (reply.status, reply.error["code"]) == (429, "queue_timeout")
    site.engines["gpu-0"].release()
    await asyncio.gather(*held)
    return counts(False)


async def queue_full(site):
    held = await site.fill()
    waiting = [site.start(site.chat(tenant="globex")) for _ in range(4)]
    await site.queued("chat", 4)
    reply = await site.chat()
    assert (reply.status, reply.error["code"]) == (503, "pool_queue_full")
    site.engines["gpu-0"].release()
    await asyncio.gather(*held, *waiting)
    return counts(False)


@pytest.mark.parametrize(
    "leave",
    [
        answered,
        streamed,
        streamed_without_usage,
        invalid,
        unreachable,
        rejected,
        busy,
        failed,
        timed_out,
        broken_whole,
        broken_stream,
        failed_inside,
        cancelled_in_the_queue,
        cancelled_before_the_answer,
        cancelled_mid_stream,
        expired,
        queue_full,
    ],
    ids=lambda leave: leave.__name__,
)
def test_whatever_ends_a_chat_its_limits_count_what_was_used(play, chat_model, leave):
    async def scenario(site):
        expected = await leave(site)
        await calm(site)
        assert used(site) | {"parallel-total": 0} == expected
        assert used(site)["parallel-total"] == 0

    play(scenario, models={"chat": chat_model(queue_max=4)}, limits=EVERY_LIMIT)


async def embedded(site):
    assert (await site.embed(["a b", "c d e"])).status == 200
    return counts(True, 2, 5)


async def embed_unreachable(site):
    error = EngineUnavailableError("cpu-0", "nobody is there")
    site.engines["cpu-0"]._script.extend([error] * 3)
    assert (await site.embed(["a", "b"])).status == 503
    return counts(False)


async def embed_rejected(site):
    site.engines["cpu-0"]._script.append(EngineRefusedError("cpu-0", 400, b"{}"))
    assert (await site.embed(["a", "b"])).status == 400
    return counts(False)


async def embed_failed(site):
    site.engines["cpu-0"]._script.append(EngineTimeoutError("cpu-0", "too slow"))
    assert (await site.embed(["a", "b"])).status == 504
    return of_record(site.records[-1], 2)


async def embed_cancelled_in_the_queue(site):
    engine = site.engines["cpu-0"]
    engine.hold()
    held = site.start(site.embed(["x"], tenant="globex"))
    await site.until(lambda: len(engine.calls) == 1)
    wire = await site.wire()
    await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": ["a", "b"]}))
    await site.queued("embed", 2)
    assert used(site, endpoint="embeddings", model="embed")["inputs"] == 2
    wire.cut()
    await site.queued("embed", 0)
    engine.release()
    assert (await held).status == 200
    return counts(False)


async def embed_cancelled_in_a_batch(site):
    engine = site.engines["cpu-0"]
    engine.hold()
    wire = await site.wire()
    await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": ["a", "b"]}))
    await site.until(lambda: len(engine.calls) == 1)
    wire.cut()
    await calm(site)
    engine.release()
    return of_record(site.records[-1], 2)


async def embed_expired(site):
    engine = site.engines["cpu-0"]
    engine.hold()
    held = site.start(site.embed(["x"], tenant="globex"))
    await site.until(lambda: len(engine.calls) == 1)
    reply = await site.embed(["a", "b"], headers={"taketurns-deadline-ms": "20"})
    assert reply.status == 429
    engine.release()
    assert (await held).status == 200
    return counts(False)


async def embed_queue_full(site):
    engine = site.engines["cpu-0"]
    engine.hold()
    held = site.start(site.embed(["x"], tenant="globex"))
    await site.until(lambda: len(engine.calls) == 1)
    reply = await site.embed(["t"] * 5)
    assert (reply.status, reply.error["code"]) == (503, "pool_queue_full")
    engine.release()
    assert (await held).status == 200
    return counts(False)


@pytest.mark.parametrize(
    "leave",
    [
        embedded,
        embed_unreachable,
        embed_rejected,
        embed_failed,
        embed_cancelled_in_the_queue,
        embed_cancelled_in_a_batch,
        embed_expired,
        embed_queue_full,
    ],
    ids=lambda leave: leave.__name__,
)
def test_whatever_ends_an_embeddings_request_its_limits_count_what_was_used(
    play, embed_model, leave
):
    async def scenario(site):
        expected = await leave(site)
        await calm(site)
        assert used(site, endpoint="embeddings", model="embed") == expected

    play(scenario, models={"embed": embed_model(queue_max=4)}, limits=EVERY_LIMIT)


def test_what_a_stop_breaks_off_counts_only_if_it_ran(play, chat_model):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.hold()
        running = site.start(site.chat(fields={"max_tokens": 77}))
        await site.until(lambda: len(engine.calls) == 1)
        waiting = [site.start(site.chat(tenant="globex")) for _ in range(3)]
        await site.queued("chat", 3)
        site.running.stop.set()
        assert (await running).status == 502
        assert [(await task).status for task in waiting] == [503] * 3
        await asyncio.wait({site.gateway_task})
        assert used(site, tenant="globex") == counts(False)
        (record,) = (record for record in site.records if record.tenant == "acme")
        assert used(site) == of_record(record)

    engines = [{"url": "http://fake:1", "name": "gpu-0", "slots": 1}]
    play(
        scenario,
        server={"drain": 0},
        models={"chat": chat_model(engines=engines)},
        limits=EVERY_LIMIT,
    )


def test_a_place_is_held_while_a_request_waits_or_runs(play, chat_model):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.hold()
        tasks = [site.start(site.chat()) for _ in range(2)]
        await site.queued("chat", 1)
        assert used(site) == {"together": 2}
        refused = await site.chat()
        assert refusal(refused) == 1000
        assert "2 requests at once" in refused.error["message"]
        other = site.start(site.chat(tenant="globex"))
        await site.queued("chat", 2)
        engine.release()
        assert [(await task).status for task in [*tasks, other]] == [200] * 3
        await calm(site)
        assert used(site) == {"together": 0}
        assert (await site.chat()).status == 200

    engines = [{"url": "http://fake:1", "name": "gpu-0", "slots": 1}]
    rules = [rule("parallel", most=2, name="together")]
    play(scenario, models={"chat": chat_model(engines=engines)}, limits=rules)


@pytest.mark.parametrize("stream", [True, False])
def test_one_at_a_time_is_enough_for_who_sends_one_after_the_other(play, stream):
    async def scenario(site):
        for _ in range(20):
            # On a connection of its own: there the gateway could read the next one early.
            wire = await site.wire()
            await wire.send(site.raw_post(CHAT, {**STREAM, "stream": stream}))
            if stream:
                status, _ = await wire.head()
                await wire.reader.readuntil(b"[DONE]")
                await wire.reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                status, _, _ = await wire.reply()
            assert status == 200
        assert (await site.embed(["a"])).status == 200

    play(scenario, limits=[rule("parallel", most=1)])


# Months


def test_a_months_quota_is_a_429_that_the_official_client_does_not_send_again(play):
    async def scenario(site):
        assert (await site.chat()).status == 200
        client = await site.openai(max_retries=2)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "hi"}]
            )
        assert caught.value.code == "insufficient_quota"
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert 0 < int(caught.value.response.headers["retry-after"]) <= 31 * 86_400
        assert "trial-month allows 1 requests per month; 1 are used" in str(caught.value)
        await calm(site)
        assert len(site.records) == 2
        assert used(site) == {"trial-month": 1}

    play(scenario, limits=[rule("requests", "month", 1, name="trial-month")])


def test_a_months_count_goes_on_after_a_restart(play, tmp_path):
    async def before(site):
        for _ in range(3):
            assert (await site.chat(tenant="pico")).status == 200
        assert (await site.chat()).status == 200

    async def after(site):
        assert used(site, tenant="pico") == {"month": 3}
        assert used(site) == {"month": 1}
        assert (await site.chat(tenant="pico")).status == 200
        reply = await site.chat(tenant="pico")
        assert (reply.status, reply.error["code"]) == (429, "insufficient_quota")

    async def later(site):
        assert used(site, tenant="pico") == {"month": 4}

    kept = {
        "store": f"sqlite:///{tmp_path}/t.db",
        "limits": [rule("requests", "month", 4, name="month")],
    }
    for scenario in (before, after, later):
        play(scenario, **kept)


def test_while_quotas_cannot_be_kept_only_what_is_reserved_is_served(play, tmp_path, caplog):
    path = tmp_path / "t.db"

    async def scenario(site):
        assert (await site.chat()).status == 200
        admission = site.gateway.admission
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            replies = [await site.chat() for _ in range(60)]
            statuses = [reply.status for reply in replies]
            served = statuses.count(200)
            assert statuses == [200] * served + [503] * (60 - served)
            assert served >= 10
            for reply in replies[served:]:
                assert refusal(reply, 503, "quota_store_unavailable") == 5000
            assert admission.failing
            await calm(site)
            # Nothing was granted beyond what is written, and what was refused counts nowhere.
            assert used(site) == {"month": 1 + served}
            (mark,) = lock.execute("SELECT mark FROM month_mark").fetchone()
            assert mark >= 1 + served
            # Who has no such quota doesn't notice.
            assert (await site.chat(tenant="globex")).status == 200
            lock.execute("ROLLBACK")
        await site.until(lambda: not admission.failing)
        assert [(await site.chat()).status for _ in range(60)] == [200] * 60

    rules = [rule("requests", "month", 20_000, tenant="acme", name="month")]
    play(scenario, store=f"sqlite:///{path}", limits=rules)
    assert caplog.text.count("month quotas can't be written") == 1
    assert "month quotas are written again" in caplog.text


# Headers


def members(text):
    """Return a list of structured fields: strings with parameters, each as a mapping."""
    found = []
    for member in text.split(", "):
        match = re.fullmatch(
            r'"([ !#-\[\]-~]*)"((?:;[a-z]+=(?:\d{1,15}|"[ !#-\[\]-~]*"))*)', member
        )
        assert match, member
        pairs = [pair.split("=", 1) for pair in match[2].split(";")[1:]]
        found.append((match[1], {key: json.loads(value) for key, value in pairs}))
    return found


@pytest.mark.parametrize("how", ["whole", "stream", "embeddings", "refused"])
def test_every_answer_says_how_the_limits_stand(play, how):
    async def scenario(site):
        if how == "stream":
            reply = await site.post(CHAT, STREAM)
        elif how == "embeddings":
            reply = await site.embed(["a"])
        else:
            reply = await site.chat(fields={"max_tokens": 20})
        assert reply.status == 200
        if how == "refused":
            assert (await site.chat(fields={"max_tokens": 20})).status == 200
            reply = await site.chat(fields={"max_tokens": 20})
            refusal(reply)
        headers = reply.headers
        assert headers["x-ratelimit-limit-requests"] == "2"
        left = 0 if how == "refused" else 1
        assert headers["x-ratelimit-remaining-requests"] == str(left)
        assert headers["x-ratelimit-reset-requests"] == "1m0s"
        assert headers["x-ratelimit-limit-tokens"] == "5000"
        assert 4000 < int(headers["x-ratelimit-remaining-tokens"]) < 5000
        assert headers["x-ratelimit-reset-tokens"] == "24h0m0s"
        policies = members(headers["RateLimit-Policy"])
        assert policies == [
            ("a-minute", {"q": 2, "w": 60, "qu": "requests"}),
            ("tokens/day", {"q": 5000, "w": 86_400, "qu": "tokens"}),
            ("requests/month", {"q": 100, "w": 31 * 86_400, "qu": "requests"}),
        ]
        ((name, state),) = members(headers["RateLimit"])
        assert (name, state) == ("a-minute", {"r": left, "t": 60})

    rules = [
        rule("requests", "minute", 2, name="a-minute"),
        rule("tokens", "day", 5000),
        rule("requests", "month", 100),
        rule("parallel", most=5),
    ]
    play(scenario, limits=rules)


# Bytes


def test_bytes_under_way_are_bounded_by_tenant_by_model_and_in_all(play, chat_model, embed_model):
    text = "x" * 500

    async def scenario(site):
        held = site.gateway._held
        engine = site.engines["gpu-0"]
        engine.hold()
        tasks = [site.start(site.chat(text))]
        await site.until(lambda: len(engine.calls) == 1)
        own = await site.chat(text + text)
        refusal(own, 429, "tenant_bytes_full")
        tasks.append(site.start(site.chat(text, tenant="globex")))
        await site.until(lambda: len(engine.calls) == 2)
        refusal(await site.chat(text, tenant="pico"), 503, "bytes_full")
        assert (await site.embed([text], tenant="pico")).status == 200
        refusal(await site.embed([text * 3], tenant="pico"), 503, "bytes_full")
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": "no model"}))
        assert (await wire.reply())[0] == 200
        engine.release()
        assert [(await task).status for task in tasks] == [200, 200]
        await calm(site)
        assert held.total == 0
        assert (await site.chat(text + text)).status == 200

    play(
        scenario,
        server={"queued_bytes_max": 2048},
        models={
            "chat": chat_model(tenant_queue_bytes_max=1280, queue_bytes_max=1536),
            "embed": embed_model(),
        },
    )


def test_bytes_are_given_back_whatever_ends_a_request(play, chat_model):
    async def scenario(site):
        for leave in (answered, invalid, rejected, timed_out, broken_stream, expired, queue_full):
            await leave(site)
            await calm(site)
            assert site.gateway._held.total == 0
        for leave in (cancelled_before_the_answer, cancelled_mid_stream, unreachable):
            await leave(site)
            await calm(site)
            assert site.gateway._held.total == 0

    play(scenario, models={"chat": chat_model(queue_max=4)})


# While it runs


def test_a_reload_changes_limits_and_keeps_what_is_used(play):
    async def scenario(site):
        assert [(await site.chat()).status for _ in range(3)] == [200, 200, 429]
        assert reload(site, limits=[rule("requests", "hour", 4, name="hourly")])
        assert used(site) == {"hourly": 2}
        assert [(await site.chat()).status for _ in range(3)] == [200, 200, 429]
        assert reload(site, limits=[rule("requests", "hour", 1, name="hourly")])
        assert used(site) == {"hourly": 4}
        refusal(await site.chat())
        # The same name for something else begins anew.
        assert reload(site, limits=[rule("requests", "day", 1, name="hourly")])
        assert used(site) == {"hourly": 0}
        assert [(await site.chat()).status for _ in range(2)] == [200, 429]
        assert reload(site, limits=[])
        reply = await site.chat()
        assert reply.status == 200
        assert "RateLimit" not in reply.headers

    play(scenario, limits=[rule("requests", "hour", 2, name="hourly")])


def test_what_is_under_way_while_its_rules_go_and_come_back_takes_nothing_from_nobody(play):
    rules = [
        rule("parallel", most=3, name="together"),
        rule("tokens", "hour", 1000, name="tokens"),
        rule("requests", "month", 10, name="month"),
    ]

    async def scenario(site):
        held = await site.fill(tenant="acme")
        assert reload(site, limits=[])
        assert reload(site, limits=rules)
        before = used(site)
        assert before["together"] == 0
        site.engines["gpu-0"].release()
        for task in held:
            assert (await task).status == 200
        await calm(site)
        assert used(site)["together"] == 0
        assert used(site)["tokens"] == 0
        assert (await site.chat()).status == 200

    play(scenario, limits=rules)


def test_a_months_count_comes_back_with_its_rule_though_requests_end_late(play, tmp_path):
    own = [rule("requests", "month", 1000, name="m")]
    other = [rule("inputs", "month", 1000, name="m")]

    async def scenario(site):
        for _ in range(5):
            assert (await site.chat()).status == 200
        engine = site.engines["gpu-0"]
        engine.hold()
        asking = site.start(site.chat())
        await site.until(lambda: len(engine.calls) == 6)
        assert reload(site, limits=other)
        engine.release()
        assert (await asking).status == 200
        assert (await site.chat()).status == 200
        await calm(site)
        assert reload(site, limits=own)
        assert used(site)["m"] >= 6
        assert (await site.chat()).status == 200

    async def again(site):
        assert used(site)["m"] >= 7

    for play_it in (scenario, again):
        play(play_it, store=f"sqlite:///{tmp_path}/t.db", limits=own)


# What operators see


def test_the_admin_side_tells_what_is_used_and_what_would_happen(play):
    async def scenario(site):
        held = await site.fill(tenant="acme")
        query = "/limits?tenant=acme&endpoint=chat&model=chat"
        told = (await site.admin(query + "&input_tokens=1&output_tokens=5", TOKEN)).json
        assert set(told) == {"rules", "throttle", "would", "by"}
        assert told["throttle"] is None
        rows = {row["rule"]: row for row in told["rules"]}
        assert list(rows) == ["hourly", "month", "together", "tried"]
        assert rows["month"] == {
            "rule": "month",
            "unit": "requests",
            "limit": 2,
            "used": 2,
            "wait_s": None,
            "mode": "enforce",
        }
        assert (rows["together"]["unit"], rows["together"]["wait_s"]) == ("parallel", 0)
        assert 3500 < rows["hourly"]["wait_s"] <= 3600
        assert 3500 < rows["tried"]["wait_s"] <= 3600
        assert rows["tried"]["mode"] == "shadow"
        assert (told["would"], told["by"]) == ("refused", ["hourly", "month"])
        told = (await site.admin(query.replace("acme", "globex"), TOKEN)).json
        assert (told["would"], told["by"]) == ("admitted", [])
        assert [row["used"] for row in told["rules"]] == [0, 0, 0, 0]
        # Being asked counts nothing.
        assert used(site, tenant="globex")["hourly"] == 0
        site.engines["gpu-0"].release()
        await asyncio.gather(*held)

    rules = [
        rule("requests", "hour", 2, name="hourly"),
        rule("requests", "month", 2, name="month"),
        rule("parallel", most=9, name="together"),
        rule("output_tokens", "hour", 5, mode="shadow", name="tried"),
    ]
    play(scenario, server={"admin_token": TOKEN}, limits=rules)


@pytest.mark.parametrize(
    ("query", "token", "status", "code"),
    [
        ("tenant=acme", None, 401, "invalid_admin_token"),
        ("tenant=acme", "wrong", 401, "invalid_admin_token"),
        ("tenant=acne", TOKEN, 404, "tenant_not_found"),
        ("", TOKEN, 404, "tenant_not_found"),
        ("tenant=%ff", TOKEN, 404, "tenant_not_found"),
        ("tenant=acme&inputs=x", TOKEN, 400, "invalid_value"),
        ("tenant=acme&input_tokens=-1", TOKEN, 400, "invalid_value"),
        ("tenant=acme&output_tokens=1e3", TOKEN, 400, "invalid_value"),
        ("tenant=acme&input_tokens=%D9%A1", TOKEN, 400, "invalid_value"),
    ],
)
def test_the_admin_side_tells_a_wrong_question(play, query, token, status, code):
    async def scenario(site):
        reply = await site.admin(f"/limits?{query}", token)
        assert (reply.status, reply.error["code"]) == (status, code)

    play(scenario, server={"admin_token": TOKEN}, limits=[rule("requests", "hour", 1)])


@pytest.mark.parametrize("as_json", [True, False])
def test_explain_asks_a_gateway_that_runs(play, tmp_path, capsys, as_json):
    async def scenario(site):
        assert (await site.chat()).status == 200
        await calm(site)
        file = tmp_path / "t.yaml"
        config = site.gateway.config.model_dump(mode="json", exclude_unset=True)
        file.write_text(yaml.safe_dump(config))
        await asyncio.to_thread(
            explain,
            file,
            tenant="acme",
            endpoint="chat",
            model="chat",
            input_tokens=2_000,
            max_tokens=100,
            inputs=1,
            admin=site.admin_url,
            admin_token=TOKEN,
            as_json=as_json,
        )

    rules = [rule("requests", "hour", 1, name="one"), rule("input_tokens", "hour", 500, name="in")]
    play(scenario, server={"admin_token": TOKEN}, limits=rules)
    said = capsys.readouterr().out
    if as_json:
        now = json.loads(said)["now"]
        assert (now["would"], now["by"]) == ("refused", ["one", "in"])
        assert [row["used"] for row in now["rules"]] == [1, 3]
        assert now["rules"][1]["wait_s"] is None
    else:
        assert "Now it would be refused by one, in.\n" in said
        assert re.search(r"^one +1 +1 +in ", said, re.MULTILINE)
        assert re.search(r"^in +3 +500 +not known when$", said, re.MULTILINE)
