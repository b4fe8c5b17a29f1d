# SPDX-License-Identifier: Apache-2.0
"""The forms in which engines answer: where each has its counts, and how its streams end.

Source: OpenAI's API reference (chat completions, completions, responses); Anthropic's (messages).
"""

import re
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from taketurns.dialects.openai_stream import USAGE_TOKENS_MAX, Usage, usage_in, usage_of
from taketurns.wire.sse import payloads


class AnswerForm(Protocol):
    """Reads one answer beside the relay; one object for each request."""

    def usage(self, body: bytes) -> Usage | None:
        """Return the usage of a whole answer, or None."""
        ...

    def usage_in(self, events: bytes) -> Usage | None:
        """Return the usage that stands in whole events of a stream, or None."""
        ...

    def over(self, tail: bytes) -> bool:
        """Return whether a stream that ends with these events is whole."""
        ...


_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"|"choices"\s*:\s*\[\s*\]')
"""What the last event has where no ``[DONE]`` is sent: a reason, or nothing but the usage."""


class CompletionsForm:
    """Chat completions, and completions."""

    __slots__ = ()

    def usage(self, body: bytes) -> Usage | None:
        return usage_of(body)

    def usage_in(self, events: bytes) -> Usage | None:
        return usage_in(events)

    def over(self, tail: bytes) -> bool:
        # Only the last event tells: some engines have a usage in each.
        said = payloads(tail)
        last = said[-1].strip() if said else b""
        return last == b"[DONE]" or _FINISHED.search(last) is not None


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _InputDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Counted(msgspec.Struct):
    usage: _Counts | None = None


class _Event(msgspec.Struct):
    type: str = ""
    response: _Counted | None = None
    message: _Counted | None = None
    usage: _Counts | None = None


_WHOLE = msgspec.json.Decoder(_Counted)
_EVENT = msgspec.json.Decoder(_Event)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _events(events: bytes) -> list[_Event]:
    """Return the events that have counts, as far as they can be read."""
    found = []
    for payload in payloads(events):
        if b"usage" in payload:
            try:
                found.append(_EVENT.decode(payload))
            except _UNREADABLE:
                continue
    return found


def _believed(input_tokens: int, output_tokens: int, cached: int) -> Usage | None:
    """Return counts unless they can't be true."""
    least, most = min(input_tokens, output_tokens, cached), max(input_tokens, output_tokens)
    if least < 0 or most > USAGE_TOKENS_MAX or cached > input_tokens:
        return None
    return Usage(input_tokens, output_tokens, cached)


class ResponsesForm:
    """OpenAI's responses: the counts stand in the last event."""

    __slots__ = ()

    def usage(self, body: bytes) -> Usage | None:
        try:
            counts = _WHOLE.decode(body).usage
        except _UNREADABLE:
            return None
        return None if counts is None else self._read(counts)

    def usage_in(self, events: bytes) -> Usage | None:
        usage = None
        for event in _events(events):
            if event.response is not None and event.response.usage is not None:
                usage = self._read(event.response.usage)
        return usage

    def over(self, tail: bytes) -> bool:
        ends = (b"response.completed", b"response.incomplete", b"response.failed")
        return any(end in tail for end in ends)

    def _read(self, counts: _Counts) -> Usage | None:
        details = counts.input_tokens_details
        cached = (details.cached_tokens or 0) if details is not None else 0
        return _believed(counts.input_tokens, counts.output_tokens, cached)


class MessagesForm:
    """Anthropic's messages: the input's counts stand in the first event, the output's in the last.

    There ``input_tokens`` are those that came neither from a cache nor went into one.
    """

    __slots__ = ("_input",)

    def __init__(self) -> None:
        self._input = _Counts()

    def usage(self, body: bytes) -> Usage | None:
        try:
            counts = _WHOLE.decode(body).usage
        except _UNREADABLE:
            return None
        return None if counts is None else self._read(counts, counts)

    def usage_in(self, events: bytes) -> Usage | None:
        usage = None
        for event in _events(events):
            if event.message is not None and event.message.usage is not None:
                self._input = event.message.usage
            elif event.type == "message_delta" and event.usage is not None:
                said = event.usage if event.usage.input_tokens else self._input
                usage = self._read(said, event.usage)
        return usage

    def over(self, tail: bytes) -> bool:
        return b"message_stop" in tail

    def _read(self, said: _Counts, produced: _Counts) -> Usage | None:
        cached = said.cache_read_input_tokens or 0
        whole = said.input_tokens + cached + (said.cache_creation_input_tokens or 0)
        return _believed(whole, produced.output_tokens, cached)


FORMS: Mapping[str, Callable[[], AnswerForm]] = {
    "/v1/responses": ResponsesForm,
    "/v1/messages": MessagesForm,
}
"""Forms by an engine's route, where it's not that of completions."""


def form_of(path: str) -> AnswerForm:
    """Return a reader for an answer of an engine's route."""
    return FORMS.get(path, CompletionsForm)()
