# SPDX-License-Identifier: Apache-2.0
"""Cohere's embed and rerank: what is read, and how embedding types are made of floats."""

import base64
import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.dialects import cohere_embed, cohere_rerank
from taketurns.errors import RequestError

V2 = {"model": "m", "texts": ["a", "b"], "input_type": "search_query"}
QUERY = {"model": "m", "query": "q", "documents": ["a", "b", "c"]}


def embed(version="2", **fields):
    base = V2 if version == "2" else {"texts": ["a", "b"]}
    return cohere_embed.parse_embed(json.dumps({**base, **fields}).encode(), version)


def rerank(version="2", **fields):
    body = json.dumps({**QUERY, **fields}).encode()
    return cohere_rerank.parse_rerank(body, version, model="m", documents_max=5)


def test_what_is_left_out_has_coheres_defaults():
    asked = embed()
    assert (asked.texts, asked.types, asked.truncate) == (["a", "b"], ("float",), "END")
    assert (asked.dimensions, asked.tokens_max) == (None, None)
    assert embed("1").types == ()
    assert embed(truncate=None, embedding_types=None, output_dimension=None) == asked


def test_inputs_of_version_2_may_hold_texts():
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    assert embed(texts=None, inputs=[{"content": parts}]).texts == ["x\ny"]


@pytest.mark.parametrize(
    ("version", "fields", "status", "named"),
    [
        ("2", {"texts": []}, 400, "texts"),
        ("2", {"texts": ["x"] * 97}, 400, "texts"),
        ("2", {"texts": ["x", ""]}, 400, "texts[1]"),
        ("2", {"texts": None}, 400, "texts"),
        ("2", {"input_type": None}, 400, "input_type"),
        ("2", {"input_type": "other"}, 400, "input_type"),
        ("2", {"embedding_types": ["float16"]}, 400, "embedding_types[0]"),
        ("2", {"truncate": "MIDDLE"}, 400, "truncate"),
        ("2", {"output_dimension": 0}, 400, "output_dimension"),
        ("2", {"inputs": [{"content": []}]}, 400, "inputs"),
        ("2", {"images": ["data:"]}, 422, "images"),
        ("2", {"input_type": "image"}, 422, "input_type"),
        (
            "2",
            {"texts": None, "inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]},
            422,
            "inputs[0].content",
        ),
        ("2", {"no_such": 1}, 422, "no_such"),
        ("1", {"output_dimension": 8}, 422, "output_dimension"),
    ],
)
def test_what_is_wrong_with_an_embed_request_is_named(version, fields, status, named):
    with pytest.raises(RequestError) as caught:
        embed(version, **fields)
    assert (caught.value.status, caught.value.param) == (status, named)


def vector(*numbers):
    return array("f", numbers).tobytes()


def answer(asked, *vectors):
    return json.loads(b"".join(cohere_embed.embed_answer(asked, vectors, 7, "id")))


def test_the_answer_of_version_1_is_a_bare_list_unless_types_are_asked_for():
    first, second = vector(0.5, -0.25), vector(1, 0)
    told = answer(embed("1"), first, second)
    assert told == {
        "id": "id",
        "texts": ["a", "b"],
        "response_type": "embeddings_floats",
        "embeddings": [[0.5, -0.25], [1, 0]],
        "meta": {"api_version": {"version": "1"}, "billed_units": {"input_tokens": 7}},
    }
    told = answer(embed("1", embedding_types=["float"]), first, second)
    assert told["response_type"] == "embeddings_by_type"
    assert told["embeddings"] == {"float": [[0.5, -0.25], [1, 0]]}


def test_every_type_is_made_of_the_same_floats():
    kinds = ["base64", "ubinary", "binary", "uint8", "int8", "float", "float"]
    numbers = [0.5, -0.5, 0.25, 0.0, -0.25, 0.125, 0.5, -0.125, 0.75]
    told = answer(embed(texts=["a"], embedding_types=kinds), vector(*numbers))["embeddings"]
    assert list(told) == ["base64", "ubinary", "binary", "uint8", "int8", "float"]
    assert told["float"] == [numbers]
    assert array("f", base64.b64decode(told["base64"][0])).tolist() == numbers
    assert told["ubinary"] == [[0b10100110, 0b10000000]]
    assert told["binary"] == [[0b10100110 - 128, 0]]
    assert told["uint8"] == [[number + 128 for number in told["int8"][0]]]


@given(st.lists(st.floats(-1, 1, width=32), min_size=64, max_size=64), st.floats(0.1, 9))
def test_bytes_keep_a_vectors_direction_and_forget_its_length(numbers, factor):
    if math.hypot(*numbers) < 0.5:
        numbers = [0.5, *numbers[1:]]
    small = cohere_embed.as_int8(vector(*numbers))
    assert all(-128 <= number <= 127 for number in small)
    largest = max(map(abs, numbers)) * 8 / math.hypot(*numbers)
    if largest < 4:
        dot = sum(a * b for a, b in zip(numbers, small, strict=True))
        assert dot / (math.hypot(*numbers) * math.hypot(*small)) > 0.995
    scaled = cohere_embed.as_int8(vector(*(number * factor for number in numbers)))
    assert max(abs(a - b) for a, b in zip(small, scaled, strict=True)) <= 1


def test_a_vector_of_no_length_stays_one():
    assert cohere_embed.as_int8(vector(0, 0)) == [0, 0]


def test_rerank_reads_both_versions():
    asked = rerank(top_n=2, max_tokens_per_doc=None)
    assert (asked.request.top_n, asked.tokens_max, asked.request.return_documents) == (
        2,
        4096,
        False,
    )
    one = rerank("1", return_documents=True, documents=["a", {"text": "b", "n": 1}])
    assert (one.request.documents, one.request.return_documents) == (["a", "b"], True)
    fields = rerank(
        "1", rank_fields=["title", "n"], documents=[{"text": "b", "title": "t", "n": 1}]
    )
    assert fields.request.documents == ["title: t\nn: 1"]


def test_the_answer_of_rerank_goes_by_relevance():
    told = json.loads(cohere_rerank.rerank_answer(rerank(top_n=2), [0.1, 0.9, 0.5], "id"))
    assert told == {
        "id": "id",
        "results": [{"index": 1, "relevance_score": 0.9}, {"index": 2, "relevance_score": 0.5}],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }
    asked = rerank("1", return_documents=True, top_n=1)
    told = json.loads(cohere_rerank.rerank_answer(asked, [0.1, 0.9, 0.5], "id"))
    assert told["results"] == [{"index": 1, "relevance_score": 0.9, "document": {"text": "b"}}]


@pytest.mark.parametrize(
    ("version", "fields", "status", "named"),
    [
        ("2", {"query": ""}, 400, "query"),
        ("2", {"documents": []}, 400, "documents"),
        ("2", {"documents": ["x"] * 6}, 400, "documents"),
        ("2", {"documents": [{"text": "a"}]}, 400, "documents[0]"),
        ("2", {"top_n": 0}, 400, "top_n"),
        ("2", {"max_tokens_per_doc": 0}, 400, "max_tokens_per_doc"),
        ("2", {"relevant_spans": {}}, 422, "relevant_spans"),
        ("2", {"return_documents": True}, 422, "return_documents"),
        ("1", {"max_chunks_per_doc": 3}, 422, "max_chunks_per_doc"),
        ("1", {"documents": [{"title": "a"}]}, 400, "documents[0].text"),
    ],
)
def test_what_is_wrong_with_a_rerank_request_is_named(version, fields, status, named):
    with pytest.raises(RequestError) as caught:
        rerank(version, **fields)
    assert (caught.value.status, caught.value.param) == (status, named)
