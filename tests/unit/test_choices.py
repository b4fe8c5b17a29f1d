# SPDX-License-Identifier: Apache-2.0
"""Who sends a value that a field can't have is told those it can."""

from typing import Literal

import msgspec
import pytest

from taketurns.dialects.choices import choices
from taketurns.dialects.cohere_embed import parse_embed
from taketurns.errors import RequestError


class Inner(msgspec.Struct):
    kind: Literal["a", "b"]


class Outer(msgspec.Struct):
    end: Literal["START", "END"] | None = None
    parts: list[Inner] | None = None
    text: str = ""


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".end", ["START", "END"]),
        (".parts[3].kind", ["a", "b"]),
        (".text", []),
        (".nothing", []),
    ],
)
def test_the_values_of_a_field_are_found_by_its_path(path, values):
    assert choices(Outer, path) == values


def test_an_unknown_embedding_type_is_answered_with_the_known_ones():
    body = (
        b'{"model": "m", "texts": ["a"], "input_type": "search_query", "embedding_types": ["int3"]}'
    )
    with pytest.raises(RequestError) as refused:
        parse_embed(body, "2")
    assert "`embedding_types[0]` can't be 'int3'." in str(refused.value)
    assert "Send one of: float, int8, uint8, binary, ubinary, base64." in refused.value.hint
