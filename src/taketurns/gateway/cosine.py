# SPDX-License-Identifier: Apache-2.0
"""Relevance by the cosine of two vectors, for models that embed and don't score."""

import asyncio
import math
from collections.abc import Sequence
from operator import mul

NUMBERS_INLINE_MAX = 16 * 1024
"""Vectors up to this many numbers are worked on on the event loop: at most some milliseconds."""


async def scores_of(vectors: Sequence[bytes], queries: int) -> list[float]:
    """Return the cosine of each document's vector with its query's.

    Args:
        vectors: Little-endian float32: those of the queries, then those of the documents.
        queries: How many queries; one stands for all documents.
    """
    if sum(map(len, vectors)) // 4 <= NUMBERS_INLINE_MAX:
        return cosines(vectors, queries)
    return await asyncio.to_thread(cosines, vectors, queries)


def cosines(vectors: Sequence[bytes], queries: int = 1) -> list[float]:
    """Return the cosine of each document with its query; 0 with a vector of no length."""
    numbers = [memoryview(vector).cast("f").tolist() for vector in vectors]
    lengths = [math.hypot(*vector) for vector in numbers]
    scores = []
    for place in range(queries, len(numbers)):
        query = 0 if queries == 1 else place - queries
        product = lengths[query] * lengths[place]
        dot = sum(map(mul, numbers[query], numbers[place]))
        scores.append(dot / product if product else 0.0)
    return scores
