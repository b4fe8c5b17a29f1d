# SPDX-License-Identifier: Apache-2.0
"""Each form of answer tells whether a stream is whole by its last event."""

import pytest

from taketurns.dialects.answer_forms import form_of

CHUNK = b'data: {"choices":[{"delta":{"content":"[DONE]"},"finish_reason":null}]}\n\n'
COUNTED = (
    b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
)
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices": [],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


@pytest.mark.parametrize(
    ("path", "tail", "over"),
    [
        (CHAT, CHUNK + STOP + USAGE + DONE, True),
        (CHAT, CHUNK + STOP, True),
        (CHAT, USAGE, True),
        (CHAT, b"data: [DONE]", True),
        (CHAT, CHUNK, False),
        (CHAT, STOP + CHUNK, False),
        (CHAT, COUNTED, False),
        (CHAT, b": ping\n\n", False),
        (CHAT, b'data: {"error":{"message":"out of memory"}}\n\n', False),
        (RESPONSES, b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True),
        (RESPONSES, b'event: response.failed\ndata: {"type":"response.failed"}\n\n', True),
        (RESPONSES, b'data: {"type":"response.output_text.delta"}\n\n', False),
        (MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}\n\n', True),
        (MESSAGES, b'data: {"type":"message_delta","usage":{"output_tokens":3}}\n\n', False),
    ],
)
def test_a_stream_is_over_where_its_last_event_says_so(path, tail, over):
    form = form_of(path)
    form.usage_in(tail)
    assert form.over(tail) is over
