# SPDX-License-Identifier: Apache-2.0
"""The list of models: one answer that OpenAI's clients and Cohere's both read.

Source: OpenAI's API reference, "Models"; Cohere's, ``GET /v1/models``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

COHERE_ENDPOINTS = {
    "chat": "chat",
    "completions": "generate",
    "embeddings": "embed",
    "rerank": "rerank",
}
"""Cohere's names of endpoints by ours; it has none for others."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model as clients see it.

    Attributes:
        name: By which they ask for it.
        owner: Who it is said to belong to.
        endpoints: What it's asked for.
        tokens_max: Longest text in tokens, or None where that isn't known.
    """

    name: str
    owner: str
    endpoints: Sequence[str]
    tokens_max: int | None

    def openai(self, created_s: int) -> dict[str, object]:
        """Return it in OpenAI's form."""
        return {
            "id": self.name,
            "object": "model",
            "created": created_s,
            "owned_by": self.owner,
        }

    def cohere_endpoints(self) -> list[str]:
        """Return Cohere's names of what it's asked for."""
        return [COHERE_ENDPOINTS[name] for name in self.endpoints if name in COHERE_ENDPOINTS]

    def cohere(self) -> dict[str, object]:
        """Return it in Cohere's form."""
        told: dict[str, object] = {
            "name": self.name,
            "endpoints": self.cohere_endpoints(),
            "default_endpoints": [],
            "finetuned": False,
            "is_deprecated": False,
        }
        if self.tokens_max is not None:
            told["context_length"] = self.tokens_max
        return told


def models_answer(
    models: Sequence[ListedModel], created_s: int, *, endpoint: str | None = None
) -> bytes:
    """Write the answer of ``GET /v1/models``.

    Args:
        models: The models.
        created_s: Seconds since 1970.
        endpoint: Cohere's name of an endpoint that they must have, or None.
    """
    if endpoint is not None:
        models = [model for model in models if endpoint in model.cohere_endpoints()]
    return msgspec.json.encode(
        {
            "object": "list",
            "data": [model.openai(created_s) for model in models],
            "models": [model.cohere() for model in models],
        }
    )


def model_answer(model: ListedModel, created_s: int) -> bytes:
    """Write the answer of ``GET /v1/models/{model}``."""
    return msgspec.json.encode({**model.openai(created_s), **model.cohere()})
