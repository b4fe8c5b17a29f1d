# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible engine: calls arrive as they should and answers are checked."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from taketurns.engines.openai import OpenAiEngine
from taketurns.errors import EngineBrokenError, EngineUnavailableError, StartError
from taketurns.ports.engine import (
    EmbedCall,
    EngineLimits,
    GenerationAnswer,
    GenerationCall,
    GenerationEngine,
)
from taketurns.testing.engine import (
    FakeEmbeddingEngine,
    FakeGenerationEngine,
    ScriptedAnswer,
    chat_answer,
)
from taketurns.testing.http_engine import FakeHttpEngine, Fault

CHAT = GenerationCall("/v1/chat/completions", b'{"model":"m","messages":[]}', False, "r1")
STREAM = GenerationCall(
    "/v1/chat/completions", b'{"model":"m","messages":[],"stream":true}', True, "r2"
)


def embed_call(*inputs: str, dimensions: int | None = None) -> EmbedCall:
    return EmbedCall(inputs=inputs, dimensions=dimensions, request_id="r3")


def with_engine(
    run: Callable[[OpenAiEngine, FakeHttpEngine], Coroutine[None, None, None]],
    *faults: Fault,
    path: str = "",
    key: str = "",
    limits: EngineLimits | None = None,
) -> None:
    """Run a test's coroutine with an engine whose first requests meet these faults."""

    async def main() -> None:
        async with FakeHttpEngine(dict(enumerate(faults, start=1))) as server:
            engine = OpenAiEngine("e1", server.url + path, key=key, limits=limits)
            await engine.start()
            try:
                await run(engine, server)
            finally:
                await engine.aclose()

    asyncio.run(main())


async def body_of(answer: GenerationAnswer) -> bytes:
    return b"".join([chunk async for chunk in answer.chunks()])


def test_it_serves_its_port() -> None:
    generation: GenerationEngine = OpenAiEngine("e1", "http://h")
    assert generation.name == "e1"


# Generation


def test_a_chat_is_sent_as_it_is_and_its_answer_handed_on() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.open(CHAT)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert await body_of(answer) == chat_answer("one two three")
        request = server.requests[0]
        assert (request.method, request.target) == ("POST", "/v1/chat/completions")
        assert request.body == CHAT.body
        assert request.id == "r1"
        assert request.headers["content-type"] == "application/json"
        assert "authorization" not in request.headers

    with_engine(run)


def test_a_stream_is_handed_on_byte_for_byte() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.open(STREAM)
        assert (await body_of(answer)).endswith(b"data: [DONE]\n\n")
        assert server.requests[0].headers["accept"] == "text/event-stream"

    with_engine(run)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/v1/", "/v1/chat/completions"),
        ("/llm", "/llm/v1/chat/completions"),
        ("/llm/v1", "/llm/v1/chat/completions"),
        ("/av1", "/av1/v1/chat/completions"),
    ],
)
def test_the_url_may_have_a_prefix_and_its_v1(path: str, target: str) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        await body_of(await engine.open(CHAT))
        assert server.requests[0].target == target

    with_engine(run, path=path)


def test_the_engines_own_key_is_sent() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        await body_of(await engine.open(CHAT))
        assert server.requests[0].headers["authorization"] == "Bearer sk-1"

    with_engine(run, key="sk-1")


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_generation_that_the_engine_refuses_is_handed_on_with_its_status(status: int) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.open(CHAT)
        assert answer.status == status
        assert answer.headers["retry-after"] == "7"
        assert b"staged" in await body_of(answer)
        assert engine.connections == 1
        assert len(server.requests) == 1

    with_engine(run, Fault(status=status, headers={"Retry-After": "7"}))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        for _ in range(2):
            with pytest.raises(EngineBrokenError, match=f"redirect .{status}."):
                await engine.open(CHAT)
        assert len(server.requests) == 2

    fault = Fault(status=status, headers={"Location": "http://169.254.169.254/latest"})
    with_engine(run, fault, fault)


def test_a_compressed_answer_is_broken() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="compressed"):
            await engine.open(CHAT)
        assert len(server.requests) == 1

    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n"
    with_engine(run, Fault(raw=raw))


def test_a_path_that_cannot_be_sent_is_refused_before_anything_is() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(ValueError, match="target"):
            await engine.open(GenerationCall("/v1/x\r\nX: y", b"{}", False, "r1"))
        assert server.requests == []

    with_engine(run)


def test_closing_a_stream_before_its_end_reaches_the_engine() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.open(STREAM)
        await answer.aclose()
        await server.cancelled.reached(1)
        assert list(server.cancelled) == ["r2"]
        assert engine.connections == 0

    with_engine(run, Fault(stall_at=300))


# Start


@pytest.mark.parametrize(
    ("url", "key"),
    [("h:8000", ""), ("http://h?x", ""), ("http://u:p@h", ""), ("http://h", "a\nb"), ("", "")],
)
def test_settings_that_cannot_work_stop_the_start(url: str, key: str) -> None:
    with pytest.raises(StartError, match="engine e1"):
        asyncio.run(OpenAiEngine("e1", url, key=key).start())


def test_a_key_is_never_part_of_an_error() -> None:
    with pytest.raises(StartError) as caught:
        asyncio.run(OpenAiEngine("e1", "http://h", key="sk-secret\n").start())

    assert "secret" not in str(caught.value) + caught.value.hint


def test_an_engine_may_start_before_its_server() -> None:
    async def main() -> None:
        server = FakeHttpEngine()
        async with server:
            await server.refuse()
            engine = OpenAiEngine("e1", server.url)
            await engine.start()
            with pytest.raises(EngineUnavailableError):
                await engine.open(CHAT)
            await server.listen()
            assert (await engine.open(CHAT)).status == 200
            await engine.aclose()

    asyncio.run(main())


def test_a_call_before_the_start_sends_nothing() -> None:
    with pytest.raises(EngineUnavailableError, match="not started"):
        asyncio.run(OpenAiEngine("e1", "http://h").open(CHAT))


# The fakes keep the ports' contracts too


def test_a_fake_engine_holds_counts_and_cancels() -> None:
    async def main() -> None:
        engine = FakeGenerationEngine(script=[ScriptedAnswer([b"a", b"b"], status=201)])
        port: GenerationEngine = engine
        engine.hold()
        loop = asyncio.get_running_loop()
        first = loop.create_task(port.open(CHAT))
        await engine.executed.reached(1)
        engine.release()
        answer = await first
        assert answer.status == 201
        assert await body_of(answer) == b"ab"
        engine.body_gate.hold()
        second = await port.open(STREAM)
        await second.aclose()
        engine.hold()
        third = loop.create_task(port.open(CHAT))
        await engine.executed.reached(3)
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        assert list(engine.executed) == ["r1", "r2", "r1"]
        assert list(engine.completed) == ["r1"]
        assert list(engine.cancelled) == ["r2", "r1"]

    asyncio.run(main())


def test_a_scripted_refusal_to_connect_counts_as_not_executed() -> None:
    async def main() -> None:
        gone = EngineUnavailableError("fake", "gone")
        generation = FakeGenerationEngine(script=[ScriptedAnswer(open_error=gone)])
        embedding = FakeEmbeddingEngine(script=[gone])
        with pytest.raises(EngineUnavailableError):
            await generation.open(CHAT)
        with pytest.raises(EngineUnavailableError):
            await embedding.embed(embed_call("a"))
        assert len(generation.executed) == len(embedding.executed) == 0
        assert (await embedding.embed(embed_call("a b"))).tokens == 2
        assert list(embedding.executed) == list(embedding.completed) == ["r3"]

    asyncio.run(main())
