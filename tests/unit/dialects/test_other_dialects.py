# SPDX-License-Identifier: Apache-2.0
"""TEI, vLLM's score, SageMaker's shapes, fields of our own, and errors as each dialect has them."""

import json
from array import array
from dataclasses import replace

import pytest

from taketurns.dialects import cohere_tokens, own_fields, sagemaker, score, tei
from taketurns.dialects.models import ListedModel, model_answer, models_answer
from taketurns.dialects.names import Dialect, error_body
from taketurns.errors import RequestError


def raw(**fields):
    return json.dumps(fields).encode()


def test_tei_embeds_a_text_texts_or_ids():
    def asked(**fields):
        request = tei.parse_embed(raw(**fields), inputs_max=2)
        return replace(request, inputs=list(request.inputs))

    assert asked(inputs="a").inputs == ["a"]
    assert asked(inputs=["a", "b"]).inputs == ["a", "b"]
    assert asked(inputs=[[1, 2], [3]]).inputs == [[1, 2], [3]]
    assert asked(inputs="a").truncate == "NONE"
    assert asked(inputs="a", truncate=True).truncate == "END"
    assert asked(inputs="a", truncate=True, truncation_direction="Left").truncate == "START"
    assert asked(inputs="a", normalize=True, prompt_name=None, dimensions=4).dimensions == 4
    for fields, status, named in [
        ({"inputs": []}, 400, "inputs"),
        ({"inputs": ["a"] * 3}, 400, "inputs"),
        ({"inputs": ["a", ""]}, 400, "inputs[1]"),
        ({"inputs": "a", "normalize": False}, 422, "normalize"),
        ({"inputs": "a", "prompt_name": "query"}, 422, "prompt_name"),
        ({"inputs": "a", "dimensions": 0}, 400, "dimensions"),
        ({"inputs": "a", "other": 0}, 422, "other"),
    ]:
        with pytest.raises(RequestError) as caught:
            asked(**fields)
        assert (caught.value.status, caught.value.param) == (status, named)


def test_tei_answers_bare_lists_of_length_1():
    vectors = [array("f", numbers).tobytes() for numbers in ([3, 4], [0, 0])]
    assert json.loads(b"".join(tei.embed_answer(vectors))) == [[0.6, 0.8], [0, 0]]
    request, cut = tei.parse_rerank(
        raw(query="q", texts=["a", "b"], return_text=True, truncate=True), documents_max=2
    )
    assert cut == "END"
    assert json.loads(tei.rerank_answer(request, [0.1, 0.2])) == [
        {"index": 1, "score": 0.2, "text": "b"},
        {"index": 0, "score": 0.1, "text": "a"},
    ]
    for fields, status, named in [
        ({"raw_scores": True}, 422, "raw_scores"),
        ({"texts": []}, 400, "texts"),
        ({"texts": ["a", ""]}, 400, "texts[1]"),
    ]:
        with pytest.raises(RequestError) as caught:
            tei.parse_rerank(raw(**{"query": "q", "texts": ["a"], **fields}), documents_max=2)
        assert (caught.value.status, caught.value.param) == (status, named)


@pytest.mark.parametrize(
    ("fields", "queries", "documents"),
    [
        ({"text_1": "a", "text_2": ["b", "c"]}, ["a"], ["b", "c"]),
        ({"queries": ["a", "b"], "documents": ["c", "d"]}, ["a", "b"], ["c", "d"]),
        ({"queries": "a", "items": "b"}, ["a"], ["b"]),
        ({"data_1": ["a"], "data_2": ["b"]}, ["a"], ["b"]),
    ],
)
def test_score_reads_every_pair_of_fields(fields, queries, documents):
    asked = score.parse_score(raw(**fields), documents_max=2)
    assert (asked.queries, asked.documents) == (queries, documents)
    assert asked.fields == tuple(fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "text_1"),
        ({"text_1": "a"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["x"] * 3}, "text_2"),
        ({"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
    ],
)
def test_what_is_wrong_with_a_score_request_is_named(fields, named):
    with pytest.raises(RequestError) as caught:
        score.parse_score(raw(**fields), documents_max=2)
    assert caught.value.param == named


def test_the_answer_of_score_keeps_the_order_of_the_pairs():
    told = json.loads(score.score_answer("m", [0.2, 0.9], 5, answer_id="id", created_s=1))
    assert told["data"] == [
        {"index": 0, "object": "score", "score": 0.2},
        {"index": 1, "object": "score", "score": 0.9},
    ]
    assert told["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


@pytest.mark.parametrize(
    ("fields", "path", "cohere"),
    [
        ("model messages", "/v1/chat/completions", "/v2/chat"),
        ("message chat_history", "/v1/chat", "/v1/chat"),
        ("prompt", "/v1/completions", "/v1/completions"),
        ("query documents", "/v1/rerank", "/v2/rerank"),
        ("query texts", "/rerank", "/rerank"),
        ("queries documents", "/score", "/score"),
        ("texts input_type", "/v2/embed", "/v2/embed"),
        ("inputs", "/embed", "/embed"),
        ("input model", "/v1/embeddings", "/v1/embeddings"),
    ],
)
def test_a_bodys_shape_says_where_it_goes(fields, path, cohere):
    assert sagemaker.path_of(fields.split()) == path
    assert sagemaker.path_of(fields.split(), dialect="cohere") == cohere


def test_a_shape_that_nobody_knows_is_refused():
    with pytest.raises(RequestError, match="by which its endpoint is told"):
        sagemaker.path_of(["x"])


def test_attributes_are_pairs_and_the_rest_is_somebody_elses():
    assert sagemaker.attributes_of(None) == {}
    told = sagemaker.attributes_of("tenant=acme, priority=3,trace-1,deadline-ms=20,x=a=b")
    assert told == {"tenant": "acme", "priority": "3", "deadline-ms": "20", "x": "a=b"}


def test_fields_of_our_own_are_taken_out_of_a_body():
    body = b'{"a": [1.50], "taketurns": {"priority": 3, "deadline_ms": 20}, "model": "m"}'
    asked, rest = own_fields.read_asked(body)
    assert asked.model == "m"
    assert (asked.taketurns.priority, asked.taketurns.deadline_ms) == (3, 20)
    assert rest == b'{"a":[1.50],"model":"m"}'
    plain = b'{"a": 1}'
    assert own_fields.read_asked(plain)[1] is plain
    assert own_fields.cohere_priority(b'{"priority": 999}') == 999
    assert own_fields.cohere_priority(b'{"priority": null}') is None
    for wrong in [{"priority": 1000}, {"deadline_ms": 0}, {"no_such": 1}]:
        with pytest.raises(RequestError):
            own_fields.read_asked(raw(taketurns=wrong))
    with pytest.raises(RequestError):
        own_fields.cohere_priority(b'{"priority": -1}')


def test_an_error_has_the_form_of_its_dialect():
    def told(dialect, status=429):
        details = {"limit": {"max": 3}}
        body = error_body(
            dialect, status, "c", "words", param="p", details=details, request_id="req_1"
        )
        told = json.loads(body)
        assert told.pop("limit") == {"max": 3}
        return told

    error = {"message": "words", "type": "rate_limit_error", "param": "p", "code": "c"}
    assert told(Dialect.OPENAI) == {"error": error}
    assert told(Dialect.JINA) == {"error": error, "detail": "words"}
    assert told(Dialect.COHERE) == {"id": "req_1", "message": "words", "code": "c"}
    assert told(Dialect.TEI) == {"error": "words", "error_type": "Overloaded", "code": "c"}
    kinds = {400: "Validation", 413: "Validation", 503: "Overloaded", 502: "Backend"}
    assert {status: told(Dialect.TEI, status)["error_type"] for status in kinds} == kinds
    assert told(Dialect.ANTHROPIC) == {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "words"},
        "request_id": "req_1",
        "code": "c",
    }
    assert told(Dialect.ANTHROPIC, 422)["error"]["type"] == "invalid_request_error"
    assert told(Dialect.ANTHROPIC, 502)["error"]["type"] == "api_error"


def test_models_are_listed_for_openais_clients_and_coheres():
    models = [
        ListedModel("a", "me", ("chat", "completions"), None),
        ListedModel("b", "you", ("embeddings", "rerank", "other"), 512),
    ]
    told = json.loads(models_answer(models, 12))
    assert told["object"] == "list"
    assert told["data"][0] == {"id": "a", "object": "model", "created": 12, "owned_by": "me"}
    assert told["models"][0]["endpoints"] == ["chat", "generate"]
    assert "context_length" not in told["models"][0]
    assert told["models"][1] == {
        "name": "b",
        "endpoints": ["embed", "rerank"],
        "default_endpoints": [],
        "finetuned": False,
        "is_deprecated": False,
        "context_length": 512,
    }
    assert json.loads(model_answer(models[1], 12)) == told["data"][1] | told["models"][1]
    only = json.loads(models_answer(models, 12, endpoint="rerank"))
    assert [model["id"] for model in only["data"]] == ["b"]
    assert [model["name"] for model in only["models"]] == ["b"]
    nothing = {"object": "list", "data": [], "models": []}
    assert json.loads(models_answer([], 12)) == nothing


def test_tokens_are_told_as_cohere_does():
    assert cohere_tokens.parse_tokenize(raw(text="a", model="m")) == "a"
    told = json.loads(cohere_tokens.tokenize_answer([(5, "a"), (6, "##b")]))
    assert (told["tokens"], told["token_strings"]) == ([5, 6], ["a", "##b"])
    assert cohere_tokens.parse_detokenize(raw(tokens=[0, 9], model="m"), 10) == [0, 9]
    assert json.loads(cohere_tokens.detokenize_answer("ab"))["text"] == "ab"
    for wrong in [[], [-1], [10]]:
        with pytest.raises(RequestError) as caught:
            cohere_tokens.parse_detokenize(raw(tokens=wrong), 10)
        assert caught.value.param == "tokens"
    for wrong in ["", "a" * 65_537]:
        with pytest.raises(RequestError):
            cohere_tokens.parse_tokenize(raw(text=wrong))
