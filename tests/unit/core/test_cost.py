# SPDX-License-Identifier: Apache-2.0
"""Cost models charge whole units, at least one, and know when the engine's count matters."""

import pytest

from taketurns.core.cost import REQUEST_COST, RequestsCost, TokensCost


@pytest.mark.parametrize(("tokens_in", "tokens_out"), [(0, 0), (5, 900), (100_000, 1)])
def test_each_request_costs_the_same_and_the_engines_count_changes_nothing(tokens_in, tokens_out):
    model = RequestsCost()
    assert model.charge(tokens_in, tokens_out) == REQUEST_COST
    assert model.used(tokens_in, tokens_out) is None


def test_a_quantum_of_one_request_can_be_divided_by_the_largest_weight():
    assert REQUEST_COST // 1_000 >= 1


def test_an_output_token_costs_twice_an_input_token_unless_it_is_set_otherwise():
    assert TokensCost().charge(10, 3) == 16
    assert TokensCost(input_weight=3, output_weight=1).charge(10, 3) == 33


def test_tokens_are_settled_to_the_engines_count():
    assert TokensCost().used(10, 4) == 18


def test_nothing_is_free():
    assert TokensCost().charge(0, 0) == 1
    assert TokensCost().used(0, 0) == 1
