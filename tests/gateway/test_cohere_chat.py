# SPDX-License-Identifier: Apache-2.0
"""Cohere's own client chats with an engine that knows OpenAI's dialect only."""

import asyncio
import contextlib
import json

import cohere
import pytest
from cohere.core.request_options import RequestOptions

from taketurns.errors import EngineBrokenError, EngineRefusedError
from taketurns.testing.engine import ScriptedAnswer, chat_events

ONCE = RequestOptions(max_retries=0)
CLIENTS = {"1": cohere.AsyncClient, "2": cohere.AsyncClientV2}
HELLO = [{"role": "user", "content": "hi"}]


@contextlib.asynccontextmanager
async def client(site, version="2", key=None):
    made = CLIENTS[version](api_key=key or site.keys["acme"], base_url=site.url)
    async with made as opened:
        yield opened


def sent(site):
    """Return the body that the engine got last."""
    return json.loads(site.engines["gpu-0"].calls[-1].body)


def say(site, *answers):
    site.engines["gpu-0"]._script.extend(answers)


def whole(message, finish="stop"):
    body = {
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    return ScriptedAnswer([json.dumps(body).encode()])


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def test_version_2_says_what_the_engine_says(play):
    async def scenario(site):
        async with client(site) as co:
            told = await co.chat(model="chat", messages=HELLO, k=3, p=0.5, stop_sequences=["x"])
            assert told.message.content[0].text == "one two three"
            assert told.finish_reason == "COMPLETE"
            assert told.usage.tokens.input_tokens == 3
            assert told.usage.billed_units.output_tokens == 3
            assert told.id == site.records[-1].request_id
            assert sent(site) == {
                "model": "chat",
                "messages": HELLO,
                "top_k": 3,
                "top_p": 0.5,
                "stop": ["x"],
            }
            assert site.records[-1].endpoint == "chat"

    play(scenario)


def test_version_2_streams_events_in_order(play):
    async def scenario(site):
        async with client(site) as co:
            told = [event async for event in co.chat_stream(model="chat", messages=HELLO)]
            assert [event.type for event in told] == [
                "message-start",
                "content-start",
                "content-delta",
                "content-delta",
                "content-delta",
                "content-end",
                "message-end",
            ]
            texts = [e.delta.message.content.text for e in told if e.type == "content-delta"]
            assert "".join(texts) == "one two three "
            assert told[-1].delta.finish_reason == "COMPLETE"
            assert told[-1].delta.usage.tokens.output_tokens == 3
            assert sent(site)["stream_options"] == {"include_usage": True}
            assert site.records[-1].output_tokens == 3

    play(scenario)


def test_version_2_calls_tools_and_gets_their_results(play):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

    async def scenario(site):
        say(site, whole({"content": "plan", "tool_calls": [CALL]}, "tool_calls"))
        async with client(site) as co:
            told = await co.chat(model="chat", messages=HELLO, tools=[tool])
            assert told.finish_reason == "TOOL_CALL"
            assert told.message.tool_plan == "plan"
            assert told.message.tool_calls[0].function.arguments == '{"a":1}'
            result = {"role": "tool", "tool_call_id": "c1", "content": "42"}
            await co.chat(model="chat", messages=[*HELLO, told.message, result], tools=[tool])
            assert sent(site)["messages"][1:] == [
                {"role": "assistant", "content": "plan", "tool_calls": [CALL]},
                result,
            ]

    play(scenario)


def test_version_1_keeps_a_conversation_going(play):
    async def scenario(site):
        async with client(site, "1") as co:
            told = await co.chat(message="hi", preamble="Be brief.")
            assert (told.text, told.finish_reason) == ("one two three", "COMPLETE")
            assert told.meta.tokens.input_tokens == 3
            assert sent(site)["messages"] == [{"role": "system", "content": "Be brief."}, *HELLO]
            await co.chat(message="and?", chat_history=told.chat_history)
            assert [message["role"] for message in sent(site)["messages"]] == [
                "user",
                "assistant",
                "user",
            ]

    play(scenario, models=CHAT_ONLY)


def test_version_1_streams_lines(play):
    async def scenario(site):
        async with client(site, "1") as co:
            told = [event async for event in co.chat_stream(message="hi", model="chat")]
            assert [event.event_type for event in told] == [
                "stream-start",
                *["text-generation"] * 3,
                "stream-end",
            ]
            assert told[-1].response.text == "one two three "
            assert told[-1].finish_reason == "COMPLETE"
        body = {"message": "hi", "model": "chat", "stream": True}
        lines = await site.post("/v1/chat", body)
        assert lines.headers["Content-Type"] == "application/stream+json"
        assert [json.loads(line)["is_finished"] for line in lines.body.splitlines()][-1]
        events = await site.post("/v1/chat", body, headers={"Accept": "text/event-stream"})
        assert events.headers["Content-Type"] == "text/event-stream"
        assert events.body.startswith(b"event: stream-start\ndata: {")

    play(scenario)


def test_version_1_calls_tools_in_steps(play):
    tool = {
        "name": "f",
        "description": "d",
        "parameter_definitions": {"a": {"type": "int", "required": True}},
    }

    async def scenario(site):
        say(site, whole({"content": None, "tool_calls": [CALL]}, "tool_calls"))
        async with client(site, "1") as co:
            told = await co.chat(message="hi", model="chat", tools=[tool])
            (call,) = told.tool_calls
            assert (call.name, call.parameters) == ("f", {"a": 1})
            await co.chat(
                message="",
                model="chat",
                tools=[tool],
                chat_history=told.chat_history,
                tool_results=[{"call": call, "outputs": [{"r": 2}]}],
            )
            roles = [message["role"] for message in sent(site)["messages"]]
            assert roles == ["user", "assistant", "tool"]

    play(scenario)


BROKEN = ScriptedAnswer(
    chat_events("one two")[:2],
    headers={"content-type": "text/event-stream"},
    body_error=EngineBrokenError("gpu-0", "broke off"),
)
SHORT = ScriptedAnswer(chat_events("one two")[:2], headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize("answer", [BROKEN, SHORT])
def test_a_stream_that_breaks_ends_with_an_error_that_its_client_reads(play, answer):
    async def scenario(site):
        say(site, answer, answer)
        async with client(site) as co:
            told = [event async for event in co.chat_stream(model="chat", messages=HELLO)]
            assert [event.type for event in told][-2:] == ["content-end", "message-end"]
            assert told[-1].delta.finish_reason == "ERROR"
            assert "broke off" in told[-1].delta.error
        async with client(site, "1") as co:
            told = [event async for event in co.chat_stream(model="chat", message="hi")]
            assert (told[-1].event_type, told[-1].finish_reason) == ("stream-end", "ERROR")
        assert [record.outcome for record in site.records] == ["failed", "failed"]

    play(scenario)


async def fails(kind, call):
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    return caught.value


def test_errors_come_as_the_classes_that_its_users_catch(play):
    async def stream(co, **fields):
        return [event async for event in co.chat_stream(**fields, request_options=ONCE)]

    async def scenario(site):
        asked = {"model": "chat", "messages": HELLO}
        async with client(site, key="sk-tt-nobody") as co:
            await fails(cohere.UnauthorizedError, co.chat(**asked, request_options=ONCE))
            await fails(cohere.UnauthorizedError, stream(co, **asked))
        async with client(site) as co:

            def chat(**more):
                return co.chat(**asked, **more, request_options=ONCE)

            await fails(cohere.BadRequestError, chat(temperature="hot"))
            error = await fails(cohere.UnprocessableEntityError, chat(logprobs=True))
            assert "`logprobs`" in error.body["message"]
            await fails(cohere.NotFoundError, stream(co, model="none", messages=HELLO))
            refused = EngineRefusedError("gpu-0", 400, b'{"error":{"message":"too long"}}')
            say(site, ScriptedAnswer(open_error=refused))
            assert (await fails(cohere.BadRequestError, chat())).body["message"] == "too long"
            say(site, ScriptedAnswer([b"no json"]))
            assert (await fails(cohere.core.ApiError, chat())).status_code == 502
            site.gateway.stop_taking()
            await fails(cohere.ServiceUnavailableError, chat())

    play(scenario)


def test_a_limit_is_a_429_for_a_stream_too(play):
    limit = {"endpoint": "chat", "unit": "requests", "per": "minute", "max": 1}

    async def scenario(site):
        async with client(site) as co:
            await co.chat(model="chat", messages=HELLO)
            with pytest.raises(cohere.TooManyRequestsError):
                [event async for event in co.chat_stream(model="chat", messages=HELLO)]

    play(scenario, limits=[limit])


def test_the_synchronous_clients_do_as_well(play):
    async def scenario(site):
        def work():
            with cohere.ClientV2(api_key=site.keys["acme"], base_url=site.url) as two:
                yield two.chat(model="chat", messages=HELLO).message.content[0].text
                yield [e.type for e in two.chat_stream(model="chat", messages=HELLO)][-1]
            with cohere.Client(api_key=site.keys["acme"], base_url=site.url) as one:
                yield one.chat(model="chat", message="hi").text
                yield [e.event_type for e in one.chat_stream(model="chat", message="hi")][-1]

        told = await asyncio.to_thread(lambda: list(work()))
        assert told == ["one two three", "message-end", "one two three", "stream-end"]

    play(scenario)


def test_models_and_keys_are_told_to_coheres_client(play):
    async def scenario(site):
        async with client(site, "1") as co:
            listed = (await co.models.list()).models
            assert {model.name: model.endpoints for model in listed} == {
                "chat": ["chat", "generate"],
                "embed": ["embed"],
            }
            only = (await co.models.list(endpoint="embed")).models
            assert [model.name for model in only] == ["embed"]
            one = await co.models.get("chat")
            assert (one.name, one.endpoints) == ("chat", ["chat", "generate"])
            await fails(cohere.NotFoundError, co.models.get("none"))
            error = await fails(
                cohere.UnprocessableEntityError,
                co.tokenize(text="a", model="chat", offline=False),
            )
            assert "no tokenizer" in error.body["message"]
            assert error.headers["x-request-executed"] == "no"
        told = await site.send("POST", "/v1/check-api-key")
        assert told.json == {"valid": True, "organization_id": "acme", "owner_id": "acme"}
        refused = await site.send("POST", "/v1/check-api-key", tenant=None)
        assert (refused.status, set(refused.json)) == (401, {"id", "message", "code"})
        openai = await site.openai()
        assert [model.id async for model in openai.models.list()] == ["chat", "embed"]

    play(scenario)


LLAMA = {"tokens": [{"id": 5, "piece": "a"}, {"id": 6, "piece": [226, 130]}]}
VLLM = {"count": 1, "max_model_len": 9, "tokens": [5], "token_strs": ["a"]}


@pytest.mark.parametrize(
    ("kind", "told", "asked", "texts", "back"),
    [
        (
            "llamacpp",
            LLAMA,
            {"content": "a", "add_special": False, "with_pieces": True},
            ["a", "\ufffd"],
            {"content": "a"},
        ),
        (
            "vllm",
            VLLM,
            {
                "model": "own",
                "prompt": "a",
                "add_special_tokens": False,
                "return_token_strs": True,
            },
            ["a"],
            {"prompt": "a"},
        ),
    ],
)
def test_tokens_of_a_chat_model_are_asked_of_its_engine(play, kind, told, asked, texts, back):
    part = {"url": "http://fake:1", "name": "gpu-0", "slots": 1, "kind": kind, "model": "own"}
    part |= {"priority": False}

    def answer(body):
        return ScriptedAnswer([body if isinstance(body, bytes) else json.dumps(body).encode()])

    async def scenario(site):
        async with client(site, "1") as co:
            say(site, answer(told), answer(back), answer(b"{}"), answer(b"{}"))
            tokens = await co.tokenize(text="a", model="chat", offline=False)
            assert tokens.token_strings == texts
            assert sent(site) == asked
            text = await co.detokenize(tokens=[5], model="chat", offline=False)
            assert text.text == "a"
            assert site.engines["gpu-0"].calls[-1].path == "/detokenize"
            for call in (
                co.tokenize(text="a", model="chat", offline=False, request_options=ONCE),
                co.detokenize(tokens=[5], model="chat", offline=False, request_options=ONCE),
            ):
                assert (await fails(cohere.core.ApiError, call)).status_code == 502

    play(scenario, models={"chat": {"endpoints": ["chat"], "engines": [part]}})


CHAT_ONLY = {
    "chat": {
        "endpoints": ["chat"],
        "engines": [{"url": "http://fake:1", "name": "gpu-0", "slots": 2}],
    }
}
