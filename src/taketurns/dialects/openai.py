# SPDX-License-Identifier: Apache-2.0
"""OpenAI's dialect: reads embeddings requests, writes their answers and errors.

For chat and completions see :mod:`taketurns.dialects.openai_generation`.

Source: OpenAI's API reference (embeddings, errors), checked against the
official Python client.
"""

import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from taketurns.dialects.choices import choices
from taketurns.errors import RequestError
from taketurns.ports.engine import EmbedInput

BYTES_PER_TOKEN = 4
"""Bytes of text that one token stands for where no tokenizer counts: English, about."""


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """An embeddings request.

    Attributes:
        model: Name that the client asked for.
        inputs: Texts or token ids, at least one; each is read, and refused where it's empty,
            when its turn comes.
        base64: Vectors as base64 of little-endian float32, else as lists of numbers.
        dimensions: Length of the vectors asked for, or None.
    """

    model: str
    inputs: Iterator[EmbedInput]
    base64: bool
    dimensions: int | None


class _Embeddings(msgspec.Struct):
    model: str
    input: msgspec.Raw
    encoding_format: str | None = None
    dimensions: int | None = None


_EMBEDDINGS = msgspec.json.Decoder(_Embeddings)
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(list[int])
_PARTS = msgspec.json.Decoder(list[msgspec.Raw])


def parse_embeddings(body: bytes, *, inputs_max: int) -> EmbeddingsRequest:
    """Read the body of ``POST /v1/embeddings``.

    Args:
        body: The body.
        inputs_max: Most texts in one request.

    Raises:
        RequestError: 400, naming the field that is wrong.
    """
    read: _Embeddings = decode(_EMBEDDINGS, body)
    if read.encoding_format not in {None, "float", "base64"}:
        raise invalid(
            "encoding_format",
            f"is {read.encoding_format!r:.60}",
            'Send "float" or "base64".',
        )
    if read.dimensions is not None and read.dimensions < 1:
        raise invalid("dimensions", f"is {read.dimensions}", "Send a number of at least 1.")
    inputs = each_input(bytes(read.input), "input", count_max=inputs_max)
    return EmbeddingsRequest(read.model, inputs, read.encoding_format == "base64", read.dimensions)


def embeddings_answer(
    model: str, vectors: Sequence[bytes], tokens: int, *, as_base64: bool
) -> Iterator[bytes]:
    """Write the answer to an embeddings request, in pieces of a vector each.

    Args:
        model: Name that the client asked for.
        vectors: Little-endian float32, in the order of the request's texts.
        tokens: Tokens of the request.
        as_base64: Write base64, else lists of numbers.
    """
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        if as_base64:
            value = b'"%b"' % binascii.b2a_base64(vector, newline=False)
        else:
            value = msgspec.json.encode(memoryview(vector).cast("f").tolist())
        comma = b"," if index else b""
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, value)
    name = msgspec.json.encode(model)
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    yield b'],"model":%b,"usage":%b}' % (name, usage)


_TYPE_BY_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_answer(
    status: int,
    code: str,
    message: str,
    param: str | None = None,
    details: Mapping[str, object] | None = None,
) -> bytes:
    """Write an error in OpenAI's form; ``details`` stand beside it, for programs."""
    error = error_object(status, code, message, param)
    return msgspec.json.encode({"error": error, **(details or {})})


def error_object(
    status: int, code: str, message: str, param: str | None = None
) -> dict[str, object]:
    """Return what stands under ``error``."""
    kind = _TYPE_BY_STATUS.get(status)
    if kind is None:
        kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def read_inputs(raw: bytes, field: str) -> Sequence[EmbedInput]:
    """Read a text, texts, token ids or lists of token ids; none is empty.

    Raises:
        RequestError: 400, naming the one that is wrong.
    """
    return list(each_input(raw, field))


def each_input(raw: bytes, field: str, *, count_max: int | None = None) -> Iterator[EmbedInput]:
    """Return an iterator that does what :func:`read_inputs` does one by one.

    Args:
        raw: JSON.
        field: Where it stood, for errors.
        count_max: Most inputs, or None.

    Raises:
        RequestError: 400: at once where it's none of these, empty, or too long; while
            iterating where an input is wrong.
    """
    text = raw.lstrip()
    inner = text[1:].lstrip()
    if text.startswith(b'"'):
        return iter([_filled(decode(_TEXT, text, under=field), field)])
    if not text.startswith(b"["):
        raise invalid(
            field, "must be a text, a list of texts, or token ids", "Send text in quotes."
        )
    if inner.startswith(b"]"):
        raise invalid(field, "is empty", "Send at least one text.")
    if not inner.startswith((b"[", b'"')):
        return iter([_filled(decode(_IDS, text, under=field), field)])
    parts = decode(_PARTS, text, under=field)
    if count_max is not None and len(parts) > count_max:
        raise too_large(
            field,
            f"has {len(parts)} entries, and the most is {count_max}",
            "Send them in several requests.",
        )
    decoder = _IDS if inner.startswith(b"[") else _TEXT
    places = ((f"{field}[{index}]", part) for index, part in enumerate(parts))
    return (_filled(decode(decoder, part, under=where), where) for where, part in places)


def _filled(item: EmbedInput, where: str) -> EmbedInput:
    if not item:
        raise invalid(where, "is empty", "Leave it out, or send a text.")
    if not isinstance(item, str) and min(item) < 0:
        raise invalid(where, "has a negative token id", "Send ids of the model's vocabulary.")
    return item


_AT = re.compile(r" - at `\$?(.*?)`$")


def decode(decoder: "msgspec.json.Decoder[Any]", data: bytes, *, under: str = "") -> Any:
    """Decode JSON, and turn what is wrong with it into a 400 that names the field."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _AT.search(message)
        path = under + (found[1] if found else "")
        unknown = re.search(r"unknown field `(.*?)`", message)
        if unknown:
            # Only where a body is translated: what is passed on is for the engine to judge.
            field = f"{path}.{unknown[1]}".lstrip(".")
            raise RequestError(
                422,
                "unsupported_field",
                f"`{field}` is not supported.",
                param=field,
                hint="Leave it out.",
            ) from None
        hint = ""
        missing = re.search(r"missing required field `(.*?)`", message)
        problem = _AT.sub("", message)
        if missing:
            path = f"{path}.{missing[1]}"
            problem = "is missing"
        elif problem.startswith("Expected"):
            problem = "must be " + problem.removeprefix("Expected ").replace(", got ", ", not ")
        elif problem.startswith("Invalid enum value"):
            problem = "can't be " + problem.removeprefix("Invalid enum value ")
            if found and (known := choices(decoder.type, found[1])):
                hint = f"Send one of: {', '.join(known)}."
        raise invalid(path.lstrip(".") or None, problem, hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            400, "invalid_json", f"The body is not valid JSON: {error}.", param=under or None
        ) from None
    except RecursionError:
        raise RequestError(
            400, "invalid_json", "The body is nested too deeply.", param=under or None
        ) from None


def invalid(field: str | None, problem: str, hint: str = "") -> RequestError:
    """Return the 400 that says what is wrong with a field, or with the body as a whole."""
    message = f"`{field}` {problem}." if field else f"The body {problem}."
    return RequestError(400, "invalid_value", message, param=field, hint=hint)


class TooLargeError(RequestError):
    """A request has too many texts, or a text too many tokens: TEI has a status of its own."""


def too_large(field: str, problem: str, hint: str) -> TooLargeError:
    """Return the 400 that says what is too large."""
    return TooLargeError(400, "invalid_value", f"`{field}` {problem}.", param=field, hint=hint)


def cannot(field: str, why: str, hint: str = "Leave it out.") -> RequestError:
    """Return the 422 that names a field that no engine here can be asked for."""
    return RequestError(422, "unsupported_field", f"`{field}` {why}.", param=field, hint=hint)
