# SPDX-License-Identifier: Apache-2.0
"""Decisions are plain values; their names are metric labels and stay as they are."""

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.model import Ticket

TICKET = Ticket("t", "acme", "standard")


def test_outcomes_are_the_five_ways_in_which_a_ticket_ends():
    assert [str(outcome) for outcome in Outcome] == [
        "completed",
        "failed",
        "refused",
        "expired",
        "cancelled",
    ]


def test_refusals_name_the_bound_that_was_met():
    assert [str(refusal) for refusal in Refusal] == ["tenant_queue_full", "pool_queue_full"]


def test_decisions_of_equal_content_are_equal():
    assert Granted("e", (TICKET,)) == Granted("e", (TICKET,))
    assert Expired(TICKET) == Expired(TICKET)
    assert Refused(TICKET, Refusal.POOL_QUEUE_FULL, 1, 1).limit == 1
    assert Ended(TICKET, Outcome.FAILED, 3, "e").cost == 3
