# SPDX-License-Identifier: Apache-2.0
"""One call to an engine for one batch: made from its items, its answer counted."""

from collections.abc import Sequence
from typing import Any, cast

from taketurns.errors import EngineBrokenError
from taketurns.gateway.work import Item, Options
from taketurns.ports.engine import EmbedCall, EmbeddingEngine, ScoreCall, ScoringEngine
from taketurns.system import new_id

BatchEngine = EmbeddingEngine | ScoringEngine


async def call_engine(
    engine: BatchEngine, options: Options, items: Sequence[Item]
) -> tuple[Sequence[bytes | float], int | None]:
    """Return a vector or score for each item, and the tokens that the engine counted.

    Raises:
        EngineError: See the ports; also where the answer's count is wrong.
    """
    results: Sequence[bytes | float]
    tokens: int | None
    inputs = cast("Any", items)
    request_id = new_id("tt-")
    # What an engine can do was seen to when the pool was made.
    if options.score:
        scores = await cast("ScoringEngine", engine).score(
            ScoreCall(inputs, request_id, options.truncate)
        )
        results, tokens = scores.scores, scores.tokens
    else:
        embedded = await cast("EmbeddingEngine", engine).embed(
            EmbedCall(inputs, options.dimensions, request_id, options.truncate)
        )
        results, tokens = embedded.vectors, embedded.tokens
    if len(results) != len(items):
        fault = f"{len(results)} results came for {len(items)} items"
        raise EngineBrokenError(engine.name, fault)
    return results, tokens
