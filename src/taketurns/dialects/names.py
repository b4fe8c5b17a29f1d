# SPDX-License-Identifier: Apache-2.0
"""The dialects that clients speak, and an error as each of them has it."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from taketurns.dialects import openai


class Dialect(StrEnum):
    """Whose API a client was written for."""

    OPENAI = "openai"
    COHERE = "cohere"
    JINA = "jina"
    TEI = "tei"
    ANTHROPIC = "anthropic"


def error_body(
    dialect: Dialect,
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    details: Mapping[str, object] | None = None,
    request_id: str = "",
) -> bytes:
    """Write an error as a client of a dialect reads it.

    Source: the error schemas of OpenAI's, Cohere's, Jina's, TEI's and Anthropic's API references.

    Args:
        dialect: The client's.
        status: HTTP status.
        code: Our stable name of it; beside the dialect's own fields.
        message: What was wrong and what to do.
        param: The field that is wrong, or None.
        details: The reason in figures, for programs.
        request_id: Of the request.
    """
    told: dict[str, object]
    match dialect:
        case Dialect.OPENAI:
            told = {"error": openai.error_object(status, code, message, param)}
        case Dialect.JINA:
            # Jina's clients read `detail`, vLLM's read `error`.
            error = openai.error_object(status, code, message, param)
            told = {"detail": message, "error": error}
        case Dialect.COHERE:
            told = {"id": request_id, "message": message, "code": code}
        case Dialect.TEI:
            told = {"error": message, "error_type": _tei_type(status), "code": code}
        case Dialect.ANTHROPIC:
            error = {"type": _anthropic_type(status), "message": message}
            told = {"type": "error", "error": error, "request_id": request_id, "code": code}
    return msgspec.json.encode({**told, **(details or {})})


def _tei_type(status: int) -> str:
    if status < 429:
        return "Validation"
    return "Overloaded" if status in {429, 503} else "Backend"


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _anthropic_type(status: int) -> str:
    kind = _ANTHROPIC_TYPES.get(status)
    return kind or ("api_error" if status >= 500 else "invalid_request_error")
