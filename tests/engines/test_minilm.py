# SPDX-License-Identifier: Apache-2.0
"""The embedded MiniLM gives sensible vectors, refuses what it can not embed, frees the loop."""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from taketurns.engines.minilm import DIMENSIONS, TOKENS_MAX, MiniLmEngine, MiniLmTokenizer
from taketurns.errors import EngineBrokenError, EngineRefusedError, EngineUnavailableError
from taketurns.ports.engine import EmbedAnswer, EmbedCall, EmbedInput

pytestmark = pytest.mark.embedded

TEXTS = [
    "What is the capital of France?",
    "Paris is the capital of France.",
    "Bananas are yellow and sweet.",
    "The scheduler gives every tenant one turn in each round, so that nobody waits for long.",
    "hi",
]

# The same text differs between batches by float32's rounding only: the model
# scales its int8 activations for each row of a batch by itself.
BATCH_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def engine() -> Iterator[MiniLmEngine]:
    engine = MiniLmEngine("minilm")
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.aclose())


@pytest.fixture(scope="module")
def tokenizer() -> MiniLmTokenizer:
    return MiniLmTokenizer()


def call(*inputs: EmbedInput, dimensions: int | None = None) -> EmbedCall:
    return EmbedCall(inputs=inputs, dimensions=dimensions, request_id="test")


def run(coroutine: Coroutine[Any, Any, EmbedAnswer]) -> EmbedAnswer:
    return asyncio.run(coroutine)


def matrix(answer: EmbedAnswer) -> np.ndarray:
    return np.stack([np.frombuffer(vector, "<f4") for vector in answer.vectors])


def refusal(engine: MiniLmEngine, *inputs: EmbedInput, dimensions: int | None = None) -> Any:
    with pytest.raises(EngineRefusedError) as caught:
        asyncio.run(engine.embed(call(*inputs, dimensions=dimensions)))
    assert caught.value.status == 400
    return json.loads(caught.value.body)["error"]


def test_paris_is_closer_to_france_than_bananas_are(engine: MiniLmEngine) -> None:
    france, paris, bananas = matrix(run(engine.embed(call(*TEXTS[:3]))))
    assert france @ paris > 0.7
    assert france @ bananas < 0.2


def test_vectors_have_length_one_and_the_models_dimensions(engine: MiniLmEngine) -> None:
    vectors = matrix(run(engine.embed(call(*TEXTS))))
    assert vectors.shape == (len(TEXTS), DIMENSIONS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_ids_and_their_text_give_the_same_vector(
    engine: MiniLmEngine, tokenizer: MiniLmTokenizer
) -> None:
    by_text = run(engine.embed(call(*TEXTS)))
    by_ids = run(engine.embed(call(*tokenizer.encode(TEXTS))))
    assert by_ids == by_text


def test_texts_and_ids_may_be_mixed_in_one_batch(
    engine: MiniLmEngine, tokenizer: MiniLmTokenizer
) -> None:
    (ids,) = tokenizer.encode([TEXTS[1]])
    mixed = matrix(run(engine.embed(call(TEXTS[0], ids, TEXTS[2]))))
    np.testing.assert_allclose(mixed, matrix(run(engine.embed(call(*TEXTS[:3])))), atol=1e-6)


def test_a_text_gets_the_same_vector_alone_and_in_a_batch(engine: MiniLmEngine) -> None:
    together = matrix(run(engine.embed(call(*TEXTS))))
    alone = np.concatenate([matrix(run(engine.embed(call(text)))) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=BATCH_TOLERANCE)


def test_vectors_come_in_the_order_of_the_inputs_over_several_runs(engine: MiniLmEngine) -> None:
    # Long and short texts in turn, too many for one run of the model.
    texts = [f"number {n} " + "of a long list of many words " * (n % 2 * 25) for n in range(40)]
    vectors = matrix(run(engine.embed(call(*texts))))
    for index in (0, 1, 20, 39):
        alone = matrix(run(engine.embed(call(texts[index]))))[0]
        np.testing.assert_allclose(vectors[index], alone, atol=BATCH_TOLERANCE)


def test_fewer_dimensions_are_the_first_ones_scaled_to_length_one(engine: MiniLmEngine) -> None:
    whole = matrix(run(engine.embed(call(*TEXTS))))[:, :64]
    cut = matrix(run(engine.embed(call(*TEXTS, dimensions=64))))
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    np.testing.assert_allclose(cut, expected, atol=1e-6)


def test_tokens_are_those_of_the_texts_without_padding(
    engine: MiniLmEngine, tokenizer: MiniLmTokenizer
) -> None:
    answer = run(engine.embed(call(*TEXTS)))
    assert answer.tokens == sum(len(ids) for ids in tokenizer.encode(TEXTS))


def test_the_tokenizer_adds_special_tokens_and_neither_cuts_nor_pads(
    tokenizer: MiniLmTokenizer,
) -> None:
    short, long = tokenizer.encode(["hi", "word " * 600])
    assert (len(short), len(long)) == (3, 602)
    assert {ids[0] for ids in (short, long)} == {101}
    assert {ids[-1] for ids in (short, long)} == {102}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ([101, 30522, 102], "token id outside 0 to 30521"),
        ([101, -1, 102], "token id outside 0 to 30521"),
        ([], "has no token"),
        ("word " * 300, f"has 302 tokens; at most {TOKENS_MAX} are taken"),
    ],
)
def test_a_bad_item_is_refused_by_its_index(
    engine: MiniLmEngine, bad: str | Sequence[int], problem: str
) -> None:
    error = refusal(engine, "good", bad, "good")
    assert error["param"] == "input[1]"
    assert problem in error["message"]


@pytest.mark.parametrize("dimensions", [-1, DIMENSIONS + 1])
def test_dimensions_out_of_range_are_refused(engine: MiniLmEngine, dimensions: int) -> None:
    assert refusal(engine, "good", dimensions=dimensions)["param"] == "dimensions"


def test_a_batch_without_items_is_refused(engine: MiniLmEngine) -> None:
    assert refusal(engine)["param"] == "input"


def test_the_event_loop_runs_while_a_batch_is_computed(engine: MiniLmEngine) -> None:
    async def scenario() -> int:
        turns = 0
        batch = asyncio.ensure_future(engine.embed(call(*TEXTS * 8)))
        while not batch.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    # Were it computed on the loop, the loop would turn a handful of times.
    assert asyncio.run(scenario()) > 20


def test_a_cancelled_batch_leaves_the_engine_usable(engine: MiniLmEngine) -> None:
    async def scenario() -> EmbedAnswer:
        first, second = (asyncio.ensure_future(engine.embed(call(*TEXTS * 40))) for _ in "ab")
        after = asyncio.ensure_future(engine.embed(call("hi")))
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        return await after

    assert len(asyncio.run(scenario()).vectors) == 1


def test_more_calls_than_may_wait_are_refused_unexecuted() -> None:
    async def scenario() -> None:
        engine = MiniLmEngine("narrow", waiting_max=0)
        await engine.start()
        first = asyncio.ensure_future(engine.embed(call(*TEXTS * 8)))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError, match="as many calls waiting"):
            await engine.embed(call("hi"))
        await first
        await engine.aclose()

    asyncio.run(scenario())


def test_closing_ends_what_runs_and_what_waits() -> None:
    async def scenario() -> list[EmbedAnswer | BaseException]:
        engine = MiniLmEngine("closing")
        await engine.start()
        calls = [asyncio.ensure_future(engine.embed(call(*TEXTS * 60))) for _ in range(3)]
        await asyncio.sleep(0)
        await engine.aclose()
        with pytest.raises(EngineUnavailableError):
            await engine.embed(call("hi"))
        return await asyncio.gather(*calls, return_exceptions=True)

    for result in asyncio.run(scenario()):
        assert isinstance(result, EngineBrokenError | EngineUnavailableError)
        assert "closed" in str(result)


def test_an_engine_that_has_not_started_sends_nothing() -> None:
    with pytest.raises(EngineUnavailableError, match="has not started"):
        asyncio.run(MiniLmEngine("early").embed(call("hi")))
