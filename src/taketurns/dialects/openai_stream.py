# SPDX-License-Identifier: Apache-2.0
"""How a client of OpenAI's dialect is answered: the engine's own bytes, but for the usage.

The gateway asks every engine for the usage of a stream. A client that didn't
ask for it never sees it: some break on the event without a choice that carries it.

Source: OpenAI's API reference (streaming events, ``stream_options``).
"""

import re

import msgspec

from taketurns.dialects.openai import error_answer
from taketurns.wire.sse import payloads, split

USAGE_TOKENS_MAX = 1_000_000_000
"""Most tokens that an engine is believed to have used for one answer."""

_USAGE_KEY = b'"usage"'

_NO_USAGE = b',"usage":null'
"""What some engines write in every event but the last. It can't stand in a text: there its
quotes would have backslashes."""

_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null(?=\s*[,}])|"usage"\s*:\s*null\s*,\s*')


class Usage(msgspec.Struct, frozen=True):
    """What an engine counted.

    Attributes:
        prompt_tokens: Tokens of the input, cached ones included.
        completion_tokens: Tokens of the answer.
        cached_tokens: Tokens of the input that it had computed before.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Counted(msgspec.Struct):
    usage: _Counts | None = None


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_COUNTED = msgspec.json.Decoder(_Counted)
_EVENT = msgspec.json.Decoder(_Event)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def usage_of(payload: bytes) -> Usage | None:
    """Return the usage where an answer, or an event of a stream, has one.

    Counts that can't be true are as good as none.
    """
    try:
        counts = _COUNTED.decode(payload).usage
    except _UNREADABLE:
        return None
    if counts is None:
        return None
    details = counts.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    usage = Usage(counts.prompt_tokens, counts.completion_tokens or 0, cached)
    least = min(usage.prompt_tokens, usage.completion_tokens, cached)
    most = max(usage.prompt_tokens, usage.completion_tokens)
    if least < 0 or most > USAGE_TOKENS_MAX or cached > usage.prompt_tokens:
        return None
    return usage


def usage_in(events: bytes) -> Usage | None:
    """Return the last usage that stands in whole events, or None."""
    usage = None
    if _USAGE_KEY in events and events.count(_USAGE_KEY) != events.count(_NO_USAGE):
        for payload in payloads(events):
            if _USAGE_KEY in payload:
                usage = usage_of(payload) or usage
    return usage


class OpenAiVoice:
    """Answers one client.

    Args:
        keep_usage: It asked for the usage of its stream.
    """

    stream_type = "text/event-stream"
    ping = b": ping\n\n"
    error_ends = False

    __slots__ = ("_keep_usage",)

    def __init__(self, *, keep_usage: bool) -> None:
        self._keep_usage = keep_usage

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer: the engine's."""
        return body

    def events(self, events: bytes) -> bytes:
        """Return whole events of the engine as the client gets them; maybe nothing."""
        if self._keep_usage or _USAGE_KEY not in events:
            return events
        if events.count(_USAGE_KEY) == events.count(_NO_USAGE):
            return events.replace(_NO_USAGE, b"")
        return b"".join([_without_usage(event) for event in split(events)])

    def finish(self) -> bytes:
        """Return what follows the engine's last event: nothing."""
        return b""

    def error(self, status: int, code: str, message: str) -> bytes:
        """Return the event that ends a stream that isn't whole."""
        return b"event: error\ndata: " + error_answer(status, code, message) + b"\n\n"


def _without_usage(event: bytes) -> bytes:
    """Return an event without its usage: nothing where that is all it has to say."""
    if _USAGE_KEY not in event:
        return event
    data = payloads(event)
    try:
        read = _EVENT.decode(data[0]) if data else _Event()
    except _UNREADABLE:
        return event
    if read.usage is msgspec.UNSET:
        return event
    if bytes(read.usage) == b"null":
        return _NULL_USAGE.sub(b"", event, count=1)
    return event if read.choices else b""
