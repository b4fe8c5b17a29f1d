# SPDX-License-Identifier: Apache-2.0
"""Engines that embed and score are asked as their kind wants; their answers are checked."""

import asyncio
import base64
import math
import struct
from array import array
from collections.abc import Callable, Coroutine

import msgspec
import pytest

from taketurns.engines.batching import REFUSAL_BYTES_MAX, BatchingEngine
from taketurns.engines.embed_formats import OpenAiEmbeddings, Reply, tei_tokens
from taketurns.engines.openai import OpenAiEngine
from taketurns.engines.vectors import BYTES_AT_ONCE
from taketurns.errors import EngineBrokenError, EngineRefusedError, EngineTimeoutError
from taketurns.ports.engine import (
    EmbedAnswer,
    EmbedCall,
    EmbeddingEngine,
    EngineLimits,
    Pair,
    ScoreCall,
    ScoringEngine,
)
from taketurns.testing.engine import FakeEmbeddingEngine, fake_score, fake_vector
from taketurns.testing.http_engine import FakeHttpEngine, Fault


def embed_call(*inputs: str, dimensions: int | None = None) -> EmbedCall:
    return EmbedCall(inputs=inputs, dimensions=dimensions, request_id="r3")


def with_engine(
    run: Callable[[BatchingEngine, FakeHttpEngine], Coroutine[None, None, None]],
    *faults: Fault,
    limits: EngineLimits | None = None,
    kind: str = "openai",
    one_query: bool = False,
) -> None:
    """Run a test's coroutine with an engine whose first requests meet these faults."""

    async def main() -> None:
        async with FakeHttpEngine(dict(enumerate(faults, start=1))) as server:
            limits_ = limits or EngineLimits()
            engine = BatchingEngine(
                OpenAiEngine("e1", server.url, limits=limits_),
                "minilm",
                kind=kind,
                one_query=one_query,
                answer_bytes_max=limits_.answer_bytes_max,
            )
            await engine.start()
            try:
                await run(engine, server)
            finally:
                await engine.aclose()

    asyncio.run(main())


def decoded(body: bytes, count: int) -> EmbedAnswer:
    call = embed_call(*["x"] * count)
    return asyncio.run(OpenAiEmbeddings().answer(Reply(body, {}), call))


def test_it_serves_both_ports() -> None:
    engine = BatchingEngine(OpenAiEngine("e1", "http://h"), "m")
    embedding: EmbeddingEngine = engine
    scoring: ScoringEngine = engine
    assert embedding.name == scoring.name == "e1"


# Embeddings


def test_embeddings_come_back_in_the_order_of_the_inputs() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
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
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(embed_call("one", "two", dimensions=4))
        assert answer.vectors == [fake_vector("one", 4), fake_vector("two", 4)]
        assert b'"dimensions":4' in server.requests[0].body

    with_engine(run, Fault(vectors=way))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["missing", "repeated"])
def test_a_wrong_count_or_index_fails_the_whole_batch(way: str) -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="embeddings can't be used"):
            await engine.embed(embed_call("one", "two"))
        assert len(server.requests) == 1

    with_engine(run, Fault(vectors=way))  # type: ignore[arg-type]


def test_token_ids_are_sent_as_lists() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(EmbedCall([[1, 2, 3], [4]], None, "r3"))
        assert answer.vectors == [fake_vector([1, 2, 3]), fake_vector([4])]
        assert answer.tokens == 4
        assert msgspec.json.decode(server.requests[0].body)["input"] == [[1, 2, 3], [4]]

    with_engine(run)


def test_a_large_answer_is_decoded_like_a_small_one() -> None:
    texts = [f"text {number}" for number in range(1200)]

    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(embed_call(*texts, dimensions=32))
        assert answer.vectors == [fake_vector(text, 32) for text in texts]
        assert sum(map(len, answer.vectors)) > BYTES_AT_ONCE

    with_engine(run)


@pytest.mark.parametrize(
    ("status", "executed"), [(400, False), (429, False), (500, True), (503, False)]
)
def test_a_batch_that_the_engine_refuses_raises_its_status_and_body(
    status: int, executed: bool
) -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineRefusedError) as caught:
            await engine.embed(embed_call("a"))
        error = caught.value
        assert (error.status, error.executed) == (status, executed)
        assert b"staged" in error.body
        assert engine.server.connections == 1
        assert len(server.requests) == 1

    with_engine(run, Fault(status=status))


@pytest.mark.parametrize("cut_at", [None, 40_000])
def test_of_a_refusals_body_only_the_beginning_is_kept(cut_at: int | None) -> None:
    raw = b"HTTP/1.1 500 Error\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000

    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineRefusedError) as caught:
            await engine.embed(embed_call("a"))
        assert caught.value.status == 500
        assert len(caught.value.body) <= (cut_at or REFUSAL_BYTES_MAX)
        assert set(caught.value.body) == {ord("x")}

    with_engine(run, Fault(raw=raw, cut_at=cut_at))


def test_an_answer_larger_than_its_limit_is_broken() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="over 100 bytes"):
            await engine.embed(embed_call("a", "b", "c"))

    with_engine(run, limits=EngineLimits(answer_bytes_max=100))


def test_a_batch_that_meets_a_limit_times_out() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineTimeoutError):
            await engine.embed(embed_call("a"))

    with_engine(run, Fault(stall_at=0), limits=EngineLimits(first_byte_s=0.02))


def test_an_empty_batch_is_a_mistake_of_the_caller() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
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
    answer = decoded(answer_of((1, [0.5, 1]), (0, in_base64(0.25, -1.0))), 2)

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
    assert decoded(answer_of((0, [1.0]), usage=usage), 1).tokens == tokens


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
    with pytest.raises((ValueError, RecursionError), match=r"."):
        decoded(body, 1)


def test_vectors_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        decoded(answer_of((0, [1.0]), (1, [1.0, 2.0])), 2)


def test_the_largest_finite_numbers_pass() -> None:
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

    answer = decoded(answer_of((0, in_base64(*[largest] * 4096))), 1)

    assert array("f", answer.vectors[0]) == array("f", [largest] * 4096)


def test_fake_and_real_engine_agree_on_embeddings() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        call = embed_call("one", "two words", "", dimensions=5)
        assert await engine.embed(call) == await FakeEmbeddingEngine().embed(call)

    with_engine(run)


# Other kinds and scores


PAIRS = [Pair("q", "one"), Pair("q", "two words"), Pair("other q", "three")]
ONE_QUERY = [Pair("q", "one"), Pair("q", "two words"), Pair("q", "three")]
SCORING = [
    ("vllm", False, "/v1/score"),
    ("openai", False, "/v1/score"),
    ("tei", False, "/predict"),
    ("vllm", True, "/v1/rerank"),
    ("llamacpp", True, "/v1/rerank"),
    ("infinity", True, "/v1/rerank"),
    ("tei", True, "/rerank"),
]


@pytest.mark.parametrize(("kind", "one_query", "path"), SCORING)
def test_scores_come_back_in_the_order_of_the_pairs(kind, one_query, path) -> None:
    pairs = ONE_QUERY if one_query else PAIRS

    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        answer = await engine.score(ScoreCall(pairs, "r4"))
        assert list(answer.scores) == [fake_score(*pair) for pair in pairs]
        # What infinity counts are characters.
        words = sum(len(text.split()) for pair in pairs for text in pair)
        assert answer.tokens == (None if kind == "infinity" else words)
        assert server.requests[0].target == path

    with_engine(run, kind=kind, one_query=one_query)


@pytest.mark.parametrize(("kind", "one_query", "path"), SCORING)
@pytest.mark.parametrize("way", ["missing", "repeated"])
def test_a_wrong_count_or_index_of_scores_fails_the_whole_batch(kind, one_query, path, way) -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="scores can't be used"):
            await engine.score(ScoreCall(ONE_QUERY, "r4"))

    if (path, way) != ("/predict", "repeated"):
        with_engine(run, Fault(vectors=way), kind=kind, one_query=one_query)


@pytest.mark.parametrize(
    "body",
    [
        b'[[{"label":"a","score":0.5},{"label":"b","score":0.5}]]',
        b"[[]]",
        b'[[{"label":"a","score":1e999}]]',
        b'[[{"label":"a"}]]',
        b"{}",
        b"[" * 100_000,
    ],
)
def test_a_prediction_that_is_not_one_score_is_broken(body: bytes) -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(EngineBrokenError, match="scores can't be used"):
            await engine.score(ScoreCall(PAIRS[:1], "r4"))

    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with_engine(run, Fault(raw=head + body), kind="tei")


def test_tei_is_asked_on_its_own_route_and_tells_tokens_in_a_header() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        answer = await engine.embed(EmbedCall(["one", "two words"], None, "r3", "start"))
        assert answer == EmbedAnswer([fake_vector("one"), fake_vector("two words")], 3)
        assert server.requests[0].target == "/embed"
        assert msgspec.json.decode(server.requests[0].body) == {
            "inputs": ["one", "two words"],
            "truncate": True,
            "truncation_direction": "Left",
        }
        with pytest.raises(EngineBrokenError, match="1 results came for 2 items"):
            await engine.embed(embed_call("one", "two"))

    with_engine(run, Fault(), Fault(vectors="missing"), kind="tei")


@pytest.mark.parametrize(("kind", "sent"), [("vllm", True), ("openai", False)])
def test_an_engine_is_told_to_cut_only_where_it_can(kind: str, sent: bool) -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        await engine.embed(EmbedCall(["one"], None, "r3", "end"))
        await engine.embed(EmbedCall(["one"], None, "r3", "start"))
        await engine.score(ScoreCall(PAIRS, "r3", "end"))
        told = [b'"truncate_prompt_tokens":-1' in request.body for request in server.requests]
        assert told == [sent, False, sent]

    with_engine(run, kind=kind)


def test_an_empty_batch_of_pairs_is_a_mistake_of_the_caller() -> None:
    async def run(engine: BatchingEngine, server: FakeHttpEngine) -> None:
        with pytest.raises(ValueError, match="at least one"):
            await engine.score(ScoreCall([], "r4"))

    with_engine(run)


@pytest.mark.parametrize("told", ["", "x", "-5", "9" * 40, "²"])
def test_a_count_of_tokens_that_is_none_is_left_out(told: str) -> None:
    assert tei_tokens({"x-compute-tokens": told}) is None
