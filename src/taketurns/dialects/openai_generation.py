# SPDX-License-Identifier: Apache-2.0
"""Reads chat and completions requests in OpenAI's dialect, and writes them for an engine.

Only the fields that scheduling needs are read. An engine gets the body as it
came, byte by byte, but for what the gateway itself has to say in it: what is
added stands in front, and only where something is taken out or replaced is the
body put together anew, each value as it was written.

Source: OpenAI's API reference (chat completions, completions); vLLM's, SGLang's and
llama.cpp's additions to it.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from taketurns.dialects.openai import decode, invalid, read_inputs

CHOICES_MAX = 128
"""Most choices (``n``, ``best_of``) of one request, as OpenAI documents it."""

OUTPUT_TOKENS_MAX = 10_000_000
"""Most tokens that a request may ask for; no engine has that much room."""

NOT_PASSED = frozenset(
    {
        # Whoever chose these could take another's place, or read another's cache.
        "priority",
        "cache_salt",
        "extra_key",
        "id_slot",
        "request_id",
        "rid",
        "session_id",
        "session_params",
        # These choose another model than the one that was asked for.
        "lora",
        "lora_path",
        # These choose where an engine, or a proxy that stands as one, connects to.
        "kv_transfer_params",
        "disagg_prefill_dp_rank",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "data_parallel_rank",
        "routed_dp_rank",
        "api_base",
        "base_url",
        "api_key",
        "user_config",
        "extra_headers",
        "proxies",
    }
)
"""Fields that no engine gets from a client."""


class GenerationRequest(msgspec.Struct, frozen=True):
    """A chat or completions request, as an engine understands it.

    Attributes:
        path: Route at the engine, such as ``/v1/chat/completions``.
        model: Name that the client asked for.
        stream: It asks for server-sent events.
        include_usage: It asks for a last event with the usage.
        prompt_bytes: Size of its prompt's text, in bytes.
        prompt_tokens: Tokens that it gives as ids, in addition to the text.
        choices: Answers that it asks for, at least 1.
        output_tokens_max: Most tokens it asks for, over all choices; None: no limit given.
        fields: Names of its fields.
        body: JSON, as it came.
    """

    path: str
    model: str
    stream: bool
    include_usage: bool
    prompt_bytes: int
    prompt_tokens: int
    choices: int
    output_tokens_max: int | None
    fields: AbstractSet[str]
    body: bytes

    def body_for(
        self, model: str, *, ask_usage: bool = False, said: Mapping[str, bytes] | None = None
    ) -> bytes:
        """Return the body for an engine.

        Args:
            model: The engine's own name of the model.
            ask_usage: Ask for a last event with the usage, where the answer is a stream.
            said: What the gateway says beside it: JSON by field.
        """
        put = dict(said or {})
        taken_out = self.fields & NOT_PASSED
        if model != self.model:
            put["model"] = msgspec.json.encode(model)
        if ask_usage and self.stream and not self.include_usage:
            put["stream_options"] = _with_usage(self)
        if not put and not taken_out:
            return self.body
        if not taken_out and self.fields.isdisjoint(put):
            # In front, since behind the last field a body may end in anything.
            head = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in put.items())
            start = self.body.index(b"{") + 1
            return b"%b%b,%b" % (self.body[:start], head, self.body[start:])
        fields = msgspec.json.decode(self.body, type=dict[str, msgspec.Raw])
        for name in taken_out:
            del fields[name]
        fields.update((name, msgspec.Raw(value)) for name, value in put.items())
        return msgspec.json.encode(fields)


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Message(msgspec.Struct):
    role: msgspec.Raw


class _Chat(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None


class _Completions(msgspec.Struct):
    model: str
    prompt: msgspec.Raw
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None


_CHAT = msgspec.json.Decoder(_Chat)
_COMPLETIONS = msgspec.json.Decoder(_Completions)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

Fields = Mapping[str, msgspec.Raw]
"""The fields of a body as they came, by name."""


def parse_chat(body: bytes, fields: Fields | None = None) -> GenerationRequest:
    """Read the body of ``POST /v1/chat/completions``.

    Args:
        body: The body.
        fields: Its fields, where they were read before.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Chat = decode(_CHAT, body)
    known: Fields = decode(_FIELDS, body) if fields is None else fields
    if not read.messages:
        raise invalid("messages", "must not be empty", "Send at least one message.")
    limit = output_limit(read.max_tokens, "max_tokens")
    limit = output_limit(read.max_completion_tokens, "max_completion_tokens") or limit
    choices = _choices(read.n, "n")
    return GenerationRequest(
        path="/v1/chat/completions",
        model=read.model,
        stream=bool(read.stream),
        include_usage=_asks_usage(read.stream_options),
        prompt_bytes=len(known["messages"]),
        prompt_tokens=0,
        choices=choices,
        output_tokens_max=None if limit is None else limit * choices,
        fields=known.keys(),
        body=body,
    )


def parse_completions(body: bytes, fields: Fields | None = None) -> GenerationRequest:
    """Read the body of ``POST /v1/completions``.

    Args:
        body: The body.
        fields: Its fields, where they were read before.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Completions = decode(_COMPLETIONS, body)
    known: Fields = decode(_FIELDS, body) if fields is None else fields
    prompts = read_inputs(bytes(read.prompt), "prompt")
    limit = output_limit(read.max_tokens, "max_tokens")
    # Each prompt has as many answers; of best_of all are made, and n are shown.
    each = max(_choices(read.n, "n"), _choices(read.best_of or None, "best_of"))
    choices = each * len(prompts)
    return GenerationRequest(
        path="/v1/completions",
        model=read.model,
        stream=bool(read.stream),
        include_usage=_asks_usage(read.stream_options),
        prompt_bytes=sum(len(prompt.encode()) for prompt in prompts if isinstance(prompt, str)),
        prompt_tokens=sum(len(prompt) for prompt in prompts if not isinstance(prompt, str)),
        choices=choices,
        output_tokens_max=None if limit is None else limit * choices,
        fields=known.keys(),
        body=body,
    )


def _asks_usage(options: _StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


def _with_usage(request: GenerationRequest) -> bytes:
    """Return a request's stream options, with the usage asked for."""
    if "stream_options" not in request.fields:
        return b'{"include_usage":true}'
    given = _FIELDS.decode(request.body)["stream_options"]
    options = msgspec.json.decode(given, type=dict[str, msgspec.Raw] | None) or {}
    return msgspec.json.encode({**options, "include_usage": True})


def _choices(value: int | None, field: str) -> int:
    choices = 1 if value is None else value
    if not 1 <= choices <= CHOICES_MAX:
        raise invalid(field, f"is {choices}", f"Send a number from 1 to {CHOICES_MAX}.")
    return choices


def output_limit(value: int | None, field: str) -> int | None:
    """Return the limit that a request sets; None where it sets none.

    Raises a 400 that names the field where it can't be. 0 is passed on and counts as none:
    engines differ in what they make of it.
    """
    if value is not None and not 0 <= value <= OUTPUT_TOKENS_MAX:
        raise invalid(field, f"is {value}", f"Send a number from 0 to {OUTPUT_TOKENS_MAX:,}.")
    return value or None
