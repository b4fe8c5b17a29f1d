# SPDX-License-Identifier: Apache-2.0
"""Tokens of texts: counted by the model's own tokenizer, or estimated and calibrated."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from taketurns.dialects.openai import BYTES_PER_TOKEN, invalid
from taketurns.gateway.items import EmbedRequest, NameOf
from taketurns.ports.engine import EmbedInput, Tokenizer, Truncate

T = TypeVar("T")

INLINE_CHARACTERS = 16 * 1024
"""Texts up to this size are tokenized on the event loop: at most a few milliseconds."""

MEMORY_BYTES = 4 * 1024 * 1024
"""Past so many bytes seen, older ones count half: the estimate follows what is sent now."""


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
        self._tokens_max = tokens_max
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
        inputs = list(request.inputs)
        self._check_ids(inputs, request.name_of)
        sizes = await self._sizes(inputs)
        tokens_max = self._tokens_max
        if tokens_max is None or max(sizes) <= tokens_max:
            return inputs, sizes
        if request.truncate is not None:
            inputs, sizes = await self._cut(request, sizes, tokens_max, request.truncate)
        for index, size in enumerate(sizes):
            if size > tokens_max:
                raise too_long(request.name_of(index), size, tokens_max)
        return inputs, sizes

    def learn(self, texts: Iterable[str], tokens: int) -> None:
        """Learn from the tokens that an engine counted in texts."""
        self._ratio.seen(sum(map(utf8_length, texts)), tokens)

    def _check_ids(self, inputs: Sequence[EmbedInput], name_of: NameOf) -> None:
        if self.tokenizer is None:
            return
        ids_max = self.tokenizer.vocabulary_size - 1
        for index, item in enumerate(inputs):
            if not isinstance(item, str) and max(item) > ids_max:
                raise invalid(
                    name_of(index),
                    f"has token id {max(item)}, and this model's go up to {ids_max}",
                )

    async def _sizes(self, inputs: list[EmbedInput]) -> list[int]:
        """Return the tokens of each input; texts are replaced by ids where those are wanted."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            tokens = self._ratio.tokens
            return [
                tokens(utf8_length(item)) if isinstance(item, str) else len(item) for item in inputs
            ]
        texts = [item for item in inputs if isinstance(item, str)]
        encoded = iter(await _aside(texts, lambda: tokenizer.encode(texts)))
        ids = [next(encoded) if isinstance(item, str) else item for item in inputs]
        if self.as_ids:
            inputs[:] = ids
        return [len(item) for item in ids]

    async def _cut(
        self, request: EmbedRequest, sizes: list[int], tokens_max: int, truncate: Truncate
    ) -> tuple[list[EmbedInput], list[int]]:
        """Cut what is too long, where the model's tokens are known."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            return list(request.inputs), sizes
        long = [index for index, size in enumerate(sizes) if size > tokens_max]
        inputs = list(request.inputs)
        texts = [text for index in long if isinstance(text := inputs[index], str)]
        cut = iter(await _aside(texts, lambda: tokenizer.cut(texts, tokens_max, truncate)))
        for index in long:
            item = inputs[index]
            if isinstance(item, str):
                inputs[index] = next(cut) or item
            else:
                inputs[index] = item[:tokens_max] if truncate == "end" else item[-tokens_max:]
        return inputs, await self._sizes(inputs)


async def _aside(texts: Sequence[str], work: Callable[[], T]) -> T:
    """Do work on texts: in a thread where they are large, as the tokenizer leaves the lock."""
    if sum(map(len, texts)) > INLINE_CHARACTERS:
        return await asyncio.to_thread(work)
    return work()


def utf8_length(text: str) -> int:
    """Return how many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def too_long(field: str, size: int, tokens_max: int) -> Exception:
    """Return the 400 that says that a text is too long."""
    return invalid(field, f"has {size} tokens, and the most is {tokens_max}", "Shorten it.")


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
