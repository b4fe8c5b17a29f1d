# SPDX-License-Identifier: Apache-2.0
"""What a model has said, as its engine tells it, and as Cohere's answers do.

Source: Cohere's API reference, "Chat", v1 and v2; OpenAI's, "Chat completions".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from taketurns.dialects.cohere import FINISH_REASONS, meta

BROKEN = "The answer broke off."


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A call, or a piece of one."""

    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class Message(msgspec.Struct):
    """A message, or a piece of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


class _Choice(msgspec.Struct):
    delta: Message | None = None
    message: Message | None = None
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


class Event(msgspec.Struct):
    """A whole answer, or an event of a stream."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


EVENT = msgspec.json.Decoder(Event)


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
        event = EVENT.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not event.choices or event.choices[0].message is None:
        return None
    choice = event.choices[0]
    message = event.choices[0].message
    reply = Reply(
        text=message.content or "",
        thinking=message.reasoning_content or message.reasoning or "",
        calls=[new_call(call, number) for number, call in enumerate(message.tool_calls or ())],
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
        message["tool_calls"] = [call_v2(call) for call in reply.calls]
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


def call_v2(call: ToolCall) -> dict[str, Any]:
    """Return a call in version 2's form."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _parameters(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as an object; what the model wrote is not always one."""
    try:
        return msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {"arguments": call.arguments}


def new_call(call: Call, number: int) -> ToolCall:
    """Return a call of which this is the first that has come."""
    function = call.function or _Function()
    return ToolCall(call.id or f"call_{number}", function.name or "", function.arguments or "")
