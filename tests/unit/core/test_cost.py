# SPDX-License-Identifier: Apache-2.0
"""Cost models charge whole units, at least one, and know when the engine's count matters."""

import pytest

from taketurns.core.cost import REQUEST_COST, EmaCost, RequestsCost, TokensCost


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


def test_only_the_rolling_reserve_changes_while_a_request_runs():
    assert RequestsCost().running(10, 5, 20) is None
    assert TokensCost().running(10, 5, 20) is None


@pytest.mark.parametrize(
    ("horizon", "produced", "expected", "ahead"),
    [
        (64, 0, 256, 64),  # at dispatch: the horizon
        (64, 0, 40, 40),  # at dispatch: never more than is expected
        (64, 100, 256, 164),  # rolls ahead of what is produced
        (64, 230, 256, 256),  # up to what is expected
        (64, 300, 256, 300),  # and beyond it pays as it streams
        (0, 100, 256, 100),  # pays as it streams from the start
        (None, 0, 256, 256),  # reserves the whole prediction
        (None, 300, 256, 300),
    ],
)
def test_a_running_request_stands_charged_a_horizon_ahead(horizon, produced, expected, ahead):
    cost = EmaCost(horizon=horizon)
    assert cost.running(10, produced, expected) == 10 + 2 * ahead
    if produced == 0:
        assert cost.charge(10, expected) == 10 + 2 * ahead


def test_in_the_end_it_costs_what_was_produced():
    assert EmaCost().used(10, 4) == 18
    assert EmaCost(input_weight=3, output_weight=1).used(10, 4) == 34
    assert EmaCost().used(0, 0) == EmaCost(horizon=0).charge(0, 9) == 1
