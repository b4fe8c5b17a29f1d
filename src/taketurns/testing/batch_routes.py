# SPDX-License-Identifier: Apache-2.0
"""What fake servers answer on routes that work in batches: vectors and scores of many kinds."""

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from taketurns.testing.engine import fake_score, fake_tokens, fake_vector

Body = tuple[bytes, Mapping[str, str]]
"""A body, and headers beside it."""


def batch_answer(route: str, fields: Mapping[str, Any], way: str) -> Body | None:
    """Return the answer of a route, or None where it isn't one of these.

    Args:
        route: Path of the request.
        fields: Its body.
        way: What is wrong with the answer, as ``Fault.vectors`` has it.
    """
    if route.endswith("/embeddings"):
        return _embeddings(fields, way), {}
    if route == "/embed":
        vectors = [_numbers(value) for value in fields["inputs"]]
        return msgspec.json.encode(_bare(vectors, way)), _tei(fields["inputs"])
    if route == "/predict":
        scores = [[{"label": "LABEL_0", "score": fake_score(*pair)}] for pair in fields["inputs"]]
        texts = [text for pair in fields["inputs"] for text in pair]
        return msgspec.json.encode(_bare(scores, way)), _tei(texts)
    if route == "/rerank":
        pairs = [(fields["query"], text) for text in fields["texts"]]
        return msgspec.json.encode(_indexed(pairs, "score", way)), _tei(sum(pairs, ()))
    if route.endswith("/score"):
        pairs = list(zip(fields["text_1"], fields["text_2"], strict=True))
        return msgspec.json.encode({"data": _indexed(pairs, "score", way), **_usage(pairs)}), {}
    if route.endswith("/rerank"):
        pairs = [(fields["query"], text) for text in fields["documents"]]
        results = _indexed(pairs, "relevance_score", way)
        results.sort(key=lambda item: -item["relevance_score"])
        return msgspec.json.encode({"results": results, **_usage(pairs)}), {}
    return None


def _numbers(value: Any, length: int = 8) -> list[float]:
    return array("f", fake_vector(value, length)).tolist()


def _tei(texts: Sequence[Any]) -> dict[str, str]:
    return {"x-compute-tokens": str(sum(map(fake_tokens, texts)))}


def _usage(pairs: Sequence[tuple[str, str]]) -> dict[str, object]:
    tokens = sum(fake_tokens(text) for pair in pairs for text in pair)
    return {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _bare(results: list[Any], way: str) -> list[Any]:
    return results[:-1] if way == "missing" else results


def _indexed(pairs: Sequence[tuple[str, str]], field: str, way: str) -> list[dict[str, Any]]:
    items = [{"index": index, field: fake_score(*pair)} for index, pair in enumerate(pairs)]
    return _spoilt(items, way)


def _spoilt(items: list[dict[str, Any]], way: str) -> list[dict[str, Any]]:
    if way == "missing":
        return items[:-1]
    if way == "reversed":
        return items[::-1]
    if way == "repeated":
        return [{**item, "index": 0} for item in items]
    return items


def _embeddings(fields: Mapping[str, Any], way: str) -> bytes:
    given = fields.get("input")
    inputs = given if isinstance(given, list) else [given]
    dimensions = fields.get("dimensions")
    length = dimensions if isinstance(dimensions, int) else 8
    in_base64 = fields.get("encoding_format") == "base64" and way != "numbers"
    items = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(fake_vector(value, length)).decode()
            if in_base64
            else _numbers(value, length),
        }
        for index, value in enumerate(inputs)
    ]
    tokens = sum(map(fake_tokens, inputs))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    data = _spoilt(items, way)
    return msgspec.json.encode(
        {"object": "list", "model": fields.get("model"), "data": data, "usage": usage}
    )
