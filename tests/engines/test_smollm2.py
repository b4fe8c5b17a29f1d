# SPDX-License-Identifier: Apache-2.0
"""The embedded SmolLM2 answers like an OpenAI-compatible server and stops when its reader does."""

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from taketurns.engines.smollm2 import SmolLm2Engine
from taketurns.errors import EngineBrokenError, EngineUnavailableError
from taketurns.ports.engine import GenerationAnswer, GenerationCall

pytestmark = pytest.mark.embedded

T = TypeVar("T")
Json = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France? One sentence."}]


@pytest.fixture(scope="module")
def engine() -> Iterator[SmolLm2Engine]:
    yield from started(SmolLm2Engine("smollm2", slots=4))


@pytest.fixture(scope="module")
def one_slot() -> Iterator[SmolLm2Engine]:
    yield from started(SmolLm2Engine("one-slot", slots=1))


def started(engine: SmolLm2Engine) -> Iterator[SmolLm2Engine]:
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.aclose())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def call(path: str = CHAT, *, stream: bool = False, **body: Any) -> GenerationCall:
    asked: Json = {"model": "house-model", "temperature": 0, "stream": stream}
    if path == CHAT:
        asked["messages"] = QUESTION
    sent = json.dumps({**asked, **body}).encode()
    return GenerationCall(path=path, body=sent, stream=stream, request_id="test")


def endless(*, stream: bool) -> GenerationCall:
    """Return a call that goes on to the end of the context unless it is stopped."""
    return call(stream=stream, ignore_eos=True, max_tokens=1900)


async def body_of(answer: GenerationAnswer) -> bytes:
    return b"".join([chunk async for chunk in answer.chunks()])


async def json_of(engine: SmolLm2Engine, asked: GenerationCall) -> tuple[int, Json]:
    answer = await engine.open(asked)
    assert answer.headers["content-type"] == "application/json"
    return answer.status, json.loads(await body_of(answer))


async def events_of(engine: SmolLm2Engine, asked: GenerationCall) -> list[Json]:
    answer = await engine.open(asked)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = (await body_of(answer)).split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def test_the_capital_of_france_is_paris(engine: SmolLm2Engine) -> None:
    status, answer = run(json_of(engine, call(max_tokens=20)))
    (choice,) = answer["choices"]
    assert status == 200
    assert "Paris" in choice["message"]["content"]
    assert (choice["finish_reason"], answer["object"]) == ("stop", "chat.completion")
    usage = answer["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_pieces_of_a_stream_join_to_the_whole_text(engine: SmolLm2Engine) -> None:
    _, whole = run(json_of(engine, call(max_tokens=20)))
    events = run(events_of(engine, call(stream=True, max_tokens=20)))
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in delta for delta in deltas[1:])
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_completion_joins_to_the_whole_text_too(engine: SmolLm2Engine) -> None:
    asked: Json = {"prompt": "The capital of France is", "max_tokens": 6}
    _, whole = run(json_of(engine, call(COMPLETIONS, **asked)))
    events = run(events_of(engine, call(COMPLETIONS, stream=True, **asked)))
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == whole["choices"][0]["text"]
    assert "Paris" in text
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_stream_ends_with_usage_only_where_it_is_asked_for(
    engine: SmolLm2Engine, path: str
) -> None:
    asked: Json = {"max_tokens": 3} | ({"prompt": "One two"} if path == COMPLETIONS else {})
    plain = run(events_of(engine, call(path, stream=True, **asked)))
    assert all("usage" not in event and event["choices"] for event in plain)
    options = {"include_usage": True}
    *_, last = run(events_of(engine, call(path, stream=True, stream_options=options, **asked)))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


def test_the_answer_names_the_model_of_the_call(engine: SmolLm2Engine) -> None:
    _, whole = run(json_of(engine, call(max_tokens=1)))
    events = run(events_of(engine, call(stream=True, max_tokens=2)))
    assert {answer["model"] for answer in [whole, *events]} == {"house-model"}


def test_logprobs_are_in_the_whole_answer(engine: SmolLm2Engine) -> None:
    _, answer = run(json_of(engine, call(max_tokens=3, logprobs=True, top_logprobs=1)))
    assert len(answer["choices"][0]["logprobs"]["content"]) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messages": "hello"}, "invalid_request"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_request"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "context_length_exceeded"),
        ({"temperature": "warm"}, "invalid_request_error"),
        ({"n": 2}, "invalid_request"),
    ],
)
def test_a_fault_of_the_caller_is_a_400_in_openais_form(
    engine: SmolLm2Engine, body: Json, code: str, stream: bool
) -> None:
    status, answer = run(json_of(engine, call(stream=stream, **body)))
    assert status == 400
    assert answer["error"]["code"] == code
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]


@pytest.mark.parametrize("prompt", [None, [], ["one", "two"], [1.5], {"text": "one"}])
def test_a_prompt_that_is_not_one_text_is_refused(engine: SmolLm2Engine, prompt: object) -> None:
    status, answer = run(json_of(engine, call(COMPLETIONS, prompt=prompt)))
    assert (status, answer["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(engine: SmolLm2Engine, body: bytes) -> None:
    asked = GenerationCall(path=CHAT, body=body, stream=False, request_id="test")
    assert run(json_of(engine, asked))[0] == 400


def test_another_path_is_not_found(engine: SmolLm2Engine) -> None:
    status, answer = run(json_of(engine, call("/v1/embeddings")))
    assert (status, answer["error"]["code"]) == (404, "not_found")


def test_streams_run_side_by_side(engine: SmolLm2Engine) -> None:
    async def scenario() -> list[str]:
        order: list[str] = []

        async def read(name: str, asked: GenerationCall) -> None:
            async for _ in (await engine.open(asked)).chunks():
                order.append(name)

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(read(name, call(stream=True, ignore_eos=True, max_tokens=16)))
        return order

    order = run(scenario())
    # Each had begun before any had ended.
    assert max(order.index(name) for name in "abcd") < min(
        len(order) - 1 - order[::-1].index(name) for name in "abcd"
    )


def test_the_next_call_runs_after_a_stream_was_closed(one_slot: SmolLm2Engine) -> None:
    async def scenario() -> int:
        answer = await one_slot.open(endless(stream=True))
        pieces = answer.chunks()
        await anext(pieces)
        await answer.aclose()
        await answer.aclose()
        status, _ = await json_of(one_slot, call(max_tokens=2))
        # The closed one made nothing more while the next one ran.
        assert [piece async for piece in pieces] == []
        return status

    assert run(scenario()) == 200


@pytest.mark.parametrize("stream", [True, False])
def test_the_next_call_runs_after_open_was_cancelled(one_slot: SmolLm2Engine, stream: bool) -> None:
    async def scenario() -> int:
        opening = asyncio.ensure_future(one_slot.open(endless(stream=stream)))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        return (await json_of(one_slot, call(max_tokens=2)))[0]

    assert run(scenario()) == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_call_gives_its_slot_up_long_before_its_end(stream: bool) -> None:
    async def scenario() -> None:
        engine = SmolLm2Engine("two-slots", slots=2)
        await engine.start()
        # Both slots are taken by calls of one length; one of the two is cancelled.
        other = await engine.open(endless(stream=True))
        reading = other.chunks()
        opening = asyncio.ensure_future(engine.open(endless(stream=stream)))
        for _ in range(3):
            await anext(reading)
        opening.cancel()
        cancelled = (await asyncio.gather(opening, return_exceptions=True))[0]
        if not isinstance(cancelled, BaseException):
            await cancelled.aclose()
        await json_of(engine, call(max_tokens=2))
        # Had the cancelled one gone on, both would have ended before this answer.
        assert b"[DONE]" not in await anext(reading)
        await other.aclose()
        await engine.aclose()

    run(scenario())


def test_a_reader_that_falls_behind_is_cut_off_and_told() -> None:
    async def scenario() -> None:
        engine = SmolLm2Engine("short-buffer", slots=1, pieces_max=4)
        await engine.start()
        slow = await engine.open(call(stream=True, ignore_eos=True, max_tokens=64))
        # On one slot this is answered when the slow one has ended.
        assert (await json_of(engine, call(max_tokens=1)))[0] == 200
        pieces: list[bytes] = []
        with pytest.raises(EngineBrokenError, match="fell 4 pieces behind"):
            async for piece in slow.chunks():
                pieces.append(piece)
        assert b"".join(pieces).count(b"data: ") == 4
        await engine.aclose()

    run(scenario())


def test_closing_breaks_running_streams_off() -> None:
    async def scenario() -> None:
        engine = SmolLm2Engine("closing", slots=1)
        await engine.start()
        running = await engine.open(endless(stream=True))
        waiting = asyncio.ensure_future(engine.open(endless(stream=True)))
        await asyncio.sleep(0)
        await engine.aclose()
        with pytest.raises(EngineBrokenError, match="engine was closed"):
            await body_of(running)
        with pytest.raises(EngineBrokenError, match="engine was closed"):
            await waiting
        with pytest.raises(EngineUnavailableError):
            await engine.open(call())

    run(scenario())


def test_more_calls_than_may_wait_are_refused_unexecuted() -> None:
    async def scenario() -> None:
        engine = SmolLm2Engine("narrow", slots=1, waiting_max=0)
        await engine.start()
        running = await engine.open(endless(stream=True))
        with pytest.raises(EngineUnavailableError, match="as many calls waiting"):
            await engine.open(call())
        await running.aclose()
        await engine.aclose()

    run(scenario())
