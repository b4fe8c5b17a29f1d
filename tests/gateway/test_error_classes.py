# SPDX-License-Identifier: Apache-2.0
"""Each client raises, for each status, the class that its users catch: Python and npm."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import cohere
import openai
import pytest
from cohere.core.request_options import RequestOptions

from taketurns.errors import TaketurnsError
from taketurns.testing.engine import ScriptedAnswer

SDK = Path(__file__).parents[1] / "sdk"
HELLO = [{"role": "user", "content": "hi"}]
ONCE = RequestOptions(max_retries=0)
LIMIT = {"tenant": "pico", "endpoint": "chat", "unit": "requests", "per": "day", "max": 1}

CASES = {
    400: (openai.BadRequestError, cohere.BadRequestError),
    401: (openai.AuthenticationError, cohere.UnauthorizedError),
    404: (openai.NotFoundError, cohere.NotFoundError),
    422: (None, cohere.UnprocessableEntityError),
    429: (openai.RateLimitError, cohere.TooManyRequestsError),
    500: (openai.InternalServerError, cohere.InternalServerError),
    503: (openai.InternalServerError, cohere.ServiceUnavailableError),
}

BAD = {
    400: {"openai": {"n": 0}, "one": {"temperature": "hot"}, "two": {"temperature": "hot"}},
    422: {"openai": {}, "one": {"conversation_id": "x"}, "two": {"logprobs": True}},
}


async def stage(site, status):
    """Make the gateway answer with a status; return the key and the model to ask with."""
    if status == 401:
        return "sk-tt-nobody", "chat"
    if status == 404:
        return site.keys["acme"], "none"
    if status == 429:
        assert (await site.chat(tenant="pico")).status == 200
        return site.keys["pico"], "chat"
    if status == 500:
        fault = TaketurnsError("a fault that nobody foresaw")
        site.engines["gpu-0"]._script.extend([ScriptedAnswer(open_error=fault)] * 20)
    if status == 503:
        site.gateway.stop_taking()
    return site.keys["acme"], "chat"


async def raised(kind, call):
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    return caught.value


async def drain(stream):
    return [item async for item in stream]


@pytest.mark.parametrize("status", CASES)
def test_python_clients_raise_the_class_of_each_status(play, status):
    for_openai, for_cohere = CASES[status]
    bad = BAD.get(status, {"openai": {}, "one": {}, "two": {}})

    async def scenario(site):
        key, model = await stage(site, status)
        if for_openai is not None:
            async with openai.AsyncOpenAI(
                base_url=f"{site.url}/v1", api_key=key, max_retries=0
            ) as client:
                ask = client.chat.completions.create
                asked = {"model": model, "messages": HELLO, **bad["openai"]}
                for stream in (False, True):
                    error = await raised(for_openai, ask(**asked, stream=stream))
                    assert error.status_code == status
        async with cohere.AsyncClient(api_key=key, base_url=site.url) as one:
            asked = {"model": model, "message": "hi", "request_options": ONCE, **bad["one"]}
            await raised(for_cohere, one.chat(**asked))
            error = await raised(for_cohere, drain(one.chat_stream(**asked)))
            assert error.status_code == status
        async with cohere.AsyncClientV2(api_key=key, base_url=site.url) as two:
            asked = {"model": model, "messages": HELLO, "request_options": ONCE, **bad["two"]}
            await raised(for_cohere, two.chat(**asked))
            error = await raised(for_cohere, drain(two.chat_stream(**asked)))
            assert set(error.body) >= {"id", "message"}
        assert {record.status for record in site.records} <= {200, status}

    play(scenario, limits=[LIMIT])


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("node") or not (SDK / "node_modules").exists(),
    reason="the npm clients are not installed: make sdks",
)
@pytest.mark.parametrize("play", ["asyncio"], indirect=True)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_npm_clients_raise_the_class_of_each_status(play, status):
    for_openai, for_cohere = CASES[status]

    async def scenario(site):
        key, model = await stage(site, status)
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        env |= {"URL": site.url, "KEY": key, "CHAT": model, "EMBED": "embed"}
        process = await asyncio.create_subprocess_exec(
            "node", str(SDK / "clients.mjs"), "errors", env=env, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        seen = json.loads(printed)
        told = [for_cohere.__name__, status]
        assert seen == {
            "openai": [for_openai.__name__, status],
            "one": told,
            "two": told,
            "two_stream": told,
        }

    play(scenario, limits=[LIMIT])
