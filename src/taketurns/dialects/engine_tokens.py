# SPDX-License-Identifier: Apache-2.0
"""How engines are asked for tokens: each kind in its own way, by ``/tokenize`` and ``/detokenize``.

Source: vLLM's OpenAPI description; llama.cpp's server README.
"""

from collections.abc import Sequence

import msgspec

KINDS = frozenset({"vllm", "llamacpp"})
"""Kinds of engines that can be asked."""


class _Piece(msgspec.Struct):
    id: int
    # Bytes where they are no text by themselves.
    piece: str | list[int]


class _LlamaTokens(msgspec.Struct):
    tokens: list[_Piece]


class _VllmTokens(msgspec.Struct):
    tokens: list[int]
    token_strs: list[str]


class _Text(msgspec.Struct):
    content: str | None = None
    prompt: str | None = None


def tokenize_body(kind: str, model: str, text: str) -> bytes:
    """Write the body that asks for a text's tokens.

    Args:
        kind: One of ``KINDS``.
        model: The engine's own name of the model.
        text: The text.
    """
    if kind == "vllm":
        return msgspec.json.encode(
            {
                "model": model,
                "prompt": text,
                "add_special_tokens": False,
                "return_token_strs": True,
            }
        )
    return msgspec.json.encode({"content": text, "add_special": False, "with_pieces": True})


def read_tokens(kind: str, body: bytes) -> list[tuple[int, str]]:
    """Return id and text of each token that an engine tells.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, ValueError: The body is no such answer.
    """
    if kind == "vllm":
        told = msgspec.json.decode(body, type=_VllmTokens)
        return list(zip(told.tokens, told.token_strs, strict=True))
    pieces = msgspec.json.decode(body, type=_LlamaTokens).tokens
    return [(piece.id, _as_text(piece.piece)) for piece in pieces]


def _as_text(piece: str | list[int]) -> str:
    return piece if isinstance(piece, str) else bytes(piece).decode("utf-8", "replace")


def detokenize_body(kind: str, model: str, ids: Sequence[int]) -> bytes:
    """Write the body that asks for the text of tokens."""
    if kind == "vllm":
        return msgspec.json.encode({"model": model, "tokens": ids})
    return msgspec.json.encode({"tokens": ids})


def read_text(body: bytes) -> str:
    """Return the text that an engine tells.

    Raises:
        msgspec.MsgspecError, UnicodeDecodeError, ValueError: The body is no such answer.
    """
    told = msgspec.json.decode(body, type=_Text)
    text = told.content if told.content is not None else told.prompt
    if text is None:
        raise ValueError("it has no text")
    return text
