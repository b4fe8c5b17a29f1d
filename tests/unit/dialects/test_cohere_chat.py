# SPDX-License-Identifier: Apache-2.0
"""Cohere's chat requests become OpenAI's, or are refused by the name of what can't be told."""

import json

import pytest

from taketurns.dialects import cohere_chat, cohere_chat_v1
from taketurns.errors import RequestError

PARSERS = {"1": cohere_chat_v1.parse_chat, "2": cohere_chat.parse_chat}
BASE = {"1": {"message": "hi"}, "2": {"messages": [{"role": "user", "content": "hi"}]}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def parse(version, **fields):
    return PARSERS[version](json.dumps({**BASE[version], **fields}).encode(), "m")


def told(version, **fields):
    return json.loads(parse(version, **fields).body)


def both(**fields):
    one, two = (told(version, **fields) for version in BASE)
    assert one == two
    return one


def test_the_least_request_says_no_more_than_it_must():
    assert both() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert not parse("2").stream


def test_sampling_fields_get_the_names_that_engines_know():
    assert both(
        max_tokens=5,
        temperature=0.5,
        seed=7,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        k=3,
        p=0.9,
        stop_sequences=["a", "b"],
    ) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 7,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "top_k": 3,
        "top_p": 0.9,
        "stop": ["a", "b"],
    }
    assert "top_k" not in both(k=0)


def test_a_stream_asks_the_engine_for_its_counts():
    asked = both(stream=True)
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}
    assert parse("1", stream=True).stream


def test_what_says_nothing_is_the_same_as_left_out():
    nothing = dict.fromkeys(["max_tokens", "temperature", "k", "p", "stop_sequences", "tools"])
    assert both(**nothing, documents=None, response_format=None, priority=None) == both()
    assert both(safety_mode="OFF", response_format={"type": "text"}, priority=9) == both()
    one = told(
        "1",
        connectors=[],
        search_queries_only=False,
        raw_prompting=False,
        prompt_truncation="OFF",
        citation_quality="off",
        force_single_step=True,
    )
    assert one == told("1")
    assert told("2", citation_options={"mode": "off"}, strict_tools=True) == told("2")


@pytest.mark.parametrize(("version", "name"), [("1", "schema"), ("2", "json_schema")])
def test_an_answer_in_json_is_asked_for_as_openai_does(version, name):
    schema = {"type": "object"}
    plain = told(version, response_format={"type": "json_object"})
    assert plain["response_format"] == {"type": "json_object"}
    asked = told(version, response_format={"type": "json_object", name: schema})
    assert asked["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


def test_documents_stand_in_the_system_message():
    documents = [{"title": "T", "text": "one"}, {"id": "x", "text": "two", "n": 3}]
    expected = (
        "Base the answer on these documents.\n\n"
        "Document 0\ntitle: T\ntext: one\n\nDocument x\ntext: two\nn: 3"
    )
    asked = told("1", documents=documents)
    assert asked["messages"][0] == {"role": "system", "content": expected}
    data = [{"data": documents[0]}, {"id": "x", "data": {"text": "two", "n": 3}}]
    assert told("2", documents=data)["messages"] == asked["messages"]
    with_preamble = told("1", documents=documents, preamble="Be brief.")
    assert with_preamble["messages"][0]["content"] == f"Be brief.\n\n{expected}"
    assert len(with_preamble["messages"]) == 2
    assert "text: bare" in told("2", documents=["bare"])["messages"][0]["content"]


def test_messages_of_version_2_keep_their_meaning():
    document = {"type": "document", "document": {"id": "d", "data": {"a": 1}}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "tool_plan": "plan",
            "tool_calls": [CALL],
            "content": None,
            "citations": None,
        },
        {
            "role": "tool",
            "tool_call_id": "c",
            "content": [document, {"type": "text", "text": "end"}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "plain"},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "ok"}],
        },
        {"role": "user", "content": "thanks"},
    ]
    assert told("2", messages=messages)["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": messages[1]["content"]},
        {"role": "assistant", "content": "plan", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": '{"a":1}\nend'},
        {"role": "tool", "tool_call_id": "c", "content": "plain"},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
        {"role": "user", "content": "thanks"},
    ]


def test_tools_of_version_2_are_passed_on():
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    asked = told("2", tools=tools, tool_choice="REQUIRED")
    assert (asked["tools"], asked["tool_choice"]) == (tools, "required")
    strict = told("2", tools=tools, strict_tools=True)
    assert strict["tools"][0]["function"] == {**function, "strict": True}


def test_tools_of_version_1_become_json_schema():
    parameters = {
        "city": {"type": "str", "description": "where", "required": True},
        "days": {"type": "List[int]"},
        "far": {"type": "bool", "required": False},
    }
    (tool,) = told(
        "1", tools=[{"name": "w", "description": "d", "parameter_definitions": parameters}]
    )["tools"]
    assert tool["function"] == {
        "name": "w",
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "days": {"type": "array"},
                "far": {"type": "boolean"},
            },
            "required": ["city"],
        },
    }


RESULT = {"call": {"name": "w", "parameters": {"city": "Bonn"}}, "outputs": [{"rain": True}]}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "w", "arguments": '{"city":"Bonn"}'},
        }
    ],
}
ANSWERED = {"role": "tool", "tool_call_id": "call_0", "content": '[{"rain":true}]'}


def test_tool_results_of_version_1_answer_a_call_that_is_told_before_them():
    user = {"role": "user", "content": "hi"}
    assert told("1", tool_results=[RESULT])["messages"] == [user, CALLED, ANSWERED]
    history = [
        {"role": "USER", "message": "hi"},
        {"role": "CHATBOT", "message": "", "tool_calls": [RESULT["call"]]},
    ]
    again = told("1", message="", chat_history=history, tool_results=[RESULT])
    assert again["messages"] == [user, CALLED, ANSWERED]
    history += [{"role": "TOOL", "tool_results": [RESULT]}, {"role": "CHATBOT", "message": "wet"}]
    later = told("1", message="more", chat_history=history)["messages"]
    assert later[-2:] == [
        {"role": "assistant", "content": "wet"},
        {"role": "user", "content": "more"},
    ]


def test_version_1_keeps_the_conversation_for_its_answer():
    asked = parse("1", chat_history=[{"role": "SYSTEM", "message": "s"}], tool_results=[RESULT])
    assert asked.history == (
        {"role": "SYSTEM", "message": "s"},
        {"role": "USER", "message": "hi"},
        {"role": "TOOL", "tool_results": [RESULT]},
    )


REFUSED = [
    ("1", {"conversation_id": "x"}, "conversation_id"),
    ("1", {"connectors": [{"id": "web-search"}]}, "connectors"),
    ("1", {"search_queries_only": True}, "search_queries_only"),
    ("1", {"max_input_tokens": 5}, "max_input_tokens"),
    ("1", {"raw_prompting": True}, "raw_prompting"),
    ("1", {"prompt_truncation": "AUTO"}, "prompt_truncation"),
    ("1", {"citation_quality": "fast"}, "citation_quality"),
    ("1", {"safety_mode": "STRICT"}, "safety_mode"),
    ("1", {"no_such": 1}, "no_such"),
    ("1", {"chat_history": [{"role": "USER", "x": 1}]}, "chat_history[0].x"),
    (
        "1",
        {"tools": [{"name": "w", "parameter_definitions": {"a": {"type": "Date"}}}]},
        "tools.w.parameter_definitions.a.type",
    ),
    ("2", {"logprobs": True}, "logprobs"),
    ("2", {"thinking": {"type": "enabled"}}, "thinking"),
    ("2", {"citation_options": {"mode": "fast"}}, "citation_options.mode"),
    ("2", {"safety_mode": "CONTEXTUAL"}, "safety_mode"),
    ("2", {"raw_prompting": False}, "raw_prompting"),
    (
        "2",
        {"messages": [{"role": "assistant", "content": "a", "citations": [{}]}]},
        "messages[0].citations",
    ),
    (
        "2",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]},
        "messages[0].content[0].b",
    ),
]


@pytest.mark.parametrize(("version", "fields", "named"), REFUSED)
def test_what_cant_be_translated_is_refused_by_its_name(version, fields, named):
    with pytest.raises(RequestError) as caught:
        parse(version, **fields)
    assert (caught.value.status, caught.value.code) == (422, "unsupported_field")
    assert caught.value.param == named
    assert f"`{named}`" in str(caught.value)


WRONG = [
    ("1", {"message": ""}, "message"),
    ("1", {"message": 1}, "message"),
    ("1", {"chat_history": [{"role": "user"}]}, "chat_history[0].role"),
    ("1", {"stop_sequences": list("abcdef")}, "stop_sequences"),
    (
        "1",
        {
            "chat_history": [{"role": "CHATBOT", "tool_calls": [{"name": "x", "parameters": {}}]}],
            "message": "",
            "tool_results": [RESULT],
        },
        "tool_results[0].call",
    ),
    ("2", {"messages": []}, "messages"),
    ("2", {"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
    ("2", {"messages": [{"role": "assistant"}]}, "messages[0]"),
    ("2", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ("2", {"tool_choice": "AUTO"}, "tool_choice"),
    ("2", {"temperature": "hot"}, "temperature"),
]


@pytest.mark.parametrize(("version", "fields", "named"), WRONG)
def test_what_is_wrong_is_a_400_that_names_it(version, fields, named):
    with pytest.raises(RequestError) as caught:
        parse(version, **fields)
    assert (caught.value.status, caught.value.param) == (400, named)
