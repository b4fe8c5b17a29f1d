# SPDX-License-Identifier: Apache-2.0
"""Cohere's chat, version 2: turns a request into one for an OpenAI-compatible engine.

What such an engine can't be asked for is refused by name: nothing is dropped in silence.

Source: Cohere's API reference, ``POST /v2/chat``, checked against the official Python client.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from taketurns.dialects.openai import cannot, decode, invalid

STOPS_MAX = 5
"""Most stop sequences, as Cohere documents it."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request of Cohere's, translated.

    Attributes:
        body: As an OpenAI-compatible engine takes it.
        stream: It asks for a stream.
        history: Version 1: the conversation with this turn's messages, for the answer.
    """

    body: bytes
    stream: bool
    history: Sequence[Mapping[str, Any]] = ()


class Text(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A block of text."""

    text: str


class _ImageUrl(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    detail: str | None = None


class _Image(msgspec.Struct, tag_field="type", tag="image_url", forbid_unknown_fields=True):
    image_url: _ImageUrl


class _Thinking(msgspec.Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    thinking: str


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document that an answer may draw on."""

    data: dict[str, Any]
    id: str | None = None


class _DocumentBlock(msgspec.Struct, tag_field="type", tag="document", forbid_unknown_fields=True):
    document: Document


class _CallFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: _CallFunction
    type: Literal["function"] = "function"


class _System(msgspec.Struct, tag_field="role", tag="system", forbid_unknown_fields=True):
    content: str | list[Text]


class _User(msgspec.Struct, tag_field="role", tag="user", forbid_unknown_fields=True):
    content: str | list[Text | _Image]


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    content: str | list[Text | _Thinking] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_plan: str | None = None
    citations: list[Any] | None = None


class _Tool(msgspec.Struct, tag_field="role", tag="tool", forbid_unknown_fields=True):
    tool_call_id: str
    content: str | list[Text | _DocumentBlock]


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None


class _ToolDefinition(msgspec.Struct, forbid_unknown_fields=True):
    function: _Function
    type: Literal["function"] = "function"


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None
    schema: dict[str, Any] | None = None


class _CitationOptions(msgspec.Struct, forbid_unknown_fields=True):
    mode: str | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """Fields of both versions that an engine knows, most of them by another name."""

    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    k: int | None = None
    p: float | None = None
    stop_sequences: list[str] | None = None
    response_format: _ResponseFormat | None = None
    safety_mode: str | None = None
    priority: int | None = None
    stream: bool | None = None

    def fields(self) -> dict[str, Any]:
        """Return them as OpenAI-compatible engines take them.

        Raises:
            RequestError: 400 or 422, naming the field.
        """
        if self.safety_mode not in {None, "OFF", "NONE"}:
            raise cannot("safety_mode", "adds an instruction that only Cohere's models know")
        if len(self.stop_sequences or ()) > STOPS_MAX:
            raise invalid("stop_sequences", f"has more than {STOPS_MAX} texts", "Send fewer.")
        fields = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            # 0 switches it off, which is an engine's default.
            "top_k": self.k or None,
            "top_p": self.p,
            "stop": self.stop_sequences or None,
            "response_format": self._format(),
        }
        if self.stream:
            fields["stream"] = True
            # Cohere's streams end with the counts.
            fields["stream_options"] = {"include_usage": True}
        return {name: value for name, value in fields.items() if value is not None}

    def _format(self) -> dict[str, Any] | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        schema = wanted.json_schema or wanted.schema
        if schema is None:
            return {"type": "json_object"}
        return {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        }


class _Chat(Sampling, kw_only=True, forbid_unknown_fields=True):
    messages: list[_System | _User | _Assistant | _Tool]
    model: str | None = None
    tools: list[_ToolDefinition] | None = None
    strict_tools: bool | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | Document] | None = None
    citation_options: _CitationOptions | None = None
    logprobs: bool | None = None
    thinking: dict[str, Any] | None = None


_CHAT = msgspec.json.Decoder(_Chat)


def parse_chat(body: bytes, model: str) -> ChatRequest:
    """Read the body of ``POST /v2/chat``.

    Args:
        body: The body.
        model: Name of the model that serves it.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    read: _Chat = decode(_CHAT, body)
    if not read.messages:
        raise invalid("messages", "must not be empty", "Send at least one message.")
    if read.logprobs:
        raise cannot("logprobs", "needs the ids of tokens, which engines here don't tell")
    if read.thinking is not None:
        raise cannot("thinking", "can't be chosen: the engine's own setting holds")
    if read.citation_options is not None and read.citation_options.mode not in {
        None,
        "off",
        "OFF",
        "disabled",
    }:
        raise cannot("citation_options.mode", "asks for citations, which engines here don't make")
    messages = [
        _message(message, f"messages[{index}]") for index, message in enumerate(read.messages)
    ]
    fields: dict[str, Any] = {
        "model": model,
        "messages": with_documents(messages, read.documents or ()),
        **read.fields(),
    }
    if read.tools:
        fields["tools"] = [
            {"type": "function", "function": _function(tool, strict=bool(read.strict_tools))}
            for tool in read.tools
        ]
    if read.tool_choice is not None:
        fields["tool_choice"] = read.tool_choice.lower()
    return ChatRequest(msgspec.json.encode(fields), bool(read.stream))


def with_documents(
    messages: list[dict[str, Any]], documents: Iterable[str | Document]
) -> list[dict[str, Any]]:
    """Return messages whose system message holds the documents, as text."""
    texts = []
    for number, item in enumerate(documents):
        document = Document({"text": item}) if isinstance(item, str) else item
        lines = [f"Document {document.id or number}"]
        lines += [f"{key}: {_plain(value)}" for key, value in document.data.items()]
        texts.append("\n".join(lines))
    if not texts:
        return messages
    told = "Base the answer on these documents.\n\n" + "\n\n".join(texts)
    if messages and messages[0]["role"] == "system":
        first = {"role": "system", "content": f"{messages[0]['content']}\n\n{told}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _function(tool: _ToolDefinition, *, strict: bool) -> dict[str, Any]:
    function = tool.function
    told: dict[str, Any] = {"name": function.name, "parameters": function.parameters or {}}
    if function.description is not None:
        told["description"] = function.description
    if strict:
        told["strict"] = True
    return told


def _message(message: _System | _User | _Assistant | _Tool, at: str) -> dict[str, Any]:
    match message:
        case _System():
            return {"role": "system", "content": _joined(message.content)}
        case _User():
            content = message.content
            parts = content if isinstance(content, str) else [_user_block(b) for b in content]
            return {"role": "user", "content": parts}
        case _Tool():
            result = message.content
            text = result if isinstance(result, str) else "\n".join(map(_tool_text, result))
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": text}
    return _assistant(message, at)


def _assistant(message: _Assistant, at: str) -> dict[str, Any]:
    if message.citations:
        raise cannot(f"{at}.citations", "can't be told to the engines here")
    content = message.content
    blocks = [Text(content)] if isinstance(content, str) else content or []
    texts = [block.text for block in blocks if isinstance(block, Text)]
    thoughts = [block.thinking for block in blocks if isinstance(block, _Thinking)]
    if message.tool_plan:
        texts.insert(0, message.tool_plan)
    told: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        told["reasoning_content"] = "\n".join(thoughts)
    if message.tool_calls:
        told["tool_calls"] = message.tool_calls
    elif content is None and not message.tool_plan:
        raise invalid(at, "has neither content nor tool calls")
    return told


def _joined(content: str | list[Text]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _user_block(part: Text | _Image) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    image: dict[str, Any] = {"url": part.image_url.url}
    if part.image_url.detail is not None:
        image["detail"] = part.image_url.detail
    return {"type": "image_url", "image_url": image}


def _tool_text(block: Text | _DocumentBlock) -> str:
    if isinstance(block, Text):
        return block.text
    return msgspec.json.encode(block.document.data).decode()
