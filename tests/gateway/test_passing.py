# SPDX-License-Identifier: Apache-2.0
"""Responses and messages pass as they come; what they took is charged by the engine's counts."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import openai
import pytest

from taketurns.errors import EngineBrokenError
from taketurns.testing.engine import ScriptedAnswer

SDK = Path(__file__).parents[1] / "sdk"
SSE = {"content-type": "text/event-stream"}


@pytest.fixture
def models(chat_model):
    return {
        "chat": chat_model(endpoints=["chat", "responses", "messages"], cost="tokens", quantum=8)
    }


def event(kind, **fields):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "chat",
    "status": "completed",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        }
    ],
    "parallel_tool_calls": False,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 18,
    },
}
RESPONSES = [
    event("response.created", response={**RESPONSE, "usage": None}, sequence_number=0),
    event(
        "response.output_text.delta",
        delta="hi",
        item_id="msg_1",
        output_index=0,
        content_index=0,
        logprobs=[],
        sequence_number=1,
    ),
    event("response.completed", response=RESPONSE, sequence_number=2),
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "chat",
    "content": [{"type": "text", "text": "hi"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 11, "output_tokens": 7, "cache_read_input_tokens": 4},
}
MESSAGES = [
    event("message_start", message={**MESSAGE, "content": []}),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
    event("content_block_stop", index=0),
    event(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"output_tokens": 7},
    ),
    event("message_stop"),
]
ASKED = {"model": "chat", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def say(site, *answers):
    site.engines["gpu-0"]._script.extend(answers)


def whole(body):
    return ScriptedAnswer([json.dumps(body).encode()])


def taken(site):
    record = site.records[-1]
    return record.endpoint, record.input_tokens, record.output_tokens, record.cost


def test_openais_client_gets_responses_whole_and_streamed(play, models):
    async def scenario(site):
        say(site, whole(RESPONSE), ScriptedAnswer(RESPONSES, headers=SSE))
        client = await site.openai()
        told = await client.responses.create(model="chat", input="hi")
        assert told.output_text == "hi"
        # Cached tokens of the input cost nothing, one of the output costs two.
        assert taken(site) == ("responses", 11, 7, 7 + 2 * 7)
        stream = await client.responses.create(model="chat", input="hi", stream=True)
        assert [item.type async for item in stream][-1] == "response.completed"
        assert taken(site) == ("responses", 11, 7, 7 + 2 * 7)
        call = site.engines["gpu-0"].calls[-1]
        assert call.path == "/v1/responses"
        assert json.loads(call.body) == {"model": "chat", "input": "hi", "stream": True}

    play(scenario, models=models)


def test_messages_pass_with_either_header_for_the_key(play, models):
    async def scenario(site):
        say(site, whole(MESSAGE), ScriptedAnswer(MESSAGES, headers=SSE))
        key = {"x-api-key": site.keys["acme"], "anthropic-version": "2023-06-01"}
        told = await site.post("/v1/messages", ASKED, tenant=None, headers=key)
        assert told.json == MESSAGE
        assert taken(site) == ("messages", 15, 7, 11 + 2 * 7)
        told = await site.post("/v1/messages", {**ASKED, "stream": True})
        assert told.body == b"".join(MESSAGES)
        assert taken(site) == ("messages", 15, 7, 11 + 2 * 7)
        chat = await site.chat(tenant=None, headers=key)
        assert (chat.status, chat.error["code"]) == (401, "invalid_api_key")

    play(scenario, models=models)


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({}, 400, "invalid_request_error"),
        ({"model": "none"}, 404, "not_found_error"),
        ({"model": "chat"}, 400, "invalid_request_error"),
        ({**ASKED, "max_tokens": "x"}, 400, "invalid_request_error"),
    ],
)
def test_errors_of_messages_have_anthropics_form(play, models, body, status, kind):
    async def scenario(site):
        reply = await site.post("/v1/messages", body)
        assert (reply.status, reply.json["type"]) == (status, "error")
        assert reply.json["error"]["type"] == kind
        assert reply.json["request_id"] == site.records[-1].request_id

    play(scenario, models=models)


@pytest.mark.parametrize(
    ("path", "body", "events", "error"),
    [
        ("/v1/responses", {"model": "chat", "input": "hi"}, RESPONSES, b'{"error":'),
        ("/v1/messages", ASKED, MESSAGES, b'{"type":"error","error":{"type":"api_error"'),
    ],
)
@pytest.mark.parametrize("raised", [None, EngineBrokenError("gpu-0", "broke")])
def test_a_stream_that_stops_short_ends_with_an_error(
    play, models, path, body, events, error, raised
):
    async def scenario(site):
        say(site, ScriptedAnswer(events[:2], headers=SSE, body_error=raised))
        wire = await site.wire()
        await wire.send(site.raw_post(path, {**body, "stream": True}))
        rest = await wire.rest()
        assert b"event: error\ndata: " + error in rest
        assert not rest.endswith(b"0\r\n\r\n")
        assert site.records[-1].outcome == "failed"

    play(scenario, models=models)


def test_what_is_kept_of_others_is_out_of_reach(play, models):
    async def scenario(site):
        client = await site.openai()
        for fields in ({"previous_response_id": "resp_1"}, {"background": True}):
            with pytest.raises(openai.UnprocessableEntityError):
                await client.responses.create(model="chat", input="hi", **fields)
        assert site.engines["gpu-0"].calls == []

    play(scenario, models=models)


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("node") or not (SDK / "node_modules").exists(),
    reason="the npm clients are not installed: make sdks",
)
@pytest.mark.parametrize("play", ["asyncio"], indirect=True)
def test_anthropics_client_from_npm(play, models):
    async def scenario(site):
        say(site, whole(MESSAGE), ScriptedAnswer(MESSAGES, headers=SSE))
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        env |= {"URL": site.url, "KEY": site.keys["acme"], "CHAT": "chat"}
        process = await asyncio.create_subprocess_exec(
            "node", str(SDK / "clients.mjs"), "messages", env=env, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        assert json.loads(printed) == {
            "whole": "hi",
            "streamed": [json.loads(e.split(b"data: ")[1])["type"] for e in MESSAGES],
            "error": ["AuthenticationError", 401],
        }

    play(scenario, models=models)
