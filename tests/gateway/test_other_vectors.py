# SPDX-License-Identifier: Apache-2.0
"""Jina's, vLLM's and TEI's paths: each answers, and errs, in its own form."""

import math
from array import array

import pytest

from taketurns.testing.engine import fake_vector


@pytest.fixture
def vectors(embed_model):
    return {"embed": embed_model(endpoints=["embeddings", "rerank"])}


def unit(text):
    numbers = array("f", fake_vector(text)).tolist()
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def cosine(one, other):
    return pytest.approx(sum(a * b for a, b in zip(unit(one), unit(other), strict=True)))


def test_tei_embeds_without_a_models_name(play, vectors):
    async def scenario(site):
        reply = await site.post("/embed", {"inputs": ["a", "b"], "truncate": None})
        assert reply.json == [pytest.approx(unit("a")), pytest.approx(unit("b"))]
        one = await site.post("/embed", {"inputs": "a", "model": "embed"})
        assert one.json == [pytest.approx(unit("a"))]
        cohere = await site.post("/embed", {"texts": ["a"]})
        assert cohere.json["response_type"] == "embeddings_floats"

    play(scenario, models=vectors)


def test_tei_reranks_where_the_body_has_texts_and_jina_where_it_has_documents(play, vectors):
    async def scenario(site):
        tei = await site.post("/rerank", {"query": "a", "texts": ["b", "a"], "return_text": True})
        assert tei.json == [
            {"index": 1, "score": pytest.approx(1), "text": "a"},
            {"index": 0, "score": cosine("a", "b"), "text": "b"},
        ]
        body = {"query": "a", "documents": ["b", {"text": "a"}]}
        for path in ("/rerank", "/v1/rerank"):
            jina = await site.post(path, body)
            assert [item["index"] for item in jina.json["results"]] == [1, 0]
            assert jina.json["results"][0]["document"] == {"text": "a"}
            assert jina.json["model"] == "embed"

    play(scenario, models=vectors)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score_takes_one_against_many_or_pair_by_pair(play, vectors, path):
    async def scenario(site):
        many = await site.post(path, {"model": "embed", "text_1": "a", "text_2": ["b", "a"]})
        assert [item["score"] for item in many.json["data"]] == [cosine("a", "b"), pytest.approx(1)]
        pairs = await site.post(path, {"queries": ["a", "b"], "documents": ["a", "c"]})
        scores = [item["score"] for item in pairs.json["data"]]
        assert scores == [pytest.approx(1), cosine("b", "c")]

    play(scenario, models=vectors)


def test_errors_have_each_dialects_form(play, vectors):
    async def scenario(site):
        jina = await site.post("/v1/rerank", {"query": "", "documents": ["a"]})
        assert jina.status == 400
        assert jina.json["detail"] == jina.json["error"]["message"]
        tei = await site.post("/embed", {"inputs": "a", "normalize": False})
        assert (tei.status, tei.json["error_type"]) == (422, "Validation")
        late = await site.post("/rerank", {"query": "a", "texts": []})
        assert (late.status, late.json["error_type"]) == (400, "Validation")
        unknown = await site.post("/embed", {"inputs": "a"}, tenant=None)
        assert (unknown.status, unknown.json["code"]) == (401, "invalid_api_key")

    play(scenario, models=vectors)


def test_tei_has_a_status_of_its_own_for_what_is_too_large(play, embed_model):
    async def scenario(site):
        for path, few in (
            ("/embed", {"inputs": ["a", "b", "c"]}),
            ("/embed", {"inputs": "word " * 100}),
            ("/rerank", {"query": "a", "texts": ["b", "c", "d"]}),
            ("/rerank", {"query": "a", "texts": ["word " * 100]}),
        ):
            reply = await site.post(path, few)
            assert (reply.status, reply.json["error_type"]) == (413, "Validation"), few
        for path, few in (
            ("/v1/embeddings", {"model": "embed", "input": ["a", "b", "c"]}),
            ("/v1/rerank", {"model": "embed", "query": "a", "documents": ["b", "c", "d"]}),
        ):
            assert (await site.post(path, few)).status == 400

    endpoints = ["embeddings", "rerank"]
    model = embed_model(endpoints=endpoints, inputs_max=2, input_tokens_max=20)
    play(scenario, models={"embed": model})


def test_a_model_must_be_named_where_there_are_several(play, vectors, embed_model):
    models = {**vectors, "other": embed_model(engines=[{"url": "http://fake:3", "name": "x"}])}

    async def scenario(site):
        reply = await site.post("/embed", {"inputs": "a"})
        assert (reply.status, reply.json["error"]) == (
            400,
            "`model` is missing. GET /v1/models lists those that you may use.",
        )
        assert (await site.post("/rerank", {"query": "a", "documents": ["a"]})).status == 200

    play(scenario, models=models)
