# SPDX-License-Identifier: Apache-2.0
"""Turns an engine's chat answers and streams into Cohere's.

A :class:`Reply` collects an answer, whether it comes whole or in pieces; a voice of
version 1 or 2 says after each piece what its client is sent.

Source: Cohere's API reference, "Chat" and "Streaming", v1 and v2.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from taketurns.dialects.cohere_replies import (
    BROKEN,
    EVENT,
    Call,
    Message,
    Reply,
    ToolCall,
    answer_v1,
    answer_v2,
    call_v2,
    new_call,
    whole_reply,
)
from taketurns.errors import EngineBrokenError
from taketurns.wire.sse import SseReader


class ChatVoice(ABC):
    """Answers one client of Cohere's: turns what an engine says into what it reads.

    A stream that breaks ends with Cohere's last event, which then says so: its clients take an
    error between events for the first event of a stream.

    Args:
        answer_id: Id of the answer.

    Attributes:
        stream_type: Content type of its streams.
        ping: A comment that clients skip; empty where there's none.
        error_ends: An error is a stream's proper end.
    """

    stream_type = "text/event-stream"
    ping = b": ping\n\n"
    error_ends = True

    def __init__(self, answer_id: str) -> None:
        self._ended = False
        self._id = answer_id
        self._reply = Reply()
        self._reader = SseReader()
        self._begun = False

    def events(self, events: bytes) -> bytes:
        """Take the engine's next bytes; return what the client is sent for them, maybe nothing."""
        return b"".join([self._take(payload) for payload in self._reader.feed(events)])

    def finish(self) -> bytes:
        """Take the end of the engine's stream; return what is still to be sent."""
        last = b"".join([self._take(payload) for payload in self._reader.finish()])
        return last if self._ended else last + self._end("")

    def error(self, status: int, code: str, message: str) -> bytes:  # noqa: ARG002 - Cohere has none
        """Return what ends a stream that isn't whole."""
        return b"" if self._ended else self._end(message)

    def whole(self, body: bytes) -> bytes:
        """Return a whole answer: the engine's, in Cohere's form.

        Raises:
            EngineBrokenError: The engine's is none.
        """
        reply = whole_reply(body)
        if reply is None:
            raise EngineBrokenError("", "the answer is no chat completion")
        return self._written(reply)

    def _take(self, payload: bytes) -> bytes:
        if self._ended:
            return b""
        if payload.strip() == b"[DONE]":
            self._reply.finish = self._reply.finish or "COMPLETE"
            return self._end("")
        try:
            event = EVENT.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._end(BROKEN)
        if event.error is not None:
            return self._end(event.error.message)
        said = b""
        if not self._begun:
            self._begun = True
            said = self._start()
        if event.usage is not None:
            self._reply.usage = event.usage
        for choice in event.choices[:1]:
            piece = choice.delta or choice.message
            if piece is not None:
                said += self._said(piece)
            self._reply.ends(choice)
        return said

    def _said(self, piece: Message) -> bytes:
        said = b""
        thinking = piece.reasoning_content or piece.reasoning
        if thinking:
            self._reply.thinking += thinking
            said += self._thought(thinking)
        if piece.content:
            self._reply.text += piece.content
            said += self._text(piece.content)
        for call in piece.tool_calls or ():
            said += self._called(call)
        return said

    def _called(self, call: Call) -> bytes:
        calls = self._reply.calls
        number = len(calls) - 1 if call.index is None and not call.id else call.index
        if number is None or number < 0 or number >= len(calls):
            calls.append(new_call(call, len(calls)))
            return self._call_begins(len(calls) - 1)
        more = "" if call.function is None else call.function.arguments or ""
        calls[number].arguments += more
        return self._call_goes_on(number, more) if more else b""

    def _end(self, error: str) -> bytes:
        self._ended = True
        said = b"" if self._begun else self._start()
        if not self._reply.finish:
            # An engine that never said that it stops didn't come to its end.
            error = error or BROKEN
        if error:
            self._reply.finish = "ERROR"
        return said + self._stop(error)

    @abstractmethod
    def _written(self, reply: Reply) -> bytes:
        """Return a whole answer."""

    @abstractmethod
    def _start(self) -> bytes:
        """Return what stands before all else."""

    @abstractmethod
    def _text(self, text: str) -> bytes:
        """Return what tells of more text."""

    @abstractmethod
    def _thought(self, text: str) -> bytes:
        """Return what tells of more reasoning."""

    @abstractmethod
    def _call_begins(self, number: int) -> bytes:
        """Return what tells of a new call."""

    @abstractmethod
    def _call_goes_on(self, number: int, arguments: str) -> bytes:
        """Return what tells of more of a call."""

    @abstractmethod
    def _stop(self, error: str) -> bytes:
        """Return what stands at the end."""


class VoiceV2(ChatVoice):
    """Answers ``POST /v2/chat``: one block is open at a time, and each is closed."""

    def __init__(self, answer_id: str) -> None:
        super().__init__(answer_id)
        self._open = ""
        self._index = 0
        self._blocks = 0

    def _written(self, reply: Reply) -> bytes:
        return answer_v2(reply, self._id)

    def _start(self) -> bytes:
        message = {
            "role": "assistant",
            "content": [],
            "tool_plan": "",
            "tool_calls": [],
            "citations": [],
        }
        return _event("message-start", id=self._id, delta={"message": message})

    def _text(self, text: str) -> bytes:
        return self._block("text", text)

    def _thought(self, text: str) -> bytes:
        return self._block("thinking", text)

    def _block(self, kind: str, text: str) -> bytes:
        said = b""
        if self._open != kind:
            said = self._close()
            self._open, self._index = kind, self._blocks
            self._blocks += 1
            said += self._content("content-start", {"type": kind, kind: ""})
        return said + self._content("content-delta", {kind: text})

    def _call_begins(self, number: int) -> bytes:
        said = self._close()
        self._open, self._index = "call", number
        call = self._reply.calls[number]
        told = call_v2(ToolCall(call.id, call.name))
        said += _event("tool-call-start", index=number, delta={"message": {"tool_calls": told}})
        return said + (self._call_goes_on(number, call.arguments) if call.arguments else b"")

    def _call_goes_on(self, number: int, arguments: str) -> bytes:
        delta = {"message": {"tool_calls": {"function": {"arguments": arguments}}}}
        return _event("tool-call-delta", index=number, delta=delta)

    def _close(self) -> bytes:
        kind, self._open = self._open, ""
        if not kind:
            return b""
        return _event("tool-call-end" if kind == "call" else "content-end", index=self._index)

    def _content(self, kind: str, content: dict[str, str]) -> bytes:
        return _event(kind, index=self._index, delta={"message": {"content": content}})

    def _stop(self, error: str) -> bytes:
        delta: dict[str, Any] = {"finish_reason": self._reply.finish}
        if error:
            delta["error"] = error
        usage = self._reply.counts()
        if usage is not None:
            delta["usage"] = usage
        return self._close() + _event("message-end", id=self._id, delta=delta)


class VoiceV1(ChatVoice):
    """Answers ``POST /v1/chat``: events are a line of JSON each, or server-sent where asked.

    Args:
        answer_id: Id of the answer.
        history: The conversation so far, for the last event.
        sse: Write server-sent events.
    """

    def __init__(
        self, answer_id: str, history: Sequence[Mapping[str, Any]], *, sse: bool = False
    ) -> None:
        super().__init__(answer_id)
        self._history = history
        self._sse = sse
        if not sse:
            self.stream_type = "application/stream+json"
            self.ping = b""

    def _written(self, reply: Reply) -> bytes:
        return msgspec.json.encode(answer_v1(reply, self._id, self._history))

    def _start(self) -> bytes:
        return self._line("stream-start", generation_id=self._id)

    def _text(self, text: str) -> bytes:
        return self._line("text-generation", text=text)

    def _thought(self, text: str) -> bytes:  # noqa: ARG002 - version 1 has no place for it
        return b""

    def _call_begins(self, number: int) -> bytes:
        call = self._reply.calls[number]
        said = self._line("tool-calls-chunk", tool_call_delta={"name": call.name, "index": number})
        return said + (self._call_goes_on(number, call.arguments) if call.arguments else b"")

    def _call_goes_on(self, number: int, arguments: str) -> bytes:
        delta = {"index": number, "parameters": arguments}
        return self._line("tool-calls-chunk", tool_call_delta=delta)

    def _stop(self, error: str) -> bytes:
        said = b""
        response = answer_v1(self._reply, self._id, self._history)
        if "tool_calls" in response:
            said = self._line(
                "tool-calls-generation",
                text=response["text"],
                tool_calls=response["tool_calls"],
            )
        more = {"error": error} if error else {}
        return said + self._line(
            "stream-end", finish_reason=response["finish_reason"], response=response, **more
        )

    def _line(self, kind: str, **fields: object) -> bytes:
        over = kind == "stream-end"
        data = msgspec.json.encode({"is_finished": over, "event_type": kind, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data) if self._sse else data + b"\n"


def _event(kind: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
