# SPDX-License-Identifier: Apache-2.0
"""A stream's usage is read beside it, and taken out for clients that didn't ask for it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.dialects.openai_stream import OpenAiVoice, Usage, usage_in, usage_of
from taketurns.wire.sse import EventCutter

TEXT = 'data: {"id":"x","choices":[{"delta":{"content":"\\"usage\\":null 🚆"}}]}'.encode()
NULL = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":null}'
SPACED = b'data: {"usage" : null , "choices": [{"delta":{}}]}'
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}'
CONTINUOUS = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
NESTED = b'data: {"choices":[{"delta":{"usage":1}}]}'
BROKEN = b'data: {"usage":'
DONE = b"data: [DONE]"
COMMENT = b': "usage"'


def stream(*events, end=b"\n\n"):
    return b"".join(event + end for event in events)


def passed(data, *, keep=False, size=None):
    voice, cutter = OpenAiVoice(keep_usage=keep), EventCutter()
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    out = [voice.events(events) for piece in pieces if (events := cutter.feed(piece))]
    return b"".join(out) + voice.finish()


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [None, 1, 7])
def test_the_event_that_only_brings_the_usage_is_taken_out(end, size):
    data = stream(TEXT, LAST, DONE, end=end)
    assert passed(data, size=size) == stream(TEXT, DONE, end=end)


def test_who_asks_for_the_usage_gets_every_byte():
    data = stream(TEXT, NULL, SPACED, LAST, DONE)
    assert passed(data, keep=True, size=5) == data


def test_a_usage_of_null_is_taken_out_of_its_event():
    out = passed(stream(NULL, SPACED))
    assert out == stream(
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}',
        b'data: {"choices": [{"delta":{}}]}',
    )


@pytest.mark.parametrize("event", [TEXT, NESTED, BROKEN, DONE, COMMENT, CONTINUOUS, b"event: x"])
def test_every_other_event_stays_as_it_came(event):
    assert passed(stream(event, TEXT)) == stream(event, TEXT)


@given(st.lists(st.sampled_from([TEXT, NULL, LAST, NESTED, DONE, COMMENT]), max_size=8), st.data())
def test_how_a_stream_is_cut_changes_nothing(events, data):
    whole = stream(*events)
    size = data.draw(st.integers(1, max(1, len(whole))))
    assert passed(whole, size=size) == passed(whole)
    read = [json.loads(part[6:]) for part in passed(whole).split(b"\n\n") if b"{" in part[:7]]
    assert all("usage" not in event for event in read)


def test_cached_tokens_are_read():
    body = (
        b'{"usage":{"prompt_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":%s}}}'
    )
    assert usage_of(body % b"7") == Usage(9, 2, 7)
    assert usage_of(body % b"null") == Usage(9, 2, 0)
    assert usage_of(body % b"10") is None
    assert usage_of(body % b"-1") is None


def test_the_last_usage_of_several_events_counts():
    assert usage_in(stream(CONTINUOUS, LAST, DONE)) == Usage(5, 2)
    assert usage_in(stream(TEXT, NULL, DONE)) is None


def test_an_error_is_an_event_of_its_own():
    event = OpenAiVoice(keep_usage=False).error(502, "engine_broken_answer", "It broke.")
    assert event.startswith(b'event: error\ndata: {"error":{"message":"It broke."')
    assert event.endswith(b"\n\n")
