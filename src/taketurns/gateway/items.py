# SPDX-License-Identifier: Apache-2.0
"""Requests for vectors and scores, free of any dialect, and their answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taketurns.ports.engine import EmbedInput, Truncate

NameOf = Callable[[int], str]
"""Returns the field that the text of an index stands in, for errors: ``input[3]``."""


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """Texts to embed.

    Attributes:
        inputs: Texts or token ids, at least one, none of them empty.
        name_of: The field of a text.
        dimensions: Length of the vectors asked for; None: the model's own.
        truncate: Which end of a text that is too long is cut off; None: it's refused. Where
            neither the gateway nor the engine can cut, it's refused all the same.
        tokens_max: Longest text, in tokens, where the client sets a limit below the model's.
        total_tokens_max: Most tokens of all texts together; None: any.
        input_type: What the texts are for (``search_query``, ``search_document`` ...), for models
            that want it told by a prefix; "": not said.
    """

    inputs: Sequence[EmbedInput]
    name_of: NameOf
    dimensions: int | None = None
    truncate: Truncate | None = None
    tokens_max: int | None = None
    total_tokens_max: int | None = None
    input_type: str = ""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Documents whose relevance for a query is asked, or pairs of a query and a document each.

    Attributes:
        queries: One for all documents, or one for each; none of them empty.
        documents: At least one, none of them empty.
        query_name: The field of a query.
        document_name: The field of a document.
        truncate: As in :class:`EmbedRequest`; it's documents that are cut.
        document_tokens_max: Documents are cut to so many tokens, where the model's tokens can be
            counted; None: not.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    query_name: NameOf
    document_name: NameOf
    truncate: Truncate | None = None
    document_tokens_max: int | None = None

    @property
    def one_query(self) -> bool:
        """True where one query stands for all documents."""
        return len(self.queries) == 1


class Embedded(NamedTuple):
    """The answer to an :class:`EmbedRequest`.

    Attributes:
        vectors: Little-endian float32 bytes, one for each input, in their order; all of one length.
        tokens: Tokens of all inputs.
    """

    vectors: Sequence[bytes]
    tokens: int


class Scored(NamedTuple):
    """The answer to a :class:`ScoreRequest`.

    Attributes:
        scores: One for each document, in their order; of any range.
        tokens: Tokens of queries and documents.
    """

    scores: Sequence[float]
    tokens: int
