# SPDX-License-Identifier: Apache-2.0
"""What an answer's length is expected to be: learnt per tenant, seeded from the pool's."""

from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.lengths import OUTPUT_TOKENS_DEFAULT, OutputLengths


def test_before_anything_was_seen_the_default_is_expected():
    assert OutputLengths().expected("acme") == OUTPUT_TOKENS_DEFAULT
    assert OutputLengths(7).expected("acme") == 7


def test_a_tenants_average_follows_its_own_answers():
    lengths = OutputLengths()
    for _ in range(64):
        lengths.seen("acme", 20)
    assert lengths.expected("acme") == 20


def test_a_tenant_not_seen_before_starts_from_what_the_pools_answers_are_long():
    lengths = OutputLengths()
    for _ in range(1_000):
        lengths.seen("acme", 20)
    assert lengths.expected("newcomer") == 20


def test_one_tenant_barely_moves_what_another_is_expected_to_have():
    lengths = OutputLengths()
    for _ in range(64):
        lengths.seen("acme", 20)
    lengths.seen("globex", 4_000)
    assert lengths.expected("acme") == 20
    assert lengths.expected("globex") > 400


@given(st.lists(st.integers(0, 10**6), max_size=50))
def test_what_is_expected_lies_between_the_shortest_and_the_longest_seen(seen):
    lengths = OutputLengths(100)
    for tokens in seen:
        lengths.seen("acme", tokens)
    assert max(1, min([100, *seen]) - 1) <= lengths.expected("acme") <= max([100, *seen])
