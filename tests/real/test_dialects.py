# SPDX-License-Identifier: Apache-2.0
"""Other dialects in front of llama.cpp's own server: it takes what they become, and is counted."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import cohere
import openai
import pytest
import requests
from e2e.process import SAFETY_S
from real.engines import gateway, llamacpp, tiny_model

from taketurns.engines.weights import SMOLLM2_MODEL, missing

SDK = Path(__file__).parents[1] / "sdk"
SAY = [{"role": "user", "content": "Tell me a story."}]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SMOLLM2_MODEL in missing(), reason="the embedded models are not installed"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the gateway's process and a key."""
    folder = tmp_path_factory.mktemp("dialects")
    models = {"tiny": {"endpoints": ["chat", "responses", "messages"], "cost": "tokens"}}
    with llamacpp(tiny_model(folder), "tiny", slots=2) as engine:
        models["tiny"]["engines"] = [
            {"url": engine, "slots": 2, "name": "llama", "kind": "llamacpp"}
        ]
        with gateway(folder, models, {"acme": {}}) as (process, keys):
            yield process, keys["acme"]


def test_openais_client_gets_responses(site):
    process, key = site
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key=key, max_retries=0) as api:
        asked = {"model": "tiny", "input": "Tell me a story.", "max_output_tokens": 8}
        told = api.responses.create(**asked)
        assert 0 < told.usage.output_tokens <= 8
        events = list(api.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.input_tokens == told.usage.input_tokens


def test_messages_are_answered_whole_and_streamed(site):
    process, key = site
    asked = {"model": "tiny", "max_tokens": 8, "messages": SAY}
    headers = {"x-api-key": key}

    def post(**more):
        url = f"{process.url}/v1/messages"
        return requests.post(url, json={**asked, **more}, headers=headers, timeout=SAFETY_S)

    told = post().json()
    assert 0 < told["usage"]["output_tokens"] <= 8
    lines = [line for line in post(stream=True).text.splitlines() if line.startswith("event: ")]
    assert (lines[0], lines[-1]) == ("event: message_start", "event: message_stop")


@pytest.mark.skipif(
    not shutil.which("node") or not (SDK / "node_modules").exists(),
    reason="the npm clients are not installed: make sdks",
)
def test_anthropics_client_from_npm_reads_both(site):
    process, key = site
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    env |= {"URL": process.url, "KEY": key, "CHAT": "tiny"}
    command = ["node", str(SDK / "clients.mjs"), "messages"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=SAFETY_S, check=True
    )
    seen = json.loads(done.stdout)
    assert (seen["streamed"][0], seen["streamed"][-1]) == ("message_start", "message_stop")
    assert seen["error"] == ["AuthenticationError", 401]


def test_cohere_chats_with_every_field_that_an_engine_knows(site):
    process, key = site
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    fields = {
        "model": "tiny",
        "max_tokens": 24,
        "temperature": 0.7,
        "k": 5,
        "p": 0.9,
        "seed": 3,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
    }
    with cohere.ClientV2(api_key=key, base_url=process.url, timeout=SAFETY_S) as co:
        told = co.chat(messages=SAY, stop_sequences=["\n\n\n"], documents=["A stone."], **fields)
        assert told.finish_reason in {"MAX_TOKENS", "COMPLETE"}
        assert 0 < told.usage.tokens.output_tokens <= 24
        again = co.chat(messages=SAY, stop_sequences=["\n\n\n"], documents=["A stone."], **fields)
        assert again.message.content[0].text == told.message.content[0].text
        shaped = {"type": "json_object", "json_schema": schema}
        events = list(co.chat_stream(messages=SAY, response_format=shaped, **fields))
        text = "".join(e.delta.message.content.text for e in events if e.type == "content-delta")
        assert text.lstrip().startswith("{")
        assert events[-1].delta.usage.tokens.output_tokens <= 24


def test_cohere_is_told_the_tokens_of_a_chat_model(site):
    process, key = site
    with cohere.Client(api_key=key, base_url=process.url, timeout=SAFETY_S) as co:
        told = co.tokenize(text="Two words", model="tiny", offline=False)
        assert "".join(told.token_strings) == "Two words"
        assert len(told.tokens) == len(told.token_strings) >= 2
        back = co.detokenize(tokens=told.tokens, model="tiny", offline=False)
        assert back.text == "Two words"
