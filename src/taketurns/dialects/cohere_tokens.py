# SPDX-License-Identifier: Apache-2.0
"""Cohere's tokenize and detokenize: reads requests, writes answers.

Source: Cohere's API reference, ``POST /v1/tokenize`` and ``POST /v1/detokenize``,
checked against the official Python client.
"""

from collections.abc import Sequence

import msgspec

from taketurns.dialects.cohere import meta
from taketurns.dialects.openai import decode, invalid

TEXT_CHARACTERS_MAX = 65_536
"""Longest text, as Cohere documents it."""

TOKENS_MAX = 65_536
"""Most token ids in one request."""


class _Tokenize(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    model: str | None = None


class _Detokenize(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[int]
    model: str | None = None


_TOKENIZE = msgspec.json.Decoder(_Tokenize)
_DETOKENIZE = msgspec.json.Decoder(_Detokenize)


def parse_tokenize(body: bytes) -> str:
    """Return the text of ``POST /v1/tokenize``.

    Raises:
        RequestError: 400 where it can't be; 422 for a field that isn't known.
    """
    read: _Tokenize = decode(_TOKENIZE, body)
    if not 1 <= len(read.text) <= TEXT_CHARACTERS_MAX:
        raise invalid("text", f"must have 1 to {TEXT_CHARACTERS_MAX} characters", "Send another.")
    return read.text


def tokenize_answer(tokens: Sequence[tuple[int, str]]) -> bytes:
    """Write the answer: ids, and the text of each."""
    ids = [token for token, _ in tokens]
    texts = [text for _, text in tokens]
    return msgspec.json.encode({"tokens": ids, "token_strings": texts, "meta": meta("1")})


def parse_detokenize(body: bytes, vocabulary_size: int) -> list[int]:
    """Return the ids of ``POST /v1/detokenize``.

    Raises:
        RequestError: 400 where they can't be; 422 for a field that isn't known.
    """
    read: _Detokenize = decode(_DETOKENIZE, body)
    tokens = read.tokens
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise invalid("tokens", f"has {len(tokens)} ids, and 1 to {TOKENS_MAX} are allowed")
    if min(tokens) < 0 or max(tokens) >= vocabulary_size:
        raise invalid("tokens", f"has an id outside of 0 to {vocabulary_size - 1}")
    return tokens


def detokenize_answer(text: str) -> bytes:
    """Write the answer."""
    return msgspec.json.encode({"text": text, "meta": meta("1")})
