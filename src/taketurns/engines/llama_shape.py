# SPDX-License-Identifier: Apache-2.0
"""What llama.cpp is asked and what it answers, brought into OpenAI's form; no I/O.

A generation always runs as a stream, because only a stream can be cancelled
between tokens. :class:`StreamShaper` writes its chunks as server-sent events,
:class:`WholeShaper` puts them together into one answer.

Only the request fields in ``_FIELDS`` reach llama.cpp. Others are left out, as
servers do with fields they don't know: llama.cpp has some that reach past the
request, such as ``id_slot``, which picks another request's place.
"""

import json
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

_FIELDS = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "min_p",
        "presence_penalty",
        "prompt",
        "repeat_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)


class ShapeError(Exception):
    """The call can't be served; status and body are the answer.

    Attributes:
        status: HTTP status, 400 to 599.
        body: JSON in the form of OpenAI's errors.
    """

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class LlamaRequest:
    """One generation, as it is given to llama.cpp.

    Attributes:
        chat: True for chat, False for completions.
        fields: The request's fields, for a stream with usage and progress.
        model: Name that the answer gives as its model's.
        usage_wanted: True where the stream shall end with a usage chunk.
    """

    chat: bool
    fields: Json
    model: str
    usage_wanted: bool


def error_body(status: int, message: str, *, code: str, param: str | None = None) -> bytes:
    """Return JSON in the form of OpenAI's errors."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


def request_from(path: str, body: bytes, *, model: str) -> LlamaRequest:
    """Return what to ask llama.cpp.

    Args:
        path: Route of the call.
        body: JSON of the call, in OpenAI's form.
        model: Name of the model for calls that name none.

    Raises:
        ShapeError: Not a route, not a JSON object, or more than one choice is asked for.
    """
    if path not in {CHAT_PATH, COMPLETIONS_PATH}:
        message = f"no route {path}; there are {CHAT_PATH} and {COMPLETIONS_PATH}"
        raise ShapeError(404, error_body(404, message, code="not_found"))
    asked = _object(body)
    # One call is one slot: several choices would take slots that the scheduler gave to others.
    if asked.get("n") not in {None, 1}:
        raise _refusal("n must be 1: this engine gives one choice to a call", "n")
    fields = {key: value for key, value in asked.items() if key in _FIELDS and value is not None}
    chat = path == CHAT_PATH
    if chat:
        fields.pop("prompt", None)
    else:
        fields.pop("messages", None)
        fields["prompt"] = _prompt(asked.get("prompt"))
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    # Progress comes during the prompt too, and with it a chance to cancel.
    fields["return_progress"] = True
    # A prompt of another tenant, kept for reuse, would show in times and in `cached_tokens`.
    fields["cache_prompt"] = False
    named = asked.get("model")
    options = asked.get("stream_options")
    return LlamaRequest(
        chat=chat,
        fields=fields,
        model=named if isinstance(named, str) and named else model,
        usage_wanted=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _object(body: bytes) -> Json:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"the body is not JSON: {error}", None) from error
    if not isinstance(asked, dict):
        raise _refusal("the body must be a JSON object", None)
    return asked


def _prompt(prompt: Any) -> str | list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return prompt
    raise _refusal("prompt must be one text, or one list of token ids", "prompt")


def _refusal(message: str, param: str | None) -> ShapeError:
    return ShapeError(400, error_body(400, message, code="invalid_request", param=param))


def error_from(chunk: Json) -> ShapeError | None:
    """Return the error that llama.cpp gave in place of a chunk, or None."""
    error = chunk.get("error")
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    kind = str(error.get("type", "engine_error"))
    if kind == "exceed_context_size_error":
        kind = "context_length_exceeded"
    message = str(error.get("message", "the engine failed"))
    return ShapeError(status, error_body(status, message, code=kind))


class Shaper(Protocol):
    """Makes the body of an answer out of llama.cpp's chunks."""

    def feed(self, chunk: Json) -> bytes:
        """Take one chunk; return what of the body it completes, perhaps nothing."""
        ...

    def finish(self) -> bytes:
        """Return the rest of the body."""
        ...


class StreamShaper:
    """Implements :class:`Shaper`: one server-sent event for each chunk."""

    def __init__(self, request: LlamaRequest) -> None:
        self._request = request
        self._head: Json = {}
        self._usage: Json | None = None

    def feed(self, chunk: Json) -> bytes:
        if "prompt_progress" in chunk:
            return b""
        usage = _tidy(chunk, self._request.model)
        self._usage = usage or self._usage
        if not chunk["choices"]:
            return b""
        if not self._head:
            self._head = {key: value for key, value in chunk.items() if key != "choices"}
        for choice in chunk["choices"]:
            # The chunk with the role: OpenAI's has an empty text where llama.cpp's has null.
            if "role" in choice.get("delta", ()):
                choice["delta"]["content"] = choice["delta"].get("content") or ""
        return _event(chunk)

    def finish(self) -> bytes:
        done = b"data: [DONE]\n\n"
        if not self._request.usage_wanted:
            return done
        return _event({**self._head, "choices": [], "usage": self._usage}) + done


class WholeShaper:
    """Implements :class:`Shaper`: one JSON object at the end."""

    def __init__(self, request: LlamaRequest) -> None:
        self._request = request
        self._head: Json = {}
        self._usage: Json | None = None
        self._texts: list[str] = []
        self._logprobs: list[Json] = []
        self._finish_reason: str | None = None

    def feed(self, chunk: Json) -> bytes:
        if "prompt_progress" in chunk:
            return b""
        usage = _tidy(chunk, self._request.model)
        self._usage = usage or self._usage
        self._head = self._head or {key: chunk[key] for key in chunk if key != "choices"}
        for choice in chunk["choices"]:
            text = choice["delta"].get("content") if self._request.chat else choice["text"]
            self._texts.append(text or "")
            self._logprobs += (choice.get("logprobs") or {}).get("content") or []
            self._finish_reason = choice["finish_reason"] or self._finish_reason
        return b""

    def finish(self) -> bytes:
        text = "".join(self._texts)
        choice: Json = {"index": 0, "finish_reason": self._finish_reason, "logprobs": None}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        if self._request.chat:
            choice["message"] = {"role": "assistant", "content": text}
            self._head["object"] = "chat.completion"
        else:
            choice["text"] = text
        whole = {**self._head, "choices": [choice], "usage": self._usage}
        return json.dumps(whole, ensure_ascii=False).encode()


def _tidy(chunk: Json, model: str) -> Json | None:
    """Take out what isn't OpenAI's, name the model, and return the usage if there is one."""
    chunk["model"] = model
    chunk.pop("timings", None)
    usage = chunk.pop("usage", None)
    return usage if isinstance(usage, dict) else None


def _event(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
