# SPDX-License-Identifier: Apache-2.0
"""OpenAI's responses and Anthropic's messages, which go to engines that have them as they came.

Source: OpenAI's API reference, ``POST /v1/responses``; Anthropic's, ``POST /v1/messages``.
"""

from typing import Any

import msgspec

from taketurns.dialects.names import Dialect, error_body
from taketurns.dialects.openai import cannot, decode
from taketurns.dialects.openai_generation import Fields, GenerationRequest, output_limit


class _Responses(msgspec.Struct, kw_only=True):
    model: str
    input: msgspec.Raw
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    tools: msgspec.Raw | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None


class _Messages(msgspec.Struct, kw_only=True):
    model: str
    messages: msgspec.Raw
    max_tokens: int
    system: msgspec.Raw | None = None
    tools: msgspec.Raw | None = None
    stream: bool | None = None


_RESPONSES = msgspec.json.Decoder(_Responses)
_MESSAGES = msgspec.json.Decoder(_Messages)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_KEPT = {
    "background": "asks for an answer that is fetched later, and none is kept here",
    "previous_response_id": "names an answer before, and none is kept here",
    "conversation": "names a conversation, and none is kept here",
}
"""Fields by which one request would reach into another's, maybe another tenant's."""


def parse_responses(body: bytes, fields: Fields | None = None) -> GenerationRequest:
    """Read the body of ``POST /v1/responses``.

    Args:
        body: The body.
        fields: Its fields, where they were read before.

    Raises:
        RequestError: 400 where a field is wrong, 422 where it asks for what is kept of others.
    """
    read: _Responses = decode(_RESPONSES, body)
    for field, why in _KEPT.items():
        if getattr(read, field):
            raise cannot(field, why, "Send the whole conversation, and wait for the answer.")
    parts = (read.input, (read.instructions or "").encode(), read.tools or b"")
    return _request(
        "/v1/responses",
        body,
        decode(_FIELDS, body) if fields is None else fields,
        model=read.model,
        stream=bool(read.stream),
        prompt_bytes=sum(map(len, parts)),
        output_tokens_max=output_limit(read.max_output_tokens, "max_output_tokens"),
    )


def parse_messages(body: bytes, fields: Fields | None = None) -> GenerationRequest:
    """Read the body of ``POST /v1/messages``.

    Args:
        body: The body.
        fields: Its fields, where they were read before.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Messages = decode(_MESSAGES, body)
    parts = (read.messages, read.system or b"", read.tools or b"")
    return _request(
        "/v1/messages",
        body,
        decode(_FIELDS, body) if fields is None else fields,
        model=read.model,
        stream=bool(read.stream),
        prompt_bytes=sum(map(len, parts)),
        output_tokens_max=output_limit(read.max_tokens, "max_tokens"),
    )


def _request(
    path: str,
    body: bytes,
    fields: Fields,
    *,
    model: str,
    stream: bool,
    prompt_bytes: int,
    output_tokens_max: int | None,
) -> GenerationRequest:
    return GenerationRequest(
        path=path,
        model=model,
        stream=stream,
        # Streams of these have it without being asked.
        include_usage=True,
        prompt_bytes=prompt_bytes,
        prompt_tokens=0,
        choices=1,
        output_tokens_max=output_tokens_max,
        fields=fields.keys(),
        body=body,
    )


class MessagesVoice:
    """Answers one client of Anthropic's: with the engine's own bytes.

    Args:
        request_id: Of the request, for errors.
    """

    stream_type = "text/event-stream"
    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    error_ends = False

    __slots__ = ("_request_id",)

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer: the engine's."""
        return body

    def events(self, events: bytes) -> bytes:
        """Return whole events: the engine's."""
        return events

    def finish(self) -> bytes:
        """Return what follows the engine's last event: nothing."""
        return b""

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return the event that ends a stream that isn't whole."""
        body = error_body(Dialect.ANTHROPIC, status, code, message, request_id=self._request_id)
        return b"event: error\ndata: " + body + b"\n\n"
