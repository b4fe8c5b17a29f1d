# SPDX-License-Identifier: Apache-2.0
"""A model's own tokenizer, from its ``tokenizer.json`` (Hugging Face's format), by tokenizers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taketurns.engines import weights
from taketurns.errors import StartError
from taketurns.ports.engine import Truncate

try:
    from tokenizers import Tokenizer as TokenizerFile
except ImportError as fault:
    # The gateway runs without the extra; only a model with a tokenizer fails to start.
    _import_fault: ImportError | None = fault
else:
    _import_fault = None

_CUTS_MAX = 8
"""How often a text is cut anew where what was left has more tokens than it had within the whole."""


class FileTokenizer:
    """Implements :class:`taketurns.ports.engine.Tokenizer` with a file.

    The ids have the model's special tokens, such as [CLS] and [SEP] at the ends.
    Thread-safe; other threads run while it works.

    Args:
        path: The file.

    Raises:
        StartError: The package is missing, or the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        if _import_fault is not None:
            raise weights.runtime_missing(_import_fault)
        try:
            self._file = TokenizerFile.from_file(str(path))
        except Exception as error:  # the package raises plain Exception
            raise StartError(
                f"tokenizer {path} can't be read: {error}",
                hint="It must be a tokenizer.json as Hugging Face's models have it.",
            ) from error
        # A file may ask for texts cut and filled up to some length.
        self._file.no_truncation()
        self._file.no_padding()
        self._special = int(self._file.num_special_tokens_to_add(is_pair=False))
        self.vocabulary_size = int(self._file.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._file.encode_batch_fast(list(texts))]

    def spell(self, text: str) -> list[tuple[int, str]]:
        encoding = self._file.encode(text, add_special_tokens=False)
        return list(zip(encoding.ids, encoding.tokens, strict=True))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._file.decode(list(ids)))

    def cut(self, texts: Sequence[str], tokens_max: int, truncate: Truncate) -> list[str]:
        encodings = self._file.encode_batch(list(texts))
        return [
            text
            if len(encoding.ids) <= tokens_max
            else self._cut(text, encoding, tokens_max, truncate)
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _cut(self, text: str, encoding: Any, tokens_max: int, truncate: Truncate) -> str:
        keep = tokens_max - self._special
        for _ in range(_CUTS_MAX):
            places = [
                place
                for place, special in zip(
                    encoding.offsets, encoding.special_tokens_mask, strict=True
                )
                if not special
            ]
            keep = min(keep, len(places))
            if keep < 1:
                break
            begin, end = (0, places[keep - 1][1])
            if truncate == "start":
                begin, end = (places[-keep][0], len(text))
            text = text[begin:end]
            encoding = self._file.encode(text)
            excess = len(encoding.ids) - tokens_max
            if excess <= 0:
                return text
            keep -= excess
        return ""
