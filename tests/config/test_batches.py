# SPDX-License-Identifier: Apache-2.0
"""How the file says what an embedding or rerank engine is and how it's asked."""

import pytest
from pydantic import ValidationError

from taketurns.config.served import ModelConfig

VLLM = {"url": "http://h:1", "kind": "vllm"}
TEI = {"url": "http://h:2", "kind": "tei"}
LLAMA = {"url": "http://h:3", "kind": "llamacpp"}
INFINITY = {"url": "http://h:4", "kind": "infinity"}
MINILM = {"embedded": "minilm"}


def model(*engines, endpoints=("rerank",), **more):
    return ModelConfig.model_validate({"endpoints": endpoints, "engines": engines, **more})


@pytest.mark.parametrize(
    ("engines", "more", "way"),
    [
        ([VLLM], {}, "pairs"),
        ([VLLM, TEI], {}, "pairs"),
        ([VLLM, LLAMA], {}, "query"),
        ([{"url": "http://h:5"}], {}, "query"),
        ([MINILM], {}, "cosine"),
        ([VLLM], {"endpoints": ["embeddings", "rerank"]}, "cosine"),
        ([VLLM], {"rerank": "query"}, "query"),
        ([VLLM], {"rerank": "cosine"}, "cosine"),
    ],
)
def test_rerank_is_asked_in_the_way_that_all_engines_understand(engines, more, way):
    assert model(*engines, **more).rerank_or_default == way


@pytest.mark.parametrize(
    ("engine", "more", "told"),
    [
        (MINILM, {"rerank": "pairs"}, "must be cosine"),
        (MINILM, {"tokenizer": "t.json"}, "has its own"),
        (LLAMA, {"rerank": "pairs"}, "don't score pairs"),
        (INFINITY, {"rerank": "pairs"}, "don't score pairs"),
        (VLLM, {"rerank": "query", "endpoints": ["chat"]}, "means nothing here"),
        (VLLM, {"tokenizer": "t.json", "endpoints": ["chat"]}, "means nothing here"),
        (VLLM, {"input_types": {"search_query": "q"}, "endpoints": ["chat"]}, "means nothing"),
        (VLLM, {"batch": {"linger": "2s"}}, "linger"),
    ],
)
def test_what_can_not_be_is_said(engine, more, told):
    with pytest.raises(ValidationError, match=told):
        model(engine, **more)
