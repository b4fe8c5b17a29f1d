# SPDX-License-Identifier: Apache-2.0
"""Turns an engine's chat answers and streams into Cohere's.

One :class:`Reply` collects an answer, whether it comes whole or in pieces; a voice of
version 1 or 2 says after each piece what its client is sent.

Source: Cohere's API reference, "Chat" and "Streaming", v1 and v2; OpenAI's, "Chat completions".
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from taketurns.dialects.cohere import FINISH_REASONS, meta
from taketurns.errors import EngineBrokenError
from taketurns.wire.sse import SseReader

BROKEN = "The answer broke off."


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = BROKEN


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_EVENT = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class ToolCall:
    """A call that the model makes, as far as it has come."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What a model has said so far.

    Attributes:
        text: Its text.
        thinking: Its reasoning, where the engine tells it.
        calls: Its tool calls.
        finish: Cohere's reason for its end; empty while it goes on.
        usage: The engine's counts, or None.
    """

    text: str = ""
    thinking: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = ""
    usage: _Usage | None = None

    def ends(self, choice: _Choice) -> None:
        """Note why it ended."""
        if choice.finish_reason is not None:
            self.finish = FINISH_REASONS.get(choice.finish_reason, "COMPLETE")
            if self.finish == "COMPLETE" and isinstance(choice.stop_reason, str):
                # vLLM says which text it stopped at.
                self.finish = "STOP_SEQUENCE"

    def counts(self) -> dict[str, Any] | None:
        """Return its tokens in Cohere's form; None where the engine doesn't say."""
        usage = self.usage
        if usage is None:
            return None
        tokens = {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens or 0,
        }
        counts: dict[str, Any] = {"billed_units": tokens, "tokens": tokens}
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            counts["cached_tokens"] = details.cached_tokens
        return counts


def whole_reply(body: bytes) -> Reply | None:
    """Read an engine's whole answer; None where it's none."""
    try:
        event = _EVENT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not event.choices or event.choices[0].message is None:
        return None
    choice = event.choices[0]
    message = event.choices[0].message
    reply = Reply(
        text=message.content or "",
        thinking=message.reasoning_content or message.reasoning or "",
        calls=[_new_call(call, number) for number, call in enumerate(message.tool_calls or ())],
        usage=event.usage,
    )
    reply.ends(choice)
    return reply


def answer_v2(reply: Reply, answer_id: str) -> bytes:
    """Write the answer of ``POST /v2/chat``."""
    message: dict[str, Any] = {"role": "assistant"}
    blocks: list[dict[str, str]] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking})
    if reply.calls:
        message["tool_calls"] = [_call_v2(call) for call in reply.calls]
        if reply.text:
            message["tool_plan"] = reply.text
    else:
        blocks.append({"type": "text", "text": reply.text})
    if blocks:
        message["content"] = blocks
    told = {
        "id": answer_id,
        "finish_reason": reply.finish or "COMPLETE",
        "message": message,
        "usage": reply.counts(),
    }
    return msgspec.json.encode({key: value for key, value in told.items() if value is not None})


def answer_v1(reply: Reply, answer_id: str, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the answer of ``POST /v1/chat``, to be written as JSON.

    Args:
        reply: What the model said.
        answer_id: Id of the answer.
        history: The conversation so far; the answer goes behind it.
    """
    turn: dict[str, Any] = {"role": "CHATBOT", "message": reply.text}
    calls = [{"name": call.name, "parameters": _parameters(call)} for call in reply.calls]
    if calls:
        turn["tool_calls"] = calls
    counts = reply.counts() or {"billed_units": {}}
    told = {
        "response_id": answer_id,
        "generation_id": answer_id,
        "text": reply.text,
        "finish_reason": _finish_v1(reply),
        "chat_history": [*history, turn],
        "meta": {**meta("1"), **counts},
    }
    if calls:
        told["tool_calls"] = calls
    return told


def _finish_v1(reply: Reply) -> str:
    """Version 1 knows no reason of its own for calls and stop sequences."""
    return reply.finish if reply.finish in {"MAX_TOKENS", "ERROR"} else "COMPLETE"


def _call_v2(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _parameters(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as an object; what the model wrote is not always one."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {"arguments": call.arguments}


def _new_call(call: _Call, number: int) -> ToolCall:
    function = call.function or _Function()
    return ToolCall(call.id or f"call_{number}", function.name or "", function.arguments or "")


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
            event = _EVENT.decode(payload)
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

    def _said(self, piece: _Message) -> bytes:
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

    def _called(self, call: _Call) -> bytes:
        calls = self._reply.calls
        number = len(calls) - 1 if call.index is None and not call.id else call.index
        if number is None or number < 0 or number >= len(calls):
            calls.append(_new_call(call, len(calls)))
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
        told = _call_v2(ToolCall(call.id, call.name))
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
