# SPDX-License-Identifier: Apache-2.0
"""A batch takes items while its token budget and its item limit allow it."""

import pytest

from taketurns.core.batch import OpenBatch
from taketurns.core.model import BatchRules


def batch_of(rules, *sizes):
    batch = OpenBatch(rules)
    for size in sizes:
        assert batch.fits(size)
        batch.add(size)
    return batch


def test_an_empty_batch_is_not_full_and_takes_any_item():
    batch = OpenBatch(BatchRules(size_max=10, items_max=2))
    assert not batch.full
    assert batch.fits(10_000)


def test_an_item_larger_than_the_budget_goes_alone():
    batch = batch_of(BatchRules(size_max=10, items_max=9), 11)
    assert batch.full
    assert not batch.fits(1)


def test_items_fit_up_to_the_budget_and_not_beyond():
    batch = batch_of(BatchRules(size_max=10, items_max=9), 4, 3)
    assert batch.fits(3)
    assert not batch.fits(4)
    assert not batch.full
    batch.add(3)
    assert batch.full


def test_items_fit_up_to_the_item_limit():
    batch = batch_of(BatchRules(size_max=10, items_max=2), 1, 1)
    assert batch.count == 2
    assert batch.full
    assert not batch.fits(1)


@pytest.mark.parametrize(("size", "fits"), [(1, True), (4, True), (5, True), (6, False)])
def test_padded_counts_every_item_as_long_as_the_longest(size, fits):
    # Two of four tokens take eight; with a third of five, all three count as five.
    batch = batch_of(BatchRules(size_max=15, items_max=9, padded=True), 4, 2)
    assert batch.fits(size) is fits


def test_a_padded_batch_is_full_when_one_more_of_the_longest_has_no_room():
    batch = batch_of(BatchRules(size_max=9, items_max=9, padded=True), 4, 1)
    # A third item would make it 3 x 4 = 12, however short it is.
    assert batch.full
