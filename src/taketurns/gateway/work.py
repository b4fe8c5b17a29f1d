# SPDX-License-Identifier: Apache-2.0
"""One request on its way through batches: its items, what came back, and what may share a call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from taketurns.gateway.items import NameOf
from taketurns.ports.engine import EmbedInput, Pair, Truncate

Item = EmbedInput | Pair


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine is to treat items. Only items of the same options share a call.

    Attributes:
        score: Pairs to score, else texts to embed.
        dimensions: Length of the vectors asked for, or None.
        truncate: Which end of a text that is too long the engine is to cut off, or None.
        alone: Sets the items of one query apart, where an engine takes one query a call.
    """

    score: bool = False
    dimensions: int | None = None
    truncate: Truncate | None = None
    alone: str = ""

    @property
    def group(self) -> str:
        """The scheduler's name for it: a batch is filled from one group."""
        if self == Options():
            return ""
        return f"{int(self.score)} {self.dimensions or ''} {self.truncate or ''} {self.alone}"


@dataclass(slots=True, eq=False)
class Work:
    """One request, from its split into items to its answer.

    Attributes:
        items: Its texts or pairs.
        sizes: Tokens of each, counted or estimated.
        options: How they are to be treated.
        name_of: The field that an item stands in.
        groups: The scheduler's group of each item; empty: that of the options.
        done: Set when all items are done, or fails with the first error.
        results: Vectors or scores, filled in as they come.
        length: Bytes of its vectors; 0 until the first came, unless a length was asked for.
        left: Items that aren't done.
        tokens: Tokens by the engine's count, as far as it counts.
        cost: Charged in the end.
        engine: Where the first item ran.
        dispatched_us: When that was, or None.
        attempts: How often each item met an engine that did nothing: out of reach, or full.
    """

    items: Sequence[Item]
    sizes: Sequence[int]
    options: Options
    name_of: NameOf
    done: "asyncio.Future[None]"
    groups: Sequence[str] = ()
    results: list[bytes | float | None] = field(init=False)
    attempts: bytearray = field(init=False)
    left: int = field(init=False)
    length: int = field(init=False)
    tokens: int = 0
    cost: int = 0
    engine: str = ""
    dispatched_us: int | None = None

    def __post_init__(self) -> None:
        self.results = [None] * len(self.items)
        self.attempts = bytearray(len(self.items))
        self.left = len(self.items)
        self.length = 4 * (self.options.dimensions or 0)

    def fail(self, error: Exception) -> None:
        """Let the request end with an error, unless it has ended."""
        if not self.done.done():
            self.done.set_exception(error)
