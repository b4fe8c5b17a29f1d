# SPDX-License-Identifier: Apache-2.0
"""Vectors of engines that leave `dimensions` unread are cut and brought to length 1."""

from array import array

import pytest

from taketurns.engines.vectors import float32, shortened


def test_a_longer_vector_is_cut_and_brought_to_length_one() -> None:
    cut = array("f", shortened(float32([3.0, 4.0, 12.0]), 2))
    assert cut.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("dimensions", [3, 4])
def test_a_vector_that_is_no_longer_stays_as_it_is(dimensions: int) -> None:
    vector = float32([3.0, 4.0, 12.0])
    assert shortened(vector, dimensions) == vector


def test_nothing_but_zeros_stays_zeros() -> None:
    assert shortened(float32([0.0, 0.0, 1.0]), 2) == float32([0.0, 0.0])
