# SPDX-License-Identifier: Apache-2.0
"""An engine doesn't fit what is configured once it answers nothing but that it doesn't."""

from taketurns.gateway.fit import LASTS_US, Fit


def test_one_that_never_answered_well_is_believed_at_the_limit():
    fit = Fit()
    assert [fit.misfit(0, 3) for _ in range(4)] == [False, False, True, True]
    assert fit.misfits == 4


def test_one_that_did_must_answer_nothing_else_for_a_while():
    fit = Fit()
    fit.answered(well=True)
    assert not fit.misfit(5, 1)
    assert not fit.misfit(5 + LASTS_US - 1, 1)
    assert fit.misfit(5 + LASTS_US, 1)


def test_any_other_answer_begins_the_count_anew():
    fit = Fit()
    for well in (False, True):
        fit.misfit(0, 2)
        fit.answered(well=well)
        assert fit.misfits == 0
        assert not fit.misfit(LASTS_US, 2)
        fit.answered(well=False)
