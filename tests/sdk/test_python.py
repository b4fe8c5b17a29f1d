# SPDX-License-Identifier: Apache-2.0
"""The official Python clients, each call sync and async, against the embedded models."""

import asyncio
import base64
import inspect
from array import array

import cohere
import openai
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.embedded]

HELLO = [{"role": "user", "content": "Say one word."}]
TOKENS = {"max_tokens": 4, "temperature": 0}

CLIENTS = {
    "openai": (openai.OpenAI, openai.AsyncOpenAI),
    "v1": (cohere.Client, cohere.AsyncClient),
    "v2": (cohere.ClientV2, cohere.AsyncClientV2),
}


def make(kind, served, *, of):
    made = CLIENTS[of][kind]
    key = served.keys["acme"]
    return made(api_key=key, base_url=served.url + ("/v1" if of == "openai" else ""), timeout=60)


async def settled(value):
    return await value if inspect.isawaitable(value) else value


async def listed(stream):
    stream = await settled(stream)
    if hasattr(stream, "__aiter__"):
        return [item async for item in stream]
    return list(stream)


def play(scenario, kind, served, of):
    """Run one scenario with a client; the synchronous one blocks the loop, which has no more."""
    client = make(kind, served, of=of)

    async def run():
        if hasattr(client, "__aenter__"):
            async with client as opened:
                await scenario(opened)
        else:
            with client as opened:
                await scenario(opened)

    asyncio.run(run())


both = pytest.mark.parametrize("kind", [0, 1], ids=["sync", "async"])


@both
def test_openai_chats_completes_embeds_and_lists(served, kind):
    async def scenario(client):
        chat = client.chat.completions
        said = await settled(chat.create(model="smollm2", messages=HELLO, **TOKENS))
        assert said.usage.completion_tokens == 4
        pieces = await listed(chat.create(model="smollm2", messages=HELLO, stream=True, **TOKENS))
        text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        assert text == said.choices[0].message.content
        options = {"stream": True, "stream_options": {"include_usage": True}}
        counted = await listed(chat.create(model="smollm2", messages=HELLO, **options, **TOKENS))
        assert counted[-1].usage.completion_tokens == 4
        more = await settled(
            client.completions.create(model="smollm2", prompt="One, two,", **TOKENS)
        )
        assert more.choices[0].text
        vectors = await settled(client.embeddings.create(model="minilm", input=["a", "b"]))
        assert [len(item.embedding) for item in vectors.data] == [384, 384]
        models = await listed(client.models.list())
        assert [model.id for model in models] == ["smollm2", "minilm"]
        assert (await settled(client.models.retrieve("minilm"))).id == "minilm"

    play(scenario, kind, served, "openai")


@both
def test_cohere_version_2_chats_embeds_and_reranks(served, kind):
    async def scenario(co):
        said = await settled(co.chat(model="smollm2", messages=HELLO, **TOKENS))
        assert said.finish_reason == "MAX_TOKENS"
        assert said.usage.tokens.output_tokens == 4
        events = await listed(co.chat_stream(model="smollm2", messages=HELLO, **TOKENS))
        text = "".join(e.delta.message.content.text for e in events if e.type == "content-delta")
        assert text == said.message.content[0].text
        assert [event.type for event in events][-2:] == ["content-end", "message-end"]
        typed = await settled(
            co.embed(
                model="minilm",
                texts=["a cat", "cats"],
                input_type="search_document",
                embedding_types=["float", "int8", "base64"],
            )
        )
        first = typed.embeddings.float_[0]
        assert array("f", base64.b64decode(typed.embeddings.base64[0])).tolist() == first
        assert len(first) == len(typed.embeddings.int8[0]) == 384
        cut = await settled(
            co.embed(model="minilm", texts=["cat " * 900], input_type="search_query", max_tokens=16)
        )
        assert cut.meta.billed_units.input_tokens == 16
        ranked = await settled(
            co.rerank(model="minilm", query="a cat", documents=["stone", "cats"], top_n=1)
        )
        assert [item.index for item in ranked.results] == [1]

    play(scenario, kind, served, "v2")


def test_cohere_cuts_long_texts_where_it_is_told_to(served):
    async def scenario(co):
        def embed(*texts, **more):
            asked = {"model": "minilm", "input_type": "search_document", **more}
            return co.embed(texts=list(texts), **asked).embeddings.float_

        cats, stones = embed("cat " * 200, "stone " * 200)
        long = "cat " * 600 + "stone " * 600

        def like(vector, other):
            return sum(a * b for a, b in zip(vector, other, strict=True))

        (kept_begin,), (kept_end,) = embed(long), embed(long, truncate="START")
        assert like(kept_begin, cats) > 0.8 > like(kept_begin, stones)
        assert like(kept_end, stones) > 0.8 > like(kept_end, cats)
        assert embed(long, truncate="END") == [kept_begin]
        for more in ({}, {"max_tokens": 16}):
            with pytest.raises(cohere.BadRequestError, match="tokens"):
                embed(long, truncate="NONE", **more)

    play(scenario, 0, served, "v2")


@both
def test_cohere_version_1_chats_embeds_reranks_and_tokenizes(served, kind):
    async def scenario(co):
        said = await settled(co.chat(model="smollm2", message="Say one word.", **TOKENS))
        assert said.finish_reason == "MAX_TOKENS"
        assert [turn.role for turn in said.chat_history] == ["USER", "CHATBOT"]
        again = await settled(
            co.chat(message="And one more?", chat_history=said.chat_history, **TOKENS)
        )
        assert again.meta.tokens.input_tokens > said.meta.tokens.input_tokens
        events = await listed(co.chat_stream(model="smollm2", message="Say one word.", **TOKENS))
        assert events[-1].response.text == said.text
        vectors = await settled(
            co.embed(model="minilm", texts=["a"] * 100, input_type="clustering")
        )
        assert len(vectors.embeddings) == 100
        ranked = await settled(
            co.rerank(model="minilm", query="a cat", documents=["stone", "cats"])
        )
        assert [item.index for item in ranked.results] == [1, 0]
        tokens = await settled(co.tokenize(text="a cat", model="minilm", offline=False))
        assert tokens.token_strings == ["a", "cat"]
        back = await settled(co.detokenize(tokens=tokens.tokens, model="minilm", offline=False))
        assert back.text == "a cat"
        models = await settled(co.models.list())
        assert [model.name for model in models.models] == ["smollm2", "minilm"]

    play(scenario, kind, served, "v1")
