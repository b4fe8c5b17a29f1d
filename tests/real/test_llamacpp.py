# SPDX-License-Identifier: Apache-2.0
"""A real engine behind the gateway: llama.cpp's own server, its streams, its counts, its slots."""

import asyncio
import contextlib
import functools

import aiohttp
import openai
import pytest
from e2e.process import SAFETY_S
from real.engines import ADMIN_TOKEN, gateway, llamacpp, tiny_model

from taketurns.engines.weights import SMOLLM2_MODEL, missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SMOLLM2_MODEL in missing(), reason="the embedded models are not installed"),
]

LONG = {"model": "tiny", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
SAY = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the addresses of an engine with one slot and of the gateway, and the keys."""
    folder = tmp_path_factory.mktemp("llamacpp")
    models = {"tiny": {"endpoints": ["chat", "completions"]}}
    with llamacpp(tiny_model(folder), "tiny", slots=1) as engine:
        models["tiny"]["engines"] = [{"url": engine, "slots": 1, "name": "llama"}]
        with gateway(folder, models, {"acme": {}, "globex": {}}) as (process, keys):
            yield engine, process, keys


def in_loop(test):
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given):
        asyncio.run(test(**given))

    return run


def client(site, tenant="acme"):
    _, process, keys = site
    return openai.AsyncOpenAI(base_url=f"{process.url}/v1", api_key=keys[tenant], max_retries=0)


async def busy(session, engine):
    """Return how many requests the engine says it works on."""
    async with session.get(f"{engine}/metrics") as answer:
        text = await answer.text()
    (line,) = [part for part in text.splitlines() if part.startswith("llamacpp:requests_proc")]
    return float(line.split()[1])


async def chat(api, **fields):
    return await api.chat.completions.create(
        model="tiny", messages=SAY, max_tokens=20, extra_body={"ignore_eos": True}, **fields
    )


@in_loop
async def test_a_whole_answer_carries_the_engines_own_count(site):
    async with client(site) as api:
        answer = await chat(api)
    assert answer.usage.completion_tokens == 20
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("asked", [True, False])
@in_loop
async def test_a_stream_ends_with_a_count_where_the_client_asked_for_it(site, asked):
    options = {"stream_options": {"include_usage": True}} if asked else {}
    async with client(site) as api:
        events = [event async for event in await chat(api, stream=True, **options)]
    counts = [event.usage for event in events if event.usage]
    assert events[0].choices[0].delta.role == "assistant"
    assert [event for event in events if event.choices][-1].choices[0].finish_reason == "length"
    if asked:
        assert counts[-1].completion_tokens == 20
    else:
        assert all(event.choices for event in events)


@in_loop
async def test_hanging_up_frees_the_engines_only_slot(site):
    engine, process, keys = site
    body = LONG | {"messages": SAY}
    headers = {"Authorization": f"Bearer {keys['acme']}"}
    async with asyncio.timeout(SAFETY_S), aiohttp.ClientSession() as session:
        url = f"{process.url}/v1/chat/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            await answer.content.readany()
            assert await busy(session, engine) == 1
            answer.close()
        await until(idle, session, engine)
    async with client(site, "globex") as api:
        assert (await chat(api)).usage.completion_tokens == 20


@in_loop
async def test_who_hangs_up_in_the_queue_never_reaches_the_engine(site):
    engine, process, keys = site
    url = f"{process.url}/v1/chat/completions"
    async with asyncio.timeout(SAFETY_S), aiohttp.ClientSession() as session:
        first = {"Authorization": f"Bearer {keys['acme']}"}
        async with (
            session.post(url, json=LONG | {"messages": SAY}, headers=first) as answer,
            client(site, "globex") as api,
        ):
            await answer.content.readany()
            second = asyncio.create_task(chat(api))
            await until(waiting, session, process)
            second.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await second
            await until(nobody_waits, session, process)
            assert await busy(session, engine) == 1
            answer.close()
        await until(idle, session, engine)


async def idle(session, engine):
    return await busy(session, engine) == 0


async def waiting(session, process):
    """Return whether requests wait in the gateway."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with session.get(f"{process.admin_url}/pools", headers=headers) as answer:
        return (await answer.json())["tiny"]["queued"] > 0


async def nobody_waits(session, process):
    return not await waiting(session, process)


async def until(condition, *subjects):
    """Ask again until a condition holds that no event tells of."""
    while not await condition(*subjects):
        await asyncio.sleep(0.01)
