# SPDX-License-Identifier: Apache-2.0
"""Items are counted and cut by the model's tokenizer, or estimated and left to the engine."""

import asyncio

import pytest

from taketurns.errors import RequestError
from taketurns.gateway.counting import Counter, TokenRatio, divide
from taketurns.gateway.items import EmbedRequest, ScoreRequest


class Words:
    """A tokenizer whose tokens are words, with one special token in front."""

    vocabulary_size = 1_000

    def encode(self, texts):
        return [[1, *(len(word) for word in text.split())] for text in texts]

    def cut(self, texts, tokens_max, truncate):
        keep = tokens_max - 1
        words = [text.split() for text in texts]
        return [
            " ".join((w[:keep] if truncate == "end" else w[-keep:]) if keep > 0 else [])
            if len(w) > keep
            else " ".join(w)
            for w in words
        ]


def embed(*inputs, **more):
    return EmbedRequest(list(inputs), lambda index: f"input[{index}]", **more)


def score(queries, documents, **more):
    names = (lambda index: f"query[{index}]", lambda index: f"document[{index}]")
    return ScoreRequest(queries, documents, *names, **more)


def counter(tokenizer=True, tokens_max=4, as_ids=False):
    return Counter(Words() if tokenizer else None, tokens_max=tokens_max, as_ids=as_ids)


def counted(request, **more):
    return asyncio.run(counter(**more).inputs(request))


def paired(request, **more):
    pairs, sizes = asyncio.run(counter(**more).pairs(request))
    return [tuple(pair) for pair in pairs], sizes


def test_a_text_that_is_too_long_is_cut_at_the_end_that_is_asked_for():
    texts = ["a b", "a b c d e"]
    assert counted(embed(*texts, truncate="end")) == (["a b", "a b c"], [3, 4])
    assert counted(embed(*texts, truncate="start")) == (["a b", "c d e"], [3, 4])


def test_ids_are_cut_too_and_texts_are_handed_on_as_ids_where_that_is_wanted():
    request = embed("a bb ccc dddd", [1, 2, 3, 4, 5], truncate="end")
    assert counted(request) == (["a bb ccc", [1, 2, 3, 4]], [4, 4])
    assert counted(request, as_ids=True) == ([[1, 1, 2, 3], [1, 2, 3, 4]], [4, 4])
    request = embed([1, 2, 3, 4, 5], truncate="start")
    assert counted(request) == ([[2, 3, 4, 5]], [4])


def test_a_clients_own_limit_counts_where_it_is_lower():
    assert counted(embed("a b c", truncate="end", tokens_max=2)) == (["a"], [2])
    assert counted(embed("a b c d", truncate="end", tokens_max=99)) == (["a b c"], [4])
    with pytest.raises(RequestError, match="has 4 tokens, and the most is 3"):
        counted(embed("a b c", tokens_max=3))


def test_a_text_of_which_nothing_would_be_left_is_refused():
    with pytest.raises(RequestError, match=r"`input\[0\]` has 3 tokens, and the most is 1"):
        counted(embed("a b", truncate="end", tokens_max=1))


def test_without_a_tokenizer_the_engine_may_cut_and_an_estimate_refuses_only_where_it_may_not():
    long = "x" * 100
    assert counted(embed(long, truncate="end"), tokenizer=False) == ([long], [4])
    with pytest.raises(RequestError, match="has 25 tokens, and the most is 4"):
        counted(embed(long), tokenizer=False)


def test_a_pair_costs_both_its_texts_and_its_document_is_cut():
    assert paired(score(["q"], ["a", "b c"]), tokens_max=9) == ([("q", "a"), ("q", "b c")], [4, 5])
    assert paired(score(["q"], ["a", "b c d e"], truncate="end"), tokens_max=5) == (
        [("q", "a"), ("q", "b c")],
        [4, 5],
    )
    assert paired(score(["q", "r s"], ["a b c", "d e f"], truncate="start"), tokens_max=5) == (
        [("q", "b c"), ("r s", "f")],
        [5, 5],
    )


def test_documents_are_cut_to_the_length_that_a_client_asks_for():
    request = score(["q"], ["a", "b c d e"], document_tokens_max=3)
    assert paired(request, tokens_max=None) == ([("q", "a"), ("q", "b c")], [4, 5])
    # Where tokens can't be counted it stays whole.
    assert paired(request, tokenizer=False, tokens_max=None)[0][1] == ("q", "b c d e")


@pytest.mark.parametrize("truncate", [None, "end"])
def test_a_document_that_does_not_fit_with_its_query_is_named(truncate):
    request = score(["a b c d e f"], ["x", "y z"], truncate=truncate)
    with pytest.raises(RequestError, match=r"`document\[1\]`|`document\[0\]`"):
        paired(request, tokens_max=7)


def test_the_ratio_follows_what_is_sent_now_and_forgets_slowly():
    ratio = TokenRatio()
    assert ratio.tokens(400) == 100
    for _ in range(100):
        ratio.seen(100_000, 50_000)
    assert ratio.tokens(400) == 200
    for _ in range(200):
        ratio.seen(100_000, 20_000)
    assert 80 <= ratio.tokens(400) <= 82
    assert ratio.tokens(0) == 1


def test_bytes_are_counted_not_characters():
    sizes = counted(embed("é" * 40), tokenizer=False, tokens_max=None)[1]
    assert sizes == [20]


def test_ids_teach_nothing_and_small_batches_show_nothing():
    some = counter(tokenizer=False)
    assert some.believe([[1, 2, 3]], 900)
    assert some.believe(["short"], 5)
    assert not some.believe(["x" * 64], 64)


def test_a_count_is_divided_in_proportion_and_adds_up():
    assert divide(10, [1, 1, 3]) == [2, 2, 6]
    assert divide(2, [5, 5, 5]) == [1, 1, 1]
