# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible engine: calls arrive as they should and answers are checked."""

import asyncio
import base64
import math
import struct
from array import array
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from taketurns.engines.openai import (
    DECODE_IN_THREAD_BYTES,
    REFUSAL_BYTES_MAX,
    OpenAiEngine,
    decode_embeddings,
)
from taketurns.errors import (
    EngineBrokenError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
    StartError,
)
from taketurns.ports.engine import (
    EmbedCall,
    EmbeddingEngine,
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
    fake_vector,
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
            engine = OpenAiEngine(
                "e1", server.url + path, key=key, embed_model="minilm", limits=limits
            )
            await engine.start()
            try:
                await run(engine, server)
            finally:
                await engine.aclose()

    asyncio.run(main())


async def body_of(answer: GenerationAnswer) -> bytes:
    return b"".join([chunk async for chunk in answer.chunks()])


def test_it_serves_both_ports() -> None:
    engine = OpenAiEngine("e1", "http://h")
    generation: GenerationEngine = engine
    embedding: EmbeddingEngine = engine
    assert generation.name == embedding.name == "e1"


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
        await engine.embed(embed_call("a"))
        assert [r.headers["authorization"] for r in server.requests] == ["Bearer sk-1"] * 2

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
                await (engine.open(CHAT) if server.requests else engine.embed(embed_call("a")))
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


# Embeddings


def test_embeddings_come_back_in_the_order_of_the_inputs() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(embed_call("one", "two words", "three"))
        assert answer.vectors == [fake_vector(text) for text in ("one", "two words", "three")]
        assert answer.tokens == 4
        assert msgspec.json.decode(server.requests[0].body) == {
            "model": "minilm",
            "input": ["one", "two words", "three"],
            "encoding_format": "base64",
        }
        assert server.requests[0].target == "/v1/embeddings"

    with_engine(run)


@pytest.mark.parametrize("way", ["reversed", "numbers"])
def test_the_order_and_the_notation_of_an_answer_do_not_matter(way: str) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(embed_call("one", "two", dimensions=4))
        assert answer.vectors == [fake_vector("one", 4), fake_vector("two", 4)]
        assert b'"dimensions":4' in server.requests[0].body

    with_engine(run, Fault(vectors=way))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["missing", "repeated"])
def test_a_wrong_count_or_index_fails_the_whole_batch(way: str) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="embeddings can't be used"):
            await engine.embed(embed_call("one", "two"))
        assert len(server.requests) == 1

    with_engine(run, Fault(vectors=way))  # type: ignore[arg-type]


def test_token_ids_are_sent_as_lists() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(EmbedCall([[1, 2, 3], [4]], None, "r3"))
        assert answer.vectors == [fake_vector([1, 2, 3]), fake_vector([4])]
        assert answer.tokens == 4
        assert msgspec.json.decode(server.requests[0].body)["input"] == [[1, 2, 3], [4]]

    with_engine(run)


def test_a_large_answer_is_decoded_like_a_small_one() -> None:
    texts = [f"text {number}" for number in range(1200)]

    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(embed_call(*texts, dimensions=32))
        assert answer.vectors == [fake_vector(text, 32) for text in texts]
        assert sum(map(len, answer.vectors)) > DECODE_IN_THREAD_BYTES

    with_engine(run)


@pytest.mark.parametrize(
    ("status", "executed"), [(400, False), (429, False), (500, True), (503, False)]
)
def test_a_batch_that_the_engine_refuses_raises_its_status_and_body(
    status: int, executed: bool
) -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineRefusedError) as caught:
            await engine.embed(embed_call("a"))
        error = caught.value
        assert (error.status, error.executed) == (status, executed)
        assert b"staged" in error.body
        assert engine.connections == 1
        assert len(server.requests) == 1

    with_engine(run, Fault(status=status))


@pytest.mark.parametrize("cut_at", [None, 40_000])
def test_of_a_refusals_body_only_the_beginning_is_kept(cut_at: int | None) -> None:
    raw = b"HTTP/1.1 500 Error\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000

    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineRefusedError) as caught:
            await engine.embed(embed_call("a"))
        assert caught.value.status == 500
        assert len(caught.value.body) <= (cut_at or REFUSAL_BYTES_MAX)
        assert set(caught.value.body) == {ord("x")}

    with_engine(run, Fault(raw=raw, cut_at=cut_at))


def test_an_answer_larger_than_its_limit_is_broken() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="over 100 bytes"):
            await engine.embed(embed_call("a", "b", "c"))

    with_engine(run, limits=EngineLimits(answer_bytes_max=100))


def test_a_batch_that_meets_a_limit_times_out() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineTimeoutError):
            await engine.embed(embed_call("a"))

    with_engine(run, Fault(stall_at=0), limits=EngineLimits(first_byte_s=0.02))


def test_an_empty_batch_is_a_mistake_of_the_caller() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(ValueError, match="at least one"):
            await engine.embed(embed_call())

    with_engine(run)


# Decoding


def answer_of(*items: tuple[object, object], usage: object = None) -> bytes:
    data = [{"index": index, "embedding": embedding} for index, embedding in items]
    fields: dict[str, object] = {"object": "list", "data": data}
    if usage is not None:
        fields["usage"] = usage
    return msgspec.json.encode(fields)


def in_base64(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def test_base64_and_numbers_may_be_mixed() -> None:
    answer = decode_embeddings(answer_of((1, [0.5, 1]), (0, in_base64(0.25, -1.0))), 2)

    assert answer.vectors == [struct.pack("<2f", 0.25, -1.0), struct.pack("<2f", 0.5, 1.0)]
    assert answer.tokens is None


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 5, "total_tokens": 5}, 5),
        ({"prompt_tokens": 0}, 0),
        ({"total_tokens": 5}, None),
        ({"prompt_tokens": None}, None),
        ({"prompt_tokens": -1}, None),
        (None, None),
    ],
)
def test_tokens_are_those_of_the_prompt_or_none(usage: object, tokens: int | None) -> None:
    assert decode_embeddings(answer_of((0, [1.0]), usage=usage), 1).tokens == tokens


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b"[]",
        b"null",
        b'{"data":null}',
        b'{"data":[1]}',
        b'{"data":[{"index":0}]}',
        b'{"data":[{"embedding":[1.0]}]}',
        b'{"data":[{"index":0,"embedding":[NaN]}]}',
        b'{"data":[{"index":0,"embedding":[1e400]}]}',
        b'{"data":[{"index":0,"embedding":[[1.0]]}]}',
        b'{"data":[{"index":0,"embedding":["1"]}]}',
        b'{"data":[{"index":0,"embedding":[true]}]}',
        b'{"data":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
        answer_of(),
        answer_of((0, [1.0]), (1, [1.0])),
        answer_of((1, [1.0])),
        answer_of((-1, [1.0])),
        answer_of((0.5, [1.0])),
        answer_of(("0", [1.0])),
        answer_of((True, [1.0])),
        answer_of((0, [])),
        answer_of((0, "")),
        answer_of((0, [1e39])),
        answer_of((0, "====")),
        answer_of((0, "AAA")),
        answer_of((0, "AAAA")),
        answer_of((0, "AACA\nPw==")),
        answer_of((0, "é")),
        answer_of((0, in_base64(1.0, math.nan))),
        answer_of((0, in_base64(math.inf, -math.inf))),
        b'{"data":[{"index":0,"embedding":"\xff"}]}',
    ],
)
def test_an_answer_that_is_not_one_vector_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_embeddings(body, 1)


def test_vectors_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        decode_embeddings(answer_of((0, [1.0]), (1, [1.0, 2.0])), 2)


def test_the_largest_finite_numbers_pass() -> None:
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

    answer = decode_embeddings(answer_of((0, in_base64(*[largest] * 4096))), 1)

    assert array("f", answer.vectors[0]) == array("f", [largest] * 4096)


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


def test_fake_and_real_engine_agree_on_embeddings() -> None:
    async def run(engine: OpenAiEngine, server: FakeHttpEngine) -> None:
        call = embed_call("one", "two words", "", dimensions=5)
        assert await engine.embed(call) == await FakeEmbeddingEngine().embed(call)

    with_engine(run)
