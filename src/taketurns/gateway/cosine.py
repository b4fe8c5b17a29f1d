# SPDX-License-Identifier: Apache-2.0
"""Relevance by the cosine of two vectors, for models that embed and don't score."""

import math
from array import array
from collections.abc import Iterator, Sequence
from operator import mul

from taketurns.system import give_way

NUMBERS_AT_ONCE = 16 * 1024
"""So many numbers are worked on before others get their turn: about a millisecond."""


async def scores_of(vectors: Sequence[bytes], queries: int) -> list[float]:
    """Return the cosine of each document's vector with its query's.

    Args:
        vectors: Little-endian float32: those of the queries, then those of the documents.
        queries: How many queries; one stands for all documents.
    """
    scores = []
    numbers = 0
    for score in cosines(vectors, queries):
        scores.append(score)
        numbers += len(vectors[0]) // 4
        if numbers > NUMBERS_AT_ONCE:
            numbers = 0
            await give_way()
    return scores


def cosines(vectors: Sequence[bytes], queries: int = 1) -> Iterator[float]:
    """Yield the cosine of each document with its query; 0 with a vector of no length."""
    query, query_length = _vector(vectors[0])
    for place in range(queries, len(vectors)):
        if queries > 1:
            query, query_length = _vector(vectors[place - queries])
        document, length = _vector(vectors[place])
        product = query_length * length
        yield sum(map(mul, query, document)) / product if product else 0.0


def _vector(vector: bytes) -> tuple[list[float], float]:
    numbers: list[float] = array("f", vector).tolist()
    return numbers, math.hypot(*numbers)
