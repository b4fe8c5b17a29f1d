# SPDX-License-Identifier: Apache-2.0
"""The page on dialects says what the code does: each endpoint, each field, each word."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from taketurns.dialects import (
    cohere_chat,
    cohere_chat_v1,
    cohere_embed,
    cohere_rerank,
    cohere_tokens,
    openai,
    passing,
    rerank,
    score,
    tei,
)
from taketurns.dialects.names import Dialect, error_body
from taketurns.errors import RequestError
from taketurns.gateway.routes import COHERE_V1_RERANK, ROUTES

PAGE = (Path(__file__).parents[2] / "docs/reference/dialects.md").read_text("utf-8")

STRUCTS = {
    "/v1/embeddings": openai._Embeddings,
    "/v1/responses": passing._Responses,
    "/v1/messages": passing._Messages,
    "/v2/chat": cohere_chat._Chat,
    "/v1/chat": cohere_chat_v1._Chat,
    "/v2/embed": cohere_embed._EmbedV2,
    "/v1/embed": cohere_embed._EmbedV1,
    "/v2/rerank": cohere_rerank._RerankV2,
    "/v1/rerank": cohere_rerank._RerankV1,
    "/v1/tokenize": cohere_tokens._Tokenize,
    "/v1/detokenize": cohere_tokens._Detokenize,
    "/rerank": rerank._Rerank,
    "/score": score._Score,
    "/embed": tei._Embed,
    "/rerank of TEI": tei._Rerank,
}

PARSERS = {
    "/v1/responses": passing.parse_responses,
    "/v2/chat": lambda body: cohere_chat.parse_chat(body, "m"),
    "/v1/chat": lambda body: cohere_chat_v1.parse_chat(body, "m"),
    "/v2/embed": lambda body: cohere_embed.parse_embed(body, "2"),
    "/v1/embed": lambda body: cohere_embed.parse_embed(body, "1"),
    "/v2/rerank": lambda body: cohere_rerank.parse_rerank(body, "2", model="m", documents_max=9),
    "/v1/rerank": lambda body: cohere_rerank.parse_rerank(body, "1", model="m", documents_max=9),
    "/score": lambda body: score.parse_score(body, documents_max=9),
    "/embed": lambda body: tei.parse_embed(body, inputs_max=9),
    "/rerank of TEI": lambda body: tei.parse_rerank(body, documents_max=9),
}

LEAST = {
    "/v1/responses": {"model": "m", "input": "x"},
    "/v2/chat": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/chat": {"message": "x"},
    "/v2/embed": {"texts": ["x"], "input_type": "search_query"},
    "/v1/embed": {"texts": ["x"]},
    "/v2/rerank": {"query": "x", "documents": ["x"]},
    "/v1/rerank": {"query": "x", "documents": ["x"]},
    "/score": {"text_1": "x", "text_2": "x"},
    "/embed": {"inputs": "x"},
    "/rerank of TEI": {"query": "x", "texts": ["x"]},
}

REFUSED = {
    "citation_options": {"mode": "fast"},
    "safety_mode": "STRICT",
    "citation_quality": "accurate",
    "prompt_truncation": "AUTO",
    "thinking": {"type": "enabled"},
    "logprobs": True,
    "conversation_id": "x",
    "connectors": [{"id": "x"}],
    "search_queries_only": True,
    "max_input_tokens": 9,
    "raw_prompting": True,
    "images": ["data:,"],
    "relevant_spans": {"x": 1},
    "max_chunks_per_doc": 9,
    "truncate_prompt_tokens": 9,
    "normalize": False,
    "prompt_name": "x",
    "raw_scores": True,
    "background": True,
    "previous_response_id": "resp_1",
    "conversation": {"id": "x"},
}
"""A value of each field that is refused."""

TOLD = {
    "max_tokens": 5,
    "temperature": 0.5,
    "seed": 5,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "k": 5,
    "p": 0.5,
    "stop_sequences": ["x"],
    "response_format": {"type": "json_object"},
    "tools": None,
    "strict_tools": None,
    "tool_choice": "NONE",
    "documents": [{"data": {"x": "y"}}],
    "messages": [{"role": "system", "content": "x"}],
    "message": "y",
    "preamble": "x",
    "chat_history": [{"role": "USER", "message": "x"}],
    "tool_results": [{"call": {"name": "f", "parameters": {}}, "outputs": [{}]}],
}
"""A value of each field that goes to the engine in one way or another."""


def fields_of(path):
    """Return the rows of a path's table: what becomes of each field."""
    table = PAGE.split(f"<!-- fields: {path} -->\n")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE))


def test_every_endpoint_is_on_the_page_with_its_dialect():
    table = PAGE.split("## Endpoints")[1].split("## Errors")[0]
    rows = re.findall(
        r"^\| `POST (\S+)` \| (\w+)(?:, or (\w+) [^|]*)? \| (\w+) \|$", table, re.MULTILINE
    )
    told = {path: (first, second, endpoint) for path, first, second, endpoint in rows}
    found = {}
    for path, route in ROUTES.items():
        other = COHERE_V1_RERANK if path == "/v1/rerank" else route.instead and route.instead[1]
        found[path] = (str(route.dialect), str(other.dialect) if other else "", route.endpoint)
    assert told == found


def test_every_table_of_fields_is_known():
    assert set(re.findall(r"<!-- fields: (.*?) -->", PAGE)) == set(STRUCTS)


@pytest.mark.parametrize("path", STRUCTS)
def test_every_field_is_on_the_page_and_no_other(path):
    read = {field.encode_name for field in msgspec.structs.fields(STRUCTS[path])}
    hidden = {"schema"} & read
    assert set(fields_of(path)) == read - hidden


@pytest.mark.parametrize("path", PARSERS)
def test_null_means_the_same_as_leaving_a_field_out(path):
    least = PARSERS[path](json.dumps(LEAST[path]).encode())
    nothing = dict.fromkeys(fields_of(path))
    told = PARSERS[path](json.dumps({**nothing, **LEAST[path]}).encode())
    if path == "/v1/responses":
        # What is passed as it came has the nulls, too.
        assert (told.stream, told.output_tokens_max) == (False, None)
    elif path == "/embed":
        assert (list(told.inputs), told.dimensions, told.truncate) == (["x"], None, "NONE")
    else:
        assert told == least


REFUSED_ROWS = [
    (path, field)
    for path in PARSERS
    for field, told in fields_of(path).items()
    if re.search(r"^(accepted where .*)?(, )?(else )?refused|else refused", told)
    and "configuration" not in told
    and "tokenizer" not in told
]


def test_refusals_are_found():
    assert len(REFUSED_ROWS) >= 18
    assert {field for _, field in REFUSED_ROWS} <= set(REFUSED)


@pytest.mark.parametrize(("path", "field"), REFUSED_ROWS)
def test_what_the_page_calls_refused_is_refused_by_name(path, field):
    with pytest.raises(RequestError) as caught:
        PARSERS[path](json.dumps({**LEAST[path], field: REFUSED[field]}).encode())
    assert caught.value.param.startswith(field)
    assert caught.value.status == (400 if "400" in fields_of(path)[field] else 422)
    # Null is the same as nothing.
    PARSERS[path](json.dumps({**LEAST[path], field: None}).encode())


@pytest.mark.parametrize("path", ["/v1/chat", "/v2/chat"])
def test_what_the_page_calls_passed_or_translated_reaches_the_engine(path):
    least = PARSERS[path](json.dumps(LEAST[path]).encode()).body
    tools = {
        "/v1/chat": [{"name": "f", "parameter_definitions": {}}],
        "/v2/chat": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }[path]
    for field, told in fields_of(path).items():
        more = {field: TOLD.get(field)}
        if field == "documents" and path == "/v1/chat":
            more = {field: [{"x": "y"}]}
        elif field == "tools":
            more = {field: tools}
        elif field == "strict_tools":
            more = {"tools": tools, field: True}
        if re.match("passed|translated", told):
            body = PARSERS[path](json.dumps({**LEAST[path], **more}).encode()).body
            assert body != least, field
            if told.startswith("passed"):
                assert field in json.loads(body)


@pytest.mark.parametrize("path", PARSERS)
def test_a_field_that_no_table_has_is_refused_where_the_page_says_so(path):
    body = json.dumps({**LEAST[path], "no_such_field": 1}).encode()
    if path in {"/score", "/v1/responses"}:
        PARSERS[path](body)
    else:
        with pytest.raises(RequestError, match="no_such_field"):
            PARSERS[path](body)


def test_errors_have_the_members_that_the_page_lists():
    table = PAGE.split("## Errors")[1].split("## OpenAI")[0]
    for name, told in re.findall(r"^\| (\w+) \| `(.*?)`", table, re.MULTILINE):
        body = json.loads(error_body(Dialect(name), 400, "c", "m", request_id="r"))
        members = re.findall(r'"(\w+)"', json.dumps(body))
        assert set(re.findall(r'"(\w+)"', told)) <= set(members)
        outermost = re.sub(r': (?:\{[^{}]*\}|"\w+")', "", told)
        assert set(body) == set(re.findall(r'"(\w+)"', outermost))
