# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts: counted by the model's own tokenizer, or estimated and calibrated."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from taketurns.dialects.openai import BYTES_PER_TOKEN, invalid, too_large
from taketurns.errors import RequestError
from taketurns.gateway.items import EmbedRequest, ScoreRequest
from taketurns.gateway.work import Item
from taketurns.ports.engine import EmbedInput, Pair, Tokenizer, Truncate

T = TypeVar("T")

INLINE_CHARACTERS = 16 * 1024
"""Texts up to this size are tokenized on the event loop: at most a few milliseconds."""

MEMORY_BYTES = 4 * 1024 * 1024
"""Past so many bytes seen, older ones count half: the estimate follows what is sent now."""

CHARACTERS_MIN = 64
"""Batches of fewer characters don't show whether an engine counts those."""


class TokenRatio:
    """How many bytes of text make a token, learned from what an engine counts."""

    def __init__(self) -> None:
        self._bytes = BYTES_PER_TOKEN
        self._tokens = 1

    def tokens(self, size: int) -> int:
        """Estimate the tokens of so many bytes; at least 1."""
        return max(1, -(-size * self._tokens // self._bytes))

    def seen(self, size: int, tokens: int) -> None:
        """Learn that so many bytes had so many tokens."""
        self._bytes += size
        self._tokens += tokens
        if self._bytes > MEMORY_BYTES:
            self._bytes >>= 1
            self._tokens = max(1, self._tokens >> 1)


class Counter:
    """Turns a request's texts into items with a size in tokens.

    Args:
        tokenizer: The model's own, or None: tokens are estimated.
        tokens_max: Longest item that is taken, in tokens; None: any.
        as_ids: With a tokenizer, texts are handed on as the ids that were counted.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, *, tokens_max: int | None, as_ids: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.tokens_max = tokens_max
        self.as_ids = as_ids
        self._ratio = TokenRatio()

    @property
    def exact(self) -> bool:
        """True where tokens are counted, not estimated."""
        return self.tokenizer is not None

    async def inputs(self, request: EmbedRequest) -> tuple[list[EmbedInput], list[int]]:
        """Return the texts as an engine gets them, and the tokens of each.

        Raises:
            RequestError: 400, naming the text that is too long or isn't of the vocabulary.
        """
        self._check_ids(request)
        inputs = list(request.inputs)
        sizes = await self._sizes(inputs)
        tokens_max = _least(self.tokens_max, request.tokens_max)
        if tokens_max is None or max(sizes) <= tokens_max:
            return inputs, sizes
        if request.truncate is not None and self.tokenizer is not None:
            inputs = await self._cut(list(request.inputs), sizes, tokens_max, request.truncate)
            sizes = await self._sizes(inputs)
        return inputs, self._capped(sizes, tokens_max, request.truncate, request.name_of)

    async def pairs(self, request: ScoreRequest) -> tuple[list[Pair], list[int]]:
        """Return the pairs to score, and the tokens of each.

        Raises:
            RequestError: 400, naming the document that is too long with its query.
        """
        queries, documents = list(request.queries), list(request.documents)
        times = len(documents) if request.one_query else 1
        if request.document_tokens_max is not None and self.tokenizer is not None:
            documents = await self._cut_texts(
                documents, request.document_tokens_max, request.truncate or "end"
            )
        query_sizes = await self._sizes_of_texts(queries) * times
        sizes = [
            query + document
            for query, document in zip(
                query_sizes, await self._sizes_of_texts(documents), strict=True
            )
        ]
        tokens_max = self.tokens_max
        if tokens_max is not None and max(sizes) > tokens_max:
            if request.truncate is not None and self.tokenizer is not None:
                for index, size in enumerate(sizes):
                    room = tokens_max - query_sizes[index]
                    if size > tokens_max and room > 0:
                        (cut,) = await self._cut_texts([documents[index]], room, request.truncate)
                        documents[index] = cut
                        sizes[index] = min(size, tokens_max)
            sizes = self._capped(sizes, tokens_max, request.truncate, request.document_name)
        pairs = [Pair(*pair) for pair in zip(queries * times, documents, strict=True)]
        return pairs, sizes

    def believe(self, items: Sequence[Item], tokens: int) -> bool:
        """Learn from what an engine counted in items; False where it counted characters."""
        texts = [text for item in items for text in _texts(item)]
        characters = sum(map(len, texts))
        if tokens == characters and characters >= CHARACTERS_MIN:
            return False
        if len(texts) >= len(items):
            self._ratio.seen(sum(map(utf8_length, texts)), tokens)
        return True

    def _check_ids(self, request: EmbedRequest) -> None:
        if self.tokenizer is None:
            return
        ids_max = self.tokenizer.vocabulary_size - 1
        for index, item in enumerate(request.inputs):
            if not isinstance(item, str) and max(item) > ids_max:
                raise invalid(
                    request.name_of(index),
                    f"has token id {max(item)}, and this model's go up to {ids_max}",
                )

    def _capped(
        self,
        sizes: list[int],
        tokens_max: int,
        truncate: Truncate | None,
        name_of: Callable[[int], str],
    ) -> list[int]:
        """Return sizes as they will be: an engine may cut what is too long and isn't cut here."""
        if truncate is not None and self.tokenizer is None:
            return [min(size, tokens_max) for size in sizes]
        for index, size in enumerate(sizes):
            if size > tokens_max:
                raise too_long(name_of(index), size, tokens_max)
        return sizes

    async def _sizes(self, inputs: list[EmbedInput]) -> list[int]:
        """Return the tokens of each input; texts are replaced by ids where those are wanted."""
        texts = [item for item in inputs if isinstance(item, str)]
        if self.tokenizer is None or not self.as_ids:
            counted = iter(await self._sizes_of_texts(texts))
            return [next(counted) if isinstance(item, str) else len(item) for item in inputs]
        tokenizer = self.tokenizer
        encoded = iter(await _aside(texts, lambda: tokenizer.encode(texts)))
        inputs[:] = [next(encoded) if isinstance(item, str) else item for item in inputs]
        return [len(item) for item in inputs]

    async def _sizes_of_texts(self, texts: Sequence[str]) -> list[int]:
        tokenizer = self.tokenizer
        if tokenizer is None:
            return [self._ratio.tokens(utf8_length(text)) for text in texts]
        return await _aside(texts, lambda: [len(ids) for ids in tokenizer.encode(texts)])

    async def _cut(
        self, inputs: list[EmbedInput], sizes: list[int], tokens_max: int, truncate: Truncate
    ) -> list[EmbedInput]:
        """Cut those of some inputs that are too long."""
        long = [index for index, size in enumerate(sizes) if size > tokens_max]
        texts = [text for index in long if isinstance(text := inputs[index], str)]
        cut = iter(await self._cut_texts(texts, tokens_max, truncate))
        for index in long:
            item = inputs[index]
            if isinstance(item, str):
                inputs[index] = next(cut)
            else:
                inputs[index] = item[:tokens_max] if truncate == "end" else item[-tokens_max:]
        return inputs

    async def _cut_texts(self, texts: list[str], tokens_max: int, truncate: Truncate) -> list[str]:
        """Cut texts; one of which nothing would be left stays whole, to be refused."""
        tokenizer = self.tokenizer
        assert tokenizer is not None, "asked only where there is one"
        cut = await _aside(texts, lambda: tokenizer.cut(texts, tokens_max, truncate))
        return [part or whole for part, whole in zip(cut, texts, strict=True)]


async def _aside(texts: Sequence[str], work: Callable[[], T]) -> T:
    """Do work on texts: in a thread where they are large, as the tokenizer leaves the lock."""
    if sum(map(len, texts)) > INLINE_CHARACTERS:
        return await asyncio.to_thread(work)
    return work()


def _texts(item: Item) -> Sequence[str]:
    if isinstance(item, str):
        return (item,)
    return item if isinstance(item, Pair) else ()


def _least(first: int | None, second: int | None) -> int | None:
    return min((limit for limit in (first, second) if limit is not None), default=None)


def utf8_length(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def too_long(field: str, size: int, tokens_max: int) -> RequestError:
    """Return the 400 that says that a text is too long."""
    return too_large(field, f"has {size} tokens, and the most is {tokens_max}", "Shorten it.")


def divide(total: int, sizes: Sequence[int]) -> list[int]:
    """Divide a count among items in proportion to their sizes; each gets at least 1.

    The parts add up to ``total`` where that is at least one for each item.
    """
    parts = []
    size_left = sum(sizes)
    for number, size in enumerate(sizes):
        later = len(sizes) - number - 1
        part = max(1, min(total - later, total * size // size_left))
        parts.append(part)
        total -= part
        size_left -= size
    return parts
