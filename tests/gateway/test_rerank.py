# SPDX-License-Identifier: Apache-2.0
"""Rerank orders documents by the cosine of their vectors with the query's, in shared batches."""

import math
from array import array

import pytest

from taketurns.gateway.cosine import cosines
from taketurns.testing.engine import fake_vector

DOCUMENTS = ["one", "two two", "three three three", "four"]


def cosine(first, second):
    a, b = (memoryview(vector).cast("f").tolist() for vector in (first, second))
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.fixture
def rerank_model(embed_model):
    return {"embed": embed_model(endpoints=["embeddings", "rerank"], batch={"items_max": 2})}


def body(**more):
    return {"model": "embed", "query": "two", "documents": DOCUMENTS, **more}


def test_documents_come_by_falling_relevance_with_their_own_index(play, rerank_model):
    async def scenario(site):
        reply = await site.post("/v1/rerank", body())
        assert reply.status == 200, reply.body
        results = reply.json["results"]
        query = fake_vector("two", 8)
        expected = {index: cosine(query, fake_vector(t, 8)) for index, t in enumerate(DOCUMENTS)}
        assert {item["index"] for item in results} == set(expected)
        scores = [item["relevance_score"] for item in results]
        assert scores == sorted(scores, reverse=True)
        for item in results:
            assert item["relevance_score"] == pytest.approx(expected[item["index"]], abs=1e-9)
            assert item["document"] == {"text": DOCUMENTS[item["index"]]}
        (record,) = site.records
        assert (record.endpoint, record.items, record.outcome) == ("rerank", 5, "completed")
        assert reply.json["usage"]["prompt_tokens"] == record.input_tokens
        assert reply.json["id"] == record.request_id

    play(scenario, models=rerank_model)


def test_top_n_cuts_and_documents_can_be_left_out_and_given_as_objects(play, rerank_model):
    async def scenario(site):
        documents = [{"text": text} for text in DOCUMENTS]
        reply = await site.post(
            "/v1/rerank", body(documents=documents, top_n=2, return_documents=False)
        )
        assert [set(item) for item in reply.json["results"]] == [{"index", "relevance_score"}] * 2
        whole = await site.post("/v1/rerank", body(top_n=99))
        assert len(whole.json["results"]) == len(DOCUMENTS)

    play(scenario, models=rerank_model)


@pytest.mark.parametrize(
    ("fields", "param", "fragment"),
    [
        ({"query": ""}, "query", "is empty"),
        ({"query": 1}, "query", "must be `str`"),
        ({"documents": []}, "documents", "is empty"),
        ({"documents": ["a", ""]}, "documents[1]", "is empty"),
        ({"documents": ["a", 1]}, "documents[1]", "must be"),
        ({"documents": [{"texts": "a"}]}, "documents[0].text", "is missing"),
        ({"documents": ["a"] * 6}, "documents", "the most is 5"),
        ({"documents": ["a", "word " * 600]}, "documents[1]", "tokens"),
        ({"query": "word " * 600}, "query", "tokens"),
        ({"top_n": 0}, "top_n", "at least 1"),
    ],
)
def test_a_bad_field_is_named(play, embed_model, fields, param, fragment):
    async def scenario(site):
        reply = await site.post("/v1/rerank", body(**fields))
        assert reply.status == 400
        assert reply.error["param"] == param
        assert fragment in reply.error["message"]

    model = embed_model(endpoints=["embeddings", "rerank"], inputs_max=5)
    play(scenario, models={"embed": model})


def test_a_model_without_the_endpoint_says_what_it_serves(play):
    async def scenario(site):
        reply = await site.post("/v1/rerank", body())
        assert (reply.status, reply.error["code"]) == (400, "wrong_endpoint")
        assert "embeddings" in reply.error["message"]

    play(scenario)


def test_cosines_need_no_unit_vectors_and_stand_vectors_of_no_length():
    vectors = [array("f", numbers).tobytes() for numbers in ([3, 0], [0, 2], [5, 0], [0, 0])]

    assert list(cosines(vectors)) == [0.0, 1.0, 0.0]
    assert list(cosines(vectors[:1])) == []


def test_each_document_is_compared_with_its_own_query():
    rows = [[1, 0], [0, 1], [2, 0], [3, 0]]
    vectors = [array("f", numbers).tobytes() for numbers in rows]

    assert list(cosines(vectors, 2)) == [1.0, 0.0]
