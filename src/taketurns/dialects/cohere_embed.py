# SPDX-License-Identifier: Apache-2.0
"""Cohere's embed, versions 1 and 2: reads requests, makes every embedding type from float.

Source: Cohere's API reference, ``POST /v1/embed`` and ``POST /v2/embed``, checked
against the official Python client. How Cohere makes its bytes from floats is
not published: see :func:`as_int8`.
"""

import base64
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from taketurns.dialects.cohere import meta
from taketurns.dialects.openai import cannot, decode, invalid

TEXTS_MAX = 96
"""Most texts in one request, as Cohere documents it."""

Truncate = Literal["NONE", "START", "END"]


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """An embed request of Cohere's.

    Attributes:
        version: ``1`` or ``2``.
        texts: At least one, none of them empty.
        types: Embedding types wanted; empty: version 1's bare lists of floats.
        dimensions: Length of the vectors asked for, or None.
        truncate: Which end of a text that is too long is cut off, or ``NONE``.
        tokens_max: Most tokens of a text that it asks for, or None.
        input_type: What the texts are for; empty: not said.
    """

    version: str
    texts: Sequence[str]
    types: Sequence[str]
    dimensions: int | None
    truncate: Truncate
    tokens_max: int | None
    input_type: str


InputType = Literal["search_document", "search_query", "classification", "clustering"]
EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    text: str | None = None
    image_url: Any = None


class _Input(msgspec.Struct, forbid_unknown_fields=True):
    content: list[_Content]


class _EmbedV1(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    texts: list[str] | None = None
    images: list[str] | None = None
    model: str | None = None
    input_type: Literal[InputType, "image"] | None = None
    embedding_types: list[EmbeddingType] | None = None
    truncate: Truncate | None = None
    priority: int | None = None


class _EmbedV2(_EmbedV1, kw_only=True, forbid_unknown_fields=True):
    inputs: list[_Input] | None = None
    max_tokens: int | None = None
    output_dimension: int | None = None


_V1 = msgspec.json.Decoder(_EmbedV1)
_V2 = msgspec.json.Decoder(_EmbedV2)


def parse_embed(body: bytes, version: str) -> EmbedRequest:
    """Read the body of ``POST /v1/embed`` or ``/v2/embed``.

    Raises:
        RequestError: 400 where a value is wrong, 422 where a field can't be translated.
    """
    if version == "1":
        read: _EmbedV1 = decode(_V1, body)
        dimensions = tokens_max = None
        types = tuple(dict.fromkeys(read.embedding_types or ()))
    else:
        read = two = decode(_V2, body)
        dimensions = _at_least_one(two.output_dimension, "output_dimension")
        tokens_max = _at_least_one(two.max_tokens, "max_tokens")
        types = tuple(dict.fromkeys(two.embedding_types or ("float",)))
        if two.input_type is None:
            raise invalid("input_type", "is missing", 'Send "search_document", for example.')
    if read.images is not None or read.input_type == "image":
        raise cannot("images" if read.images is not None else "input_type", "asks for images")
    return EmbedRequest(
        version=version,
        texts=_texts_of(read),
        types=types,
        dimensions=dimensions,
        truncate=read.truncate or "END",
        tokens_max=tokens_max,
        input_type=read.input_type or "",
    )


def _texts_of(read: _EmbedV1) -> Sequence[str]:
    field, texts = "texts", read.texts
    if isinstance(read, _EmbedV2) and read.inputs is not None:
        if texts is not None:
            raise invalid("inputs", "can't stand beside `texts`", "Send one of them.")
        field, texts = "inputs", _texts(read.inputs)
    if texts is None:
        raise invalid("texts", "is missing")
    if not 1 <= len(texts) <= TEXTS_MAX:
        raise invalid(
            field,
            f"has {len(texts)} entries, and 1 to {TEXTS_MAX} are allowed",
            "Send them in several requests." if texts else "Send at least one text.",
        )
    for index, text in enumerate(texts):
        if not text:
            raise invalid(f"{field}[{index}]", "is empty", "Leave it out, or send a text.")
    return texts


def _texts(inputs: Sequence[_Input]) -> list[str]:
    texts = []
    for index, item in enumerate(inputs):
        for part in item.content:
            if part.type != "text" or part.text is None:
                raise cannot(f"inputs[{index}].content", "can only be text")
        texts.append("\n".join(part.text or "" for part in item.content))
    return texts


def _at_least_one(value: int | None, field: str) -> int | None:
    if value is not None and value < 1:
        raise invalid(field, f"is {value}", "Send a number of at least 1.")
    return value


def embed_answer(
    request: EmbedRequest, vectors: Sequence[bytes], tokens: int, answer_id: str
) -> Iterator[bytes]:
    """Write the answer, in pieces of a vector each.

    Args:
        request: The request.
        vectors: Little-endian float32, in the order of the texts.
        tokens: Tokens of all texts.
        answer_id: Id of the answer.
    """
    told = {
        "id": answer_id,
        "texts": request.texts,
        "meta": meta(request.version, input_tokens=tokens),
        "response_type": "embeddings_by_type" if request.types else "embeddings_floats",
    }
    yield msgspec.json.encode(told).removesuffix(b"}") + b',"embeddings":'
    if not request.types:
        yield from _listed(vectors, as_float)
    before = b"{"
    for kind in request.types:
        yield b"%b%b:" % (before, msgspec.json.encode(kind))
        yield from _listed(vectors, TYPES[kind])
        before = b","
    yield b"}}" if request.types else b"}"


def _listed(vectors: Sequence[bytes], made: Callable[[bytes], object]) -> Iterator[bytes]:
    before = b"["
    for vector in vectors:
        yield before + msgspec.json.encode(made(vector))
        before = b","
    yield b"]"


def as_float(vector: bytes) -> list[float]:
    """Return a vector's numbers."""
    return array("f", vector).tolist()


def as_int8(vector: bytes) -> list[int]:
    """Return a vector's direction in whole numbers from -128 to 127.

    The vector is brought to length 1 and scaled so that 127 stands for four times
    the root mean square of its numbers; what lies beyond is cut off. The scale is
    the same for all vectors of a model, so that products of two of them compare.
    """
    numbers = as_float(vector)
    length = math.hypot(*numbers) or 1.0
    scale = 127 * math.sqrt(len(numbers)) / 4 / length
    return [max(-128, min(127, round(number * scale))) for number in numbers]


def as_uint8(vector: bytes) -> list[int]:
    """Return :func:`as_int8` moved to 0 to 255."""
    return [number + 128 for number in as_int8(vector)]


def as_ubinary(vector: bytes) -> list[int]:
    """Return the signs, eight to a byte, the first in its highest bit; above 0 is 1."""
    bits = [number > 0 for number in as_float(vector)]
    bits += [False] * (-len(bits) % 8)
    return [
        sum(bit << (7 - place) for place, bit in enumerate(bits[start : start + 8]))
        for start in range(0, len(bits), 8)
    ]


def as_binary(vector: bytes) -> list[int]:
    """Return :func:`as_ubinary` moved to -128 to 127."""
    return [byte - 128 for byte in as_ubinary(vector)]


def as_base64(vector: bytes) -> str:
    """Return the little-endian float32 bytes in base64."""
    return base64.b64encode(vector).decode()


TYPES: Mapping[str, Callable[[bytes], object]] = {
    "float": as_float,
    "int8": as_int8,
    "uint8": as_uint8,
    "binary": as_binary,
    "ubinary": as_ubinary,
    "base64": as_base64,
}
"""How each embedding type is made of a vector."""
