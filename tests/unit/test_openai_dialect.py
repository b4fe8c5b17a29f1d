# SPDX-License-Identifier: Apache-2.0
"""OpenAI's dialect reads what it needs, names what is wrong, and leaves the rest as it came."""

import base64
import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.dialects import openai
from taketurns.dialects.openai_generation import NOT_PASSED, parse_chat, parse_completions
from taketurns.dialects.openai_stream import usage_of
from taketurns.dialects.own_fields import read_asked
from taketurns.errors import RequestError

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
EMBED = {"model": "m", "input": "hi"}


def raw(body):
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def chat(body):
    return parse_chat(raw(body))


def completions(body):
    return parse_completions(raw(body))


def embeddings(body):
    request = openai.parse_embeddings(raw(body), inputs_max=3)
    return replace(request, inputs=list(request.inputs))


def without(body, field):
    return {name: value for name, value in body.items() if name != field}


BAD = [
    (chat, b"", None, "not valid JSON"),
    (chat, raw(CHAT) + b"{}", None, "not valid JSON"),
    (chat, b'{"model":"m",}', None, "not valid JSON"),
    (chat, b'{"model":"\xff"}', None, "not valid JSON"),
    (chat, b"7", None, "must be `object`, not `int`"),
    (chat, without(CHAT, "model"), "model", "is missing"),
    (chat, without(CHAT, "messages"), "messages", "is missing"),
    (chat, CHAT | {"model": None}, "model", "must be `str`, not `null`"),
    (chat, CHAT | {"messages": []}, "messages", "must not be empty"),
    (chat, CHAT | {"messages": {}}, "messages", "must be `array`, not `object`"),
    (chat, CHAT | {"messages": ["hi"]}, "messages[0]", "must be `object`, not `str`"),
    (chat, CHAT | {"messages": [*CHAT["messages"], {}]}, "messages[1].role", "is missing"),
    (chat, CHAT | {"stream": 1}, "stream", "must be `bool | null`, not `int`"),
    (chat, CHAT | {"stream_options": True}, "stream_options", "must be `object | null`"),
    (
        chat,
        CHAT | {"stream_options": {"include_usage": "x"}},
        "stream_options.include_usage",
        "bool",
    ),
    (chat, CHAT | {"n": 0}, "n", "1 to 128"),
    (chat, CHAT | {"n": 129}, "n", "is 129"),
    (chat, CHAT | {"n": 1.5}, "n", "int"),
    (chat, CHAT | {"n": "1"}, "n", "int"),
    (chat, CHAT | {"max_tokens": -1}, "max_tokens", "is -1"),
    (chat, CHAT | {"max_tokens": 10**30}, "max_tokens", "10,000,000"),
    (chat, CHAT | {"max_completion_tokens": -1}, "max_completion_tokens", "is -1"),
    (completions, without(COMPLETION, "prompt"), "prompt", "is missing"),
    (completions, COMPLETION | {"prompt": None}, "prompt", "must be a text"),
    (completions, COMPLETION | {"prompt": ""}, "prompt", "is empty"),
    (completions, COMPLETION | {"max_tokens": -1}, "max_tokens", "is -1"),
    (embeddings, without(EMBED, "input"), "input", "is missing"),
    (embeddings, EMBED | {"input": 7}, "input", "must be a text, a list of texts"),
    (embeddings, EMBED | {"input": {"text": "x"}}, "input", "must be a text"),
    (embeddings, EMBED | {"input": ""}, "input", "is empty"),
    (embeddings, EMBED | {"input": []}, "input", "is empty"),
    (embeddings, EMBED | {"input": [[]]}, "input[0]", "is empty"),
    (embeddings, EMBED | {"input": ["a", ""]}, "input[1]", "is empty"),
    (embeddings, EMBED | {"input": ["a", None]}, "input[1]", "must be `str`, not `null`"),
    (embeddings, EMBED | {"input": [1, "a"]}, "input[1]", "must be `int`, not `str`"),
    (embeddings, EMBED | {"input": [[1], [2, -3]]}, "input[1]", "negative"),
    (embeddings, EMBED | {"input": [[1], [2, "x"]]}, "input[1][1]", "must be `int`"),
    (embeddings, EMBED | {"input": [-1]}, "input", "negative"),
    (embeddings, EMBED | {"input": [1.5]}, "input[0]", "must be `int`, not `float`"),
    (embeddings, EMBED | {"input": [True]}, "input[0]", "must be `int`, not `bool`"),
    (embeddings, EMBED | {"input": ["a"] * 4}, "input", "has 4 entries, and the most is 3"),
    (embeddings, EMBED | {"encoding_format": "hex"}, "encoding_format", "'hex'"),
    (embeddings, EMBED | {"encoding_format": 1}, "encoding_format", "must be `str | null`"),
    (embeddings, EMBED | {"dimensions": 0}, "dimensions", "is 0"),
    (embeddings, EMBED | {"dimensions": "8"}, "dimensions", "must be `int | null`"),
]


@pytest.mark.parametrize(("parse", "body", "param", "fragment"), BAD)
def test_what_is_wrong_is_a_400_that_names_the_field(parse, body, param, fragment):
    with pytest.raises(RequestError) as caught:
        parse(body)
    error = caught.value
    assert error.status == 400
    assert error.code in {"invalid_value", "invalid_json"}
    assert error.param == param
    assert fragment in f"{error} {error.hint}"
    assert "$" not in str(error)


@pytest.mark.parametrize("parse", [chat, completions, embeddings, read_asked])
def test_json_that_is_nested_deeply_is_a_400(parse):
    for body in (b"[" * 200_000, b'{"a":' * 200_000, b'{"model":"m","input":' + b"[" * 200_000):
        with pytest.raises(RequestError):
            parse(body)


def test_a_chat_is_read_with_its_defaults():
    read = chat(CHAT)
    assert (read.model, read.stream, read.include_usage) == ("m", False, False)
    assert read.output_tokens_max is None
    assert read.prompt_bytes > 0


def test_nulls_are_as_good_as_nothing():
    fields = ["stream", "stream_options", "max_tokens", "max_completion_tokens", "n"]
    body = CHAT | dict.fromkeys(fields)
    assert chat(body).output_tokens_max is None
    embed = embeddings(EMBED | {"encoding_format": None, "dimensions": None})
    assert (embed.base64, embed.dimensions) == (False, None)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 0}, None),
        ({"max_completion_tokens": 20}, 20),
        ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"n": 3}, None),
    ],
)
def test_the_output_limit_is_that_of_all_choices(fields, limit):
    assert chat(CHAT | fields).output_tokens_max == limit


def test_streaming_and_its_options_are_read():
    read = chat(CHAT | {"stream": True, "stream_options": {"include_usage": True, "x": 1}})
    assert (read.stream, read.include_usage) == (True, True)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [
        ("\u00e9" * 400, 800, 0),
        (["x" * 40, "y" * 40], 80, 0),
        ([1] * 50, 0, 50),
        ([[1], [2]], 0, 2),
    ],
)
def test_the_size_of_a_prompt_is_that_of_its_text_and_its_ids(prompt, text, ids):
    read = completions(COMPLETION | {"prompt": prompt})
    assert (read.prompt_bytes, read.prompt_tokens) == (text, ids)


def test_the_size_of_messages_is_that_of_their_bytes():
    long = [{"role": "user", "content": "x" * 4000}]
    assert 4000 <= chat(CHAT | {"messages": long}).prompt_bytes <= 4080


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (" ", [" "]),
        ("\u00e9\U0001f600\u0000", ["\u00e9\U0001f600\u0000"]),
    ],
)
def test_every_form_of_input_is_read(given, inputs):
    assert list(embeddings(EMBED | {"input": given}).inputs) == inputs


def test_white_space_does_not_change_the_form():
    body = b'{"model" : "m" , "input" :\n [\t\r\n [ 1 , 2 ] , [3] ] }'
    assert list(embeddings(body).inputs) == [[1, 2], [3]]
    assert list(embeddings(b'{"model":"m","input": [ "a" ]}').inputs) == ["a"]


def test_the_body_is_the_same_object_where_the_name_is():
    body = raw(CHAT)
    assert parse_chat(body).body_for("m") is body


NAMES = st.sampled_from(["", "tools", "top p", "\u00e9", "user", "Model", "a.b"])
SCALARS = st.sampled_from([None, True, 0, -1, 2**70, 0.1, 1e300, "", "\u00e9\n", "\U0001f600"])
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_another_name_changes_nothing_else(extra):
    body = {**extra, **CHAT}
    renamed = chat(body).body_for('other "name" \u00e9')
    assert json.loads(renamed) == body | {"model": 'other "name" \u00e9'}


def test_numbers_and_escapes_stay_as_they_were_written():
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u00e9\\/"}],"top_p":1.50,"seed":1e2}'
    )
    renamed = parse_chat(body).body_for("n")
    assert renamed == body.replace(b'"model":"m"', b'"model":"n"')


STREAMED = CHAT | {"stream": True}


def test_the_usage_of_a_stream_is_asked_for_in_front_of_what_came():
    body = b' {"model":"m","messages":[{"role":"user"}],"top_p":1.50,"stream":true}\n'
    asked = parse_chat(body).body_for("m", ask_usage=True)
    assert asked == body.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)


@pytest.mark.parametrize("options", [None, {}, {"x": 1}, {"include_usage": False, "x": 1}])
def test_other_stream_options_stay_where_the_usage_is_asked_for(options):
    asked = chat(STREAMED | {"stream_options": options}).body_for("m", ask_usage=True)
    wanted = {**(options or {}), "include_usage": True}
    assert json.loads(asked) == STREAMED | {"stream_options": wanted}


@pytest.mark.parametrize("body", [CHAT, STREAMED | {"stream_options": {"include_usage": True}}])
def test_the_usage_is_not_asked_for_where_that_would_change_nothing(body):
    assert chat(body).body_for("m", ask_usage=True) == raw(body)


@pytest.mark.parametrize("field", sorted(NOT_PASSED))
def test_no_engine_gets_a_field_that_is_not_for_clients(field):
    sent = chat(CHAT | {field: "theirs", "x": 1}).body_for("m")
    assert json.loads(sent) == CHAT | {"x": 1}
    ours = chat(CHAT | {field: "theirs"}).body_for("m", said={field: b'"ours"'})
    assert json.loads(ours) == CHAT | {field: "ours"}


def test_what_the_gateway_says_stands_once():
    sent = chat(CHAT | {"x": 1.5}).body_for("m", said={"priority": b"7", "cache_salt": b'"s"'})
    assert sent.startswith(b'{"priority":7,"cache_salt":"s","model":')
    assert json.loads(sent) == CHAT | {"x": 1.5, "priority": 7, "cache_salt": "s"}


@pytest.mark.parametrize(
    ("fields", "choices"),
    [({}, 1), ({"n": 3}, 3), ({"n": 2, "best_of": 5}, 5), ({"best_of": 0}, 1)],
)
def test_answers_are_counted_that_are_made_and_not_only_those_that_are_shown(fields, choices):
    assert completions(COMPLETION | fields).choices == choices
    two = completions(COMPLETION | fields | {"prompt": ["a", "b"], "max_tokens": 10})
    assert (two.choices, two.output_tokens_max) == (2 * choices, 20 * choices)


def vectors(numbers):
    return [array("f", row).tobytes() for row in numbers]


@given(
    st.lists(
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5
        ),
        min_size=1,
        max_size=4,
    )
)
def test_both_encodings_decode_to_the_same_float32(numbers):
    made = vectors(numbers)
    as_numbers = json.loads(b"".join(openai.embeddings_answer("m", made, 7, as_base64=False)))
    as_base64 = json.loads(b"".join(openai.embeddings_answer("m", made, 7, as_base64=True)))
    for answer in (as_numbers, as_base64):
        assert answer["object"] == "list"
        assert answer["model"] == "m"
        assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
        assert [item["index"] for item in answer["data"]] == list(range(len(made)))
        assert {item["object"] for item in answer["data"]} == {"embedding"}
    assert [base64.b64decode(item["embedding"]) for item in as_base64["data"]] == made
    assert vectors(item["embedding"] for item in as_numbers["data"]) == made


def test_a_models_name_is_quoted():
    answer = b"".join(openai.embeddings_answer('a"b\\', vectors([[1.0]]), 1, as_base64=True))
    assert json.loads(answer)["model"] == 'a"b\\'


@pytest.mark.parametrize(
    ("payload", "usage"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}', (3, 4)),
        (b'{"usage":{"prompt_tokens":3}}', (3, 0)),
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":null}}', (3, 0)),
        (b'{"usage":null}', None),
        (b'{"usage":{}}', None),
        (b'{"usage":{"input_tokens":3}}', None),
        (b'{"usage":{"prompt_tokens":"3"}}', None),
        (b'{"usage":{"prompt_tokens":-1}}', None),
        (b'{"usage":{"prompt_tokens":1,"completion_tokens":-1}}', None),
        (b'{"usage":{"prompt_tokens":1e300}}', None),
        (b'{"usage":{"prompt_tokens":1%s}}' % (b"0" * 300), None),
        (b"{}", None),
        (b"[DONE]", None),
        (b"", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_usage_is_read_where_it_can_be_believed(payload, usage):
    found = usage_of(payload)
    assert (found and (found.prompt_tokens, found.completion_tokens)) == usage


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_an_error_has_openais_form(status, kind):
    error = json.loads(openai.error_answer(status, "some_code", 'a "message"', "input[0]"))
    assert error == {
        "error": {"message": 'a "message"', "type": kind, "param": "input[0]", "code": "some_code"}
    }
    assert json.loads(openai.error_answer(status, "c", "m"))["error"]["param"] is None
