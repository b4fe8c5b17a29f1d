# SPDX-License-Identifier: Apache-2.0
"""What stands charged follows what is produced, and in the end it's what was used."""

import asyncio
import re

import pytest

from taketurns.core.cost import HORIZON_DEFAULT, TOKENS_PER_ROUND, EmaCost, RequestsCost
from taketurns.gateway.metering import STEP_TOKENS_MIN, Estimates, Foreseen, Meter, stride
from taketurns.telemetry.records import RequestRecord
from taketurns.testing.engine import ScriptedAnswer, chat_answer, chat_events

EVENTS = {"content-type": "text/event-stream"}
STREAM = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


class Turn:
    """Stands for a turn: keeps what it's settled to."""

    def __init__(self):
        self.settled = []

    def settle(self, cost):
        self.settled.append(cost)

    costs = settle


class Seen:
    """Stands for an engine's call: counts what streams."""

    tokens = 0

    def streamed(self, tokens):
        self.tokens += tokens


def meter_of(cost, *, expected=256, most=10**6, stride=32):
    turn, record = Turn(), RequestRecord("", "", input_tokens=10)
    foreseen = Foreseen(10, expected, most)
    return Meter(turn, record, cost, foreseen, stride, Seen()), turn, record


def test_the_charge_rolls_a_horizon_ahead_in_steps():
    meter, turn, _ = meter_of(EmaCost(horizon=64))
    for _ in range(200):
        meter.read(EVENT)
    assert turn.settled == [10 + 2 * (produced + 64) for produced in (32, 64, 96, 128, 160, 192)]


def test_several_events_at_once_are_as_many_tokens_and_comments_none():
    meter, turn, _ = meter_of(EmaCost(horizon=0), stride=1)
    meter.read(EVENT * 5)
    meter.read(b": ping\n\n")
    meter.read(EVENT.replace(b"\n\n", b"\r\n\r\n") * 2)
    assert meter.produced == 7
    assert turn.settled == [10 + 2 * 5, 10 + 2 * 7]


def test_requests_cost_the_same_whatever_they_produce():
    meter, turn, record = meter_of(RequestsCost())
    for _ in range(500):
        meter.read(EVENT)
    meter.streamed()
    meter.settle()
    assert turn.settled == []
    assert record.output_tokens == 497


def test_the_engines_count_is_the_truth_and_cached_input_is_not_charged():
    meter, turn, record = meter_of(EmaCost())
    for _ in range(9):
        meter.read(EVENT)
    meter.read(
        b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":20,'
        b'"prompt_tokens_details":{"cached_tokens":40}}}\n\n'
    )
    meter.streamed()
    meter.settle()
    assert turn.settled == [10 + 2 * 20]
    assert (record.input_tokens, record.output_tokens) == (50, 20)


def test_an_answer_that_comes_whole_is_charged_by_its_time_but_not_beyond_its_limit():
    meter, turn, _ = meter_of(EmaCost(horizon=0), most=100)
    for produced in (10, 40, 90, 400):
        meter.reached(produced)
    assert turn.settled == [10 + 2 * 40, 10 + 2 * 90]
    assert meter.produced == 100


def request(prompt="x" * 400, **fields):
    import json

    from taketurns.dialects.openai_generation import parse_completions

    return parse_completions(json.dumps({"model": "m", "prompt": prompt, **fields}).encode())


def test_estimates_are_learned_from_usage():
    from taketurns.dialects.openai_stream import Usage

    estimates = Estimates()
    asked = request()
    assert estimates.foresee(asked, "acme") == Foreseen(100, 256, 256)
    for _ in range(300):
        estimates.learn(asked, "acme", 40, usage=Usage(200, 40), us=4_000_000)
    learned = estimates.foresee(asked, "acme")
    assert learned.input_tokens == pytest.approx(200, rel=0.02)
    assert learned.output_tokens == pytest.approx(40, abs=1)
    assert estimates.produced(1_000_000) == pytest.approx(10, abs=1)
    assert estimates.foresee(request(n=3), "acme").output_tokens == 3 * learned.output_tokens
    assert estimates.foresee(request(max_tokens=7), "acme")[1:] == (7, 7)
    assert estimates.foresee(request(max_tokens=700), "acme")[1:] == (learned.output_tokens, 700)
    assert estimates.foresee(request(prompt=[1] * 30), "acme").input_tokens == 30


class Halfway:
    """An engine that sends one piece, and the others once it's let go on."""

    name = "gpu-0"
    status, headers = 200, EVENTS

    def __init__(self, site, first, *others):
        self.go_on = asyncio.Event()
        self.closed = asyncio.Event()
        self._pieces = first, others
        site.pool("chat").engines["gpu-0"] = self

    async def open(self, call):
        return self

    async def chunks(self):
        first, others = self._pieces
        yield first
        await self.go_on.wait()
        for piece in others:
            yield piece

    async def aclose(self):
        self.closed.set()


def test_a_stream_under_way_is_charged_and_in_the_end_settled(play, chat_model):
    async def scenario(site):
        events = chat_events("word " * 300, usage=True)
        engine = Halfway(site, b"".join(events[:200]), *events[200:])
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        standing = site.scheduler("chat")._standing
        assert list(standing.values()) == [pytest.approx(2 * (200 + HORIZON_DEFAULT), abs=30)]
        engine.go_on.set()
        await site.until(lambda: site.records)
        (record,) = site.records
        assert record.cost == 3 + 2 * 300
        assert record.charged == pytest.approx(2 * HORIZON_DEFAULT, abs=12)
        metrics = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_settlement_error_total{direction="under",model="chat"}' in metrics

    play(scenario, models={"chat": chat_model(cost="ema")})


def test_a_client_that_leaves_pays_for_what_was_produced(play, chat_model):
    async def scenario(site):
        events = chat_events("word " * 300)
        engine = Halfway(site, b"".join(events[:100]))
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        wire.cut()
        await engine.closed.wait()
        await site.until(lambda: site.records)
        (record,) = site.records
        assert (record.outcome, record.output_tokens) == ("cancelled", 97)
        assert record.cost == record.input_tokens + 2 * 97

    play(scenario, models={"chat": chat_model(cost="ema")})


def test_a_whole_answer_is_settled_by_its_usage(play, chat_model):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine._script.append(ScriptedAnswer([chat_answer("a b c d", prompt_tokens=90)]))
        assert (await site.chat()).status == 200
        assert site.records[0].cost == 90 + 2 * 4

    play(scenario, models={"chat": chat_model(cost="ema", quantum=8)})


def test_tokens_cost_what_the_operator_says(play, chat_model):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine._script.append(ScriptedAnswer([chat_answer("a b c d", prompt_tokens=90)]))
        assert (await site.chat()).status == 200
        assert site.records[0].cost == 2 * 90 + 5 * 4

    costs = {"input": 2, "output": 5}
    play(scenario, models={"chat": chat_model(cost="ema", quantum=8, token_cost=costs)})


def test_a_silent_stream_gets_comments_between_its_events(play):
    first, second, *others = chat_events("one two three")

    async def scenario(site):
        engine = Halfway(site, first + second[:9], second[9:], *others)
        wire = await site.wire()
        await wire.send(site.raw_post("/v1/chat/completions", STREAM))
        await wire.head()
        received = await wire.reader.readuntil(b": ping\n\n\r\n")
        received += await wire.reader.readuntil(b": ping\n\n\r\n")
        engine.go_on.set()
        received += await wire.reader.readuntil(b"0\r\n\r\n")
        # The event that came in part waited for its rest: no comment stands in it.
        sent = re.sub(rb"(^|(?<=\n))[0-9a-f]+\r\n|(?<=\n\n)\r\n", b"", received)
        assert sent.replace(b": ping\n\n", b"").startswith(b"".join([first, second, *others]))

    play(scenario, server={"ping": "0.05s"})


def test_no_comment_is_sent_before_a_stream_has_begun(play):
    async def scenario(site):
        engine = site.engines["gpu-0"]
        engine.body_gate.hold()
        asked = site.start(site.post("/v1/chat/completions", STREAM))
        await engine.executed.reached(1)
        watch = site.pool("chat")._watch
        looks = []
        arm = watch._arm
        watch._arm = lambda: (looks.append(1), arm())
        await site.until(lambda: len(looks) > 8)
        engine.body_gate.release()
        reply = await asked
        assert reply.status == 200
        assert b"ping" not in reply.body

    play(scenario, server={"ping": "0.01s"})


@pytest.mark.parametrize(
    ("quantum", "output_weight", "tokens"), [(100, 2, 8), (512, 2, 32), (512, 1, 64), (1, 1_000, 8)]
)
def test_a_charge_follows_by_an_eighth_of_a_quantum_or_eight_tokens(quantum, output_weight, tokens):
    assert stride(quantum, output_weight) == tokens


def test_the_default_charge_stays_ahead_of_what_is_produced():
    """Else a tenant whose answers run would look as if it had taken less than it has."""
    assert STEP_TOKENS_MIN < HORIZON_DEFAULT
    assert stride(TOKENS_PER_ROUND, 2) < HORIZON_DEFAULT
