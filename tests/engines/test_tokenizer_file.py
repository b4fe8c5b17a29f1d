# SPDX-License-Identifier: Apache-2.0
"""A model's tokenizer counts and cuts texts, whatever their language and wherever words end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.engines.minilm import MiniLmTokenizer
from taketurns.engines.tokenizer_file import FileTokenizer
from taketurns.errors import StartError

pytestmark = pytest.mark.embedded

TOKENIZER = MiniLmTokenizer()
TEXTS = st.lists(
    st.text(
        st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=80
    ),
    min_size=1,
    max_size=4,
)


@given(texts=TEXTS, tokens_max=st.integers(3, 12), truncate=st.sampled_from(["start", "end"]))
def test_a_cut_text_fits_and_is_the_wanted_end_of_the_whole(texts, tokens_max, truncate):
    cut = TOKENIZER.cut(texts, tokens_max, truncate)

    for text, part, before in zip(texts, cut, TOKENIZER.encode(texts), strict=True):
        assert text.startswith(part) if truncate == "end" else text.endswith(part)
        if len(before) <= tokens_max:
            assert part == text
        assert len(TOKENIZER.encode([part])[0]) <= tokens_max


def test_as_many_tokens_are_kept_as_fit():
    words = "one two three four five six seven"

    assert TOKENIZER.cut([words], 5, "end") == ["one two three"]
    assert TOKENIZER.cut([words], 5, "start") == ["five six seven"]


def test_nothing_is_left_where_not_one_token_fits():
    assert TOKENIZER.cut(["one two"], 2, "end") == [""]


def test_a_file_that_is_no_tokenizer_stops_the_start(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    with pytest.raises(StartError, match=r"tokenizer\.json can't be read"):
        FileTokenizer(path)
