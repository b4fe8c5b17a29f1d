# SPDX-License-Identifier: Apache-2.0
"""Engines' answers and streams become Cohere's: every event in its order, each block closed."""

import json

import pytest

from taketurns.dialects.cohere_answers import VoiceV1, VoiceV2
from taketurns.dialects.cohere_replies import BROKEN, answer_v1, answer_v2, whole_reply
from taketurns.errors import EngineBrokenError

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
TOKENS = {"input_tokens": 3, "output_tokens": 2}
COUNTS = {"billed_units": TOKENS, "tokens": TOKENS, "cached_tokens": 1}
HISTORY = ({"role": "USER", "message": "hi"},)


def whole(message, finish="stop", usage=USAGE, **choice):
    body = {"choices": [{"message": message, "finish_reason": finish, **choice}], "usage": usage}
    reply = whole_reply(json.dumps(body).encode())
    assert reply is not None
    return reply


def called(arguments='{"a":1}'):
    function = {"name": "f", "arguments": arguments}
    return {
        "content": "plan",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def test_a_whole_answer_in_version_2():
    told = json.loads(answer_v2(whole({"content": "yes", "reasoning_content": "hm"}), "id"))
    assert told == {
        "id": "id",
        "finish_reason": "COMPLETE",
        "message": {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "yes"},
            ],
        },
        "usage": COUNTS,
    }
    told = json.loads(answer_v2(whole(called(), "tool_calls"), "id"))
    assert told["finish_reason"] == "TOOL_CALL"
    assert told["message"] == {
        "role": "assistant",
        "tool_plan": "plan",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        ],
    }


def test_a_whole_answer_in_version_1_goes_behind_the_conversation():
    told = answer_v1(whole({"content": "yes"}), "id", HISTORY)
    assert told == {
        "response_id": "id",
        "generation_id": "id",
        "text": "yes",
        "finish_reason": "COMPLETE",
        "chat_history": [*HISTORY, {"role": "CHATBOT", "message": "yes"}],
        "meta": {"api_version": {"version": "1"}, **COUNTS},
    }
    calls = [{"name": "f", "parameters": {"a": 1}}]
    told = answer_v1(whole(called(), "tool_calls"), "id", ())
    assert (told["tool_calls"], told["finish_reason"]) == (calls, "COMPLETE")
    assert told["chat_history"] == [{"role": "CHATBOT", "message": "plan", "tool_calls": calls}]
    broken = answer_v1(whole(called("{not json"), "tool_calls"), "id", ())
    assert broken["tool_calls"][0]["parameters"] == {"arguments": "{not json"}


@pytest.mark.parametrize(
    ("finish", "more", "two", "one"),
    [
        ("stop", {}, "COMPLETE", "COMPLETE"),
        ("stop", {"stop_reason": "END"}, "STOP_SEQUENCE", "COMPLETE"),
        ("stop", {"stop_reason": 2}, "COMPLETE", "COMPLETE"),
        ("length", {}, "MAX_TOKENS", "MAX_TOKENS"),
        ("content_filter", {}, "ERROR", "ERROR"),
        ("new_reason", {}, "COMPLETE", "COMPLETE"),
    ],
)
def test_reasons_for_an_end(finish, more, two, one):
    reply = whole({"content": "x"}, finish, **more)
    assert json.loads(answer_v2(reply, "id"))["finish_reason"] == two
    assert answer_v1(reply, "id", ())["finish_reason"] == one


def test_a_voice_writes_whole_answers_too():
    body = b'{"choices":[{"message":{"content":"yes"},"finish_reason":"stop"}]}'
    assert json.loads(VoiceV2("id").whole(body))["message"]["content"][0]["text"] == "yes"
    assert json.loads(VoiceV1("id", HISTORY).whole(body))["text"] == "yes"
    with pytest.raises(EngineBrokenError):
        VoiceV2("id").whole(b"{}")


def test_an_error_of_the_gateways_own_ends_a_stream_once():
    voice = VoiceV2("id")
    sent = voice.events(SPOKEN[2]) + voice.error(502, "engine_broken_answer", "It broke.")
    told = events(sent)
    assert [item["type"] for item in told][-2:] == ["content-end", "message-end"]
    assert told[-1]["delta"] == {"finish_reason": "ERROR", "error": "It broke."}
    assert voice.error(502, "x", "again") == voice.finish() == voice.events(SPOKEN[3]) == b""


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"\xff"]
)
def test_what_is_no_answer_is_none(body):
    assert whole_reply(body) is None


def event(delta=None, finish=None, **more):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
SPOKEN = [
    event({"role": "assistant", "content": ""}),
    event({"reasoning_content": "hm"}),
    event({"content": "a "}),
    event({"content": "b"}),
    event({}, "stop"),
    event(usage=USAGE),
    DONE,
]


def piece(index, arguments, **more):
    function = {"arguments": arguments, **({"name": more["id"]} if more else {})}
    return event({"tool_calls": [{"index": index, "function": function, **more}]})


CALLING = [
    event({"content": "plan"}),
    piece(0, "", id="f"),
    piece(0, '{"a"'),
    piece(0, ":1}"),
    piece(1, "{}", id="g"),
    event({}, "tool_calls"),
    DONE,
]


def events(sse):
    """Return the events of a stream, each event's name checked against its type."""
    found = []
    for block in sse.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told.get('type') or told['event_type']}"
        found.append(told)
    return found


def play(stream, pieces):
    sent = b"".join(stream.events(part) for part in pieces)
    return sent + stream.finish()


def v2(pieces):
    return events(play(VoiceV2("id"), pieces))


def v1(pieces, **more):
    sent = play(VoiceV1("id", HISTORY, **more), pieces)
    return [json.loads(line) for line in sent.decode().splitlines()]


def test_the_events_of_version_2_open_and_close_each_block():
    told = v2(SPOKEN)
    assert [(item["type"], item.get("index")) for item in told] == [
        ("message-start", None),
        ("content-start", 0),
        ("content-delta", 0),
        ("content-end", 0),
        ("content-start", 1),
        ("content-delta", 1),
        ("content-delta", 1),
        ("content-end", 1),
        ("message-end", None),
    ]
    assert told[0]["id"] == told[-1]["id"] == "id"
    texts = [
        item["delta"]["message"]["content"] for item in told if item["type"] == "content-delta"
    ]
    assert texts == [{"thinking": "hm"}, {"text": "a "}, {"text": "b"}]
    assert told[-1]["delta"] == {"finish_reason": "COMPLETE", "usage": COUNTS}


def test_calls_of_version_2_are_told_one_after_the_other():
    told = v2(CALLING)
    assert [(item["type"], item.get("index")) for item in told[4:]] == [
        ("tool-call-start", 0),
        ("tool-call-delta", 0),
        ("tool-call-delta", 0),
        ("tool-call-end", 0),
        ("tool-call-start", 1),
        ("tool-call-delta", 1),
        ("tool-call-end", 1),
        ("message-end", None),
    ]
    start = told[4]["delta"]["message"]["tool_calls"]
    assert start == {"id": "f", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert told[-1]["delta"]["finish_reason"] == "TOOL_CALL"


def test_the_lines_of_version_1():
    told = v1(SPOKEN)
    assert [item["event_type"] for item in told] == [
        "stream-start",
        "text-generation",
        "text-generation",
        "stream-end",
    ]
    assert [item["is_finished"] for item in told] == [False, False, False, True]
    assert told[-1]["response"]["text"] == "a b"
    assert told[-1]["response"]["meta"]["tokens"] == TOKENS
    assert told[-1]["response"]["chat_history"][-1] == {"role": "CHATBOT", "message": "a b"}


def test_calls_of_version_1_come_in_chunks_and_then_whole():
    told = v1(CALLING)
    assert [item["event_type"] for item in told] == [
        "stream-start",
        "text-generation",
        *["tool-calls-chunk"] * 5,
        "tool-calls-generation",
        "stream-end",
    ]
    calls = [{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]
    assert told[-2]["tool_calls"] == told[-1]["response"]["tool_calls"] == calls


def test_version_1_writes_server_sent_events_where_asked():
    stream = VoiceV1("id", (), sse=True)
    told = events(play(stream, SPOKEN))
    assert stream.stream_type == "text/event-stream"
    assert [item["event_type"] for item in told][-1] == "stream-end"
    assert VoiceV1("id", ()).stream_type == "application/stream+json"


def test_cut_anywhere_the_same_events_come_or_an_error_at_the_end():
    data = b"".join(SPOKEN)
    for cut in range(len(data)):
        assert v2([data[:cut], data[cut:]]) == v2(SPOKEN)
        told = v2([data[:cut]])
        kinds = [item["type"] for item in told]
        assert (kinds[0], kinds[-1]) == ("message-start", "message-end")
        assert kinds.count("content-start") == kinds.count("content-end")
        if b'"stop"' not in data[:cut]:
            assert told[-1]["delta"]["finish_reason"] == "ERROR"


ERROR = b'event: error\ndata: {"error":{"message":"The engine broke."}}\n\n'


@pytest.mark.parametrize("before", [[], SPOKEN[:3], CALLING[:3]])
def test_a_stream_that_breaks_ends_with_an_error_and_nothing_follows(before):
    told = v2([*before, ERROR, *SPOKEN])
    assert [item["type"] for item in told].count("message-end") == 1
    assert told[-1]["delta"] == {"finish_reason": "ERROR", "error": "The engine broke."}
    told = v1([*before, ERROR, *SPOKEN])
    assert (told[-1]["event_type"], told[-1]["finish_reason"]) == ("stream-end", "ERROR")
    assert told[-1]["error"] == "The engine broke."
    assert v2([*before, b"data: {not json\n\n"])[-1]["delta"]["error"] == BROKEN


def test_an_end_that_gives_no_reason_is_complete_where_the_engine_says_that_it_is_done():
    assert v2([SPOKEN[2], DONE])[-1]["delta"] == {"finish_reason": "COMPLETE"}
    assert v2([SPOKEN[2]])[-1]["delta"] == {"finish_reason": "ERROR", "error": BROKEN}
