# SPDX-License-Identifier: Apache-2.0
"""Affinity says where a ticket runs, and never which ticket goes next."""

from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.decision import Granted
from taketurns.core.model import PoolRules, Ticket, Tier
from taketurns.core.scheduler import Scheduler

ENGINES = ("a", "b", "c")

TRAFFIC = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 5), st.integers(0, 30)),
    min_size=5,
    max_size=60,
)


@given(traffic=TRAFFIC, slots=st.integers(1, 4), quantum=st.integers(1, 6))
def test_the_order_is_the_same_whatever_the_affinities(traffic, slots, quantum):
    def order(*, sticky):
        scheduler = Scheduler(PoolRules(quantum, min_charge=0, sticky=sticky), [Tier("t")])
        for name in ENGINES:
            scheduler.set_engine(name, slots)
        running, granted = [], []
        for number, (tenant, cost, affinity, pick) in enumerate(traffic):
            ticket = Ticket(f"t{number}", f"tenant{tenant}", "t", cost, affinity=affinity)
            scheduler.submit(ticket)
            for decision in scheduler.advance(number):
                assert isinstance(decision, Granted)
                running += decision.tickets
                granted += [ticket.id for ticket in decision.tickets]
            assert all(e.in_flight <= e.slots for e in scheduler.snapshot().engines)
            if running and pick % 2:
                scheduler.finish(running.pop(pick % len(running)).id)
        return granted

    assert order(sticky=True) == order(sticky=False)
