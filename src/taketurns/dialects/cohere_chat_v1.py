# SPDX-License-Identifier: Apache-2.0
"""Cohere's chat, version 1: turns a request into one for an OpenAI-compatible engine.

Source: Cohere's API reference, ``POST /v1/chat``, checked against the official Python client.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from taketurns.dialects.cohere_chat import ChatRequest, Document, Sampling, with_documents
from taketurns.dialects.openai import cannot, decode, invalid


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    parameters: dict[str, Any]


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    call: _Call
    outputs: list[dict[str, Any]]


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["USER", "CHATBOT", "SYSTEM", "TOOL"]
    message: str | None = None
    tool_calls: list[_Call] | None = None
    tool_results: list[_Result] | None = None


class _Parameter(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    description: str | None = None
    required: bool | None = None


class _Definition(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameter_definitions: dict[str, _Parameter] | None = None


class _Chat(Sampling, kw_only=True, forbid_unknown_fields=True):
    message: str
    model: str | None = None
    preamble: str | None = None
    chat_history: list[_Turn] | None = None
    documents: list[dict[str, Any]] | None = None
    tools: list[_Definition] | None = None
    tool_results: list[_Result] | None = None
    force_single_step: bool | None = None
    conversation_id: str | None = None
    prompt_truncation: str | None = None
    connectors: list[Any] | None = None
    search_queries_only: bool | None = None
    citation_quality: str | None = None
    max_input_tokens: int | None = None
    raw_prompting: bool | None = None


_CHAT = msgspec.json.Decoder(_Chat)

_CANNOT = {
    "conversation_id": "asks to remember a conversation, and nothing is kept here",
    "connectors": "asks for a search, which is not done here",
    "search_queries_only": "asks for search queries, which engines here don't make",
    "max_input_tokens": "can't be set: the engine's own limit holds",
    "raw_prompting": "is not supported in chat",
}
"""Fields that no engine can be asked for; null, false and empty are the same as left out."""


def parse_chat(body: bytes, model: str) -> ChatRequest:
    """Read the body of ``POST /v1/chat``.

    Args:
        body: The body.
        model: Name of the model that serves it.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    read: _Chat = decode(_CHAT, body)
    for field, why in _CANNOT.items():
        if getattr(read, field):
            raise cannot(field, why)
    if read.prompt_truncation not in {None, "OFF"}:
        raise cannot("prompt_truncation", "can only be OFF", 'Send "OFF", or leave it out.')
    if read.citation_quality not in {None, "off", "OFF"}:
        raise cannot("citation_quality", "asks for citations, which engines here don't make")
    turns = list(read.chat_history or ())
    if read.message:
        turns.append(_Turn("USER", read.message))
    elif not read.tool_results:
        raise invalid("message", "is empty", "Send a text, or tool results.")
    if read.tool_results:
        turns.append(_Turn("TOOL", tool_results=read.tool_results))
    messages = _messages(turns)
    if read.preamble:
        messages.insert(0, {"role": "system", "content": read.preamble})
    fields: dict[str, Any] = {
        "model": model,
        "messages": with_documents(messages, _documents(read.documents or ())),
        **read.fields(),
    }
    if read.tools:
        fields["tools"] = [_tool(definition) for definition in read.tools]
    history = tuple(msgspec.to_builtins(turn) for turn in turns)
    return ChatRequest(
        msgspec.json.encode(fields),
        bool(read.stream),
        tuple({key: value for key, value in turn.items() if value is not None} for turn in history),
    )


def _documents(documents: Sequence[dict[str, Any]]) -> list[Document]:
    return [
        Document({key: value for key, value in item.items() if key != "id"}, item.get("id"))
        for item in documents
    ]


def _messages(turns: Sequence[_Turn]) -> list[dict[str, Any]]:
    """Return a conversation in OpenAI's form: there calls have ids, which are counted here."""
    messages: list[dict[str, Any]] = []
    open_calls: list[tuple[str, _Call]] = []
    count = 0
    for turn in turns:
        if turn.role == "TOOL":
            results = turn.tool_results or []
            if not open_calls:
                # The calls are told by their results alone.
                open_calls = [(f"call_{count + n}", r.call) for n, r in enumerate(results)]
                count += len(results)
                messages.append(_calls("", open_calls))
            messages += _results(results, open_calls)
            open_calls = []
            continue
        if turn.role == "CHATBOT" and turn.tool_calls:
            open_calls = [(f"call_{count + n}", call) for n, call in enumerate(turn.tool_calls)]
            count += len(open_calls)
            messages.append(_calls(turn.message or "", open_calls))
            continue
        role = {"USER": "user", "CHATBOT": "assistant", "SYSTEM": "system"}[turn.role]
        messages.append({"role": role, "content": turn.message or ""})
    return messages


def _calls(text: str, calls: Sequence[tuple[str, _Call]]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": msgspec.json.encode(call.parameters).decode(),
                },
            }
            for call_id, call in calls
        ],
    }


def _results(
    results: Sequence[_Result], open_calls: Sequence[tuple[str, _Call]]
) -> list[dict[str, Any]]:
    left = list(open_calls)
    messages = []
    for number, result in enumerate(results):
        found = next((item for item in left if item[1] == result.call), None)
        if found is None:
            raise invalid(
                f"tool_results[{number}].call",
                "answers no call of the conversation",
                "Send the call as the model made it.",
            )
        left.remove(found)
        content = msgspec.json.encode(result.outputs).decode()
        messages.append({"role": "tool", "tool_call_id": found[0], "content": content})
    return messages


_TYPES = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "number",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "list": "array",
    "array": "array",
    "dict": "object",
    "object": "object",
}
"""JSON Schema's types by the names of Python's, which version 1 has."""


def _tool(definition: _Definition) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    parameters = definition.parameter_definitions or {}
    for name, parameter in parameters.items():
        base = parameter.type.split("[", 1)[0].strip().lower()
        kind = _TYPES.get(base)
        if kind is None:
            at = f"tools.{definition.name}.parameter_definitions.{name}.type"
            raise cannot(
                at, f"is {parameter.type!r:.40}, which has no JSON Schema type", "Use str."
            )
        properties[name] = {"type": kind}
        if parameter.description is not None:
            properties[name]["description"] = parameter.description
    schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name, parameter in parameters.items() if parameter.required],
    }
    function: dict[str, Any] = {"name": definition.name, "parameters": schema}
    if definition.description is not None:
        function["description"] = definition.description
    return {"type": "function", "function": function}
