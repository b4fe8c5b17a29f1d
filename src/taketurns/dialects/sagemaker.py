# SPDX-License-Identifier: Apache-2.0
"""SageMaker's container contract: one URL for all, so the body's shape says what is asked.

The platform strips clients' headers but for
``X-Amzn-SageMaker-Custom-Attributes``, at most 1,024 visible ASCII characters.

Source: Amazon SageMaker AI's developer guide, "Custom inference code with hosting services".
"""

from collections.abc import Container, Mapping

from taketurns.errors import RequestError

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"

SHAPES: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"messages"}), "/v1/chat/completions"),
    (frozenset({"message"}), "/v1/chat"),
    (frozenset({"prompt"}), "/v1/completions"),
    (frozenset({"query", "documents"}), "/v1/rerank"),
    (frozenset({"query", "texts"}), "/rerank"),
    (frozenset({"text_1", "text_2"}), "/score"),
    (frozenset({"queries"}), "/score"),
    (frozenset({"texts"}), "/v2/embed"),
    (frozenset({"inputs"}), "/embed"),
    (frozenset({"input"}), "/v1/embeddings"),
)
"""Where a body goes that has these fields; the first that fits."""

COHERE_SHAPES: Mapping[str, str] = {
    "/v1/chat/completions": "/v2/chat",
    "/v1/rerank": "/v2/rerank",
}
"""Where it goes instead, if it's written for Cohere's API: the shape alone doesn't tell."""


def path_of(fields: Container[str], *, dialect: str | None = None) -> str:
    """Return the path under which a body of such fields is served.

    Args:
        fields: Names of its fields.
        dialect: ``cohere`` where the client says so.

    Raises:
        RequestError: 400 where it has no shape that is known.
    """
    for shape, path in SHAPES:
        if all(name in fields for name in shape):
            return COHERE_SHAPES.get(path, path) if dialect == "cohere" else path
    raise RequestError(
        400,
        "invalid_value",
        "The body has none of the fields by which its endpoint is told.",
        hint="Send `messages`, `message`, `prompt`, `input`, `inputs`, `texts` or `query`.",
    )


def attributes_of(value: str | None) -> dict[str, str]:
    """Return the attributes ``name=value, name=value``; what has no ``=`` is somebody else's."""
    pairs = (part.partition("=") for part in (value or "").split(","))
    return {name.strip(): text.strip() for name, equals, text in pairs if equals}
