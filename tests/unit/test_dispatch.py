# SPDX-License-Identifier: Apache-2.0
"""The dispatcher carries every decision out once, in order, though nobody asks it to."""

import pytest

from taketurns.core.decision import Expired, Granted, Outcome, Refusal
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.dispatch import Dispatcher
from taketurns.ports.clock import VirtualClock


class Pool:
    """A dispatcher on a virtual clock, and what it performed: (word, ticket id, time)."""

    def __init__(self, *, slots=1, react=None, **rules):
        self.clock = VirtualClock()
        self.scheduler = Scheduler(PoolRules(quantum=1, **rules), [Tier("gold"), Tier("tin")])
        self.performed = []
        self.react = react
        self.inside = False
        self.dispatcher = Dispatcher(self.scheduler, self.clock, self.perform)
        if slots:
            self.dispatcher.set_engine("gpu", slots)

    def perform(self, decision):
        assert not self.inside, "one decision at a time"
        self.inside = True
        if isinstance(decision, Granted):
            (ticket,) = decision.tickets
            self.performed.append(("granted", ticket.id, self.clock.now_us()))
        else:
            ticket = decision.ticket
            self.performed.append(("expired", ticket.id, self.clock.now_us()))
        if self.react is not None:
            self.react(self.dispatcher, decision)
        self.inside = False

    def submit(self, *ids, **fields):
        return self.dispatcher.submit([ticket(ticket_id, **fields) for ticket_id in ids])

    @property
    def ids(self):
        return [ticket_id for _, ticket_id, _ in self.performed]


def ticket(ticket_id, tenant="acme", tier="gold", **fields):
    return Ticket(ticket_id, tenant, tier, **fields)


def test_what_can_start_starts_at_once_and_the_next_when_it_ends():
    pool = Pool()
    assert pool.submit("a", "b") is None
    assert pool.ids == ["a"]
    ended = pool.dispatcher.finish("a", cost=3)
    assert (ended.ticket.id, ended.cost, ended.engine) == ("a", 3, "gpu")
    assert pool.ids == ["a", "b"]


def test_an_engine_that_comes_later_starts_what_waits():
    pool = Pool(slots=0)
    pool.submit("a", "b")
    assert pool.ids == []
    pool.dispatcher.set_engine("gpu", 2)
    assert pool.ids == ["a", "b"]


def test_nothing_starts_on_an_engine_that_was_removed():
    pool = Pool()
    pool.dispatcher.remove_engine("gpu")
    pool.submit("a")
    assert pool.ids == []
    pool.dispatcher.set_engine("other", 1)
    assert pool.ids == ["a"]


def test_a_ticket_expires_at_its_deadline_though_nothing_else_happens():
    pool = Pool(slots=0)
    pool.submit("late", deadline_us=500)
    pool.submit("later", deadline_us=900)
    pool.submit("never")
    pool.clock.run_until(499)
    assert pool.performed == []
    pool.clock.run()
    assert pool.performed == [("expired", "late", 500), ("expired", "later", 900)]
    assert pool.scheduler.queued == 1


def test_the_alarm_follows_the_earliest_deadline():
    pool = Pool(slots=0)
    pool.submit("b", deadline_us=900)
    pool.submit("a", deadline_us=400)
    assert pool.dispatcher.change("b", priority=0, deadline_us=100)
    assert pool.dispatcher.change("a", priority=0, deadline_us=None)
    pool.clock.run()
    assert pool.performed == [("expired", "b", 100)]
    assert not pool.dispatcher.change("b", priority=0, deadline_us=None)


def test_a_deadline_that_has_passed_expires_inside_submit():
    pool = Pool()
    pool.clock.run_until(50)
    pool.submit("a", deadline_us=50)
    assert pool.performed == [("expired", "a", 50)]


def test_a_granted_ticket_no_longer_expires():
    pool = Pool()
    pool.submit("a", deadline_us=100)
    pool.clock.run_until(1_000)
    assert pool.performed == [("granted", "a", 0)]


def test_closing_takes_the_alarm_back():
    pool = Pool(slots=0)
    pool.submit("a", deadline_us=100)
    pool.dispatcher.close()
    pool.dispatcher.close()
    pool.clock.run()
    assert pool.performed == []


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"tenant_queue_max": 3}, Refusal.TENANT_QUEUE_FULL),
        ({"queue_max": 3}, Refusal.POOL_QUEUE_FULL),
    ],
)
def test_tickets_are_queued_all_or_none(rules, reason):
    pool = Pool(slots=0, **rules)
    assert pool.submit("a", "b") is None
    refused = pool.submit("c", "d", "e")
    assert (refused.reason, refused.ticket.id, refused.limit) == (reason, "d", 3)
    assert pool.scheduler.queued == 2
    assert not pool.scheduler.is_waiting("c")
    assert pool.submit("c") is None
    pool.dispatcher.set_engine("gpu", 10)
    assert pool.ids == ["a", "b", "c"]


def test_a_refused_group_leaves_no_alarm_behind():
    pool = Pool(slots=0, queue_max=1)
    assert pool.submit("a", "b", deadline_us=100) is not None
    pool.clock.run()
    assert (pool.performed, pool.clock.now_us()) == ([], 0)


@pytest.mark.parametrize("bad", [ticket("a"), ticket("x", tier="nosuch"), ticket("x", cost=0)])
def test_a_ticket_that_can_not_be_queued_takes_its_group_with_it(bad):
    pool = Pool(slots=0)
    with pytest.raises(ValueError, match="ticket"):
        pool.dispatcher.submit([ticket("a"), ticket("b"), bad])
    assert pool.scheduler.queued == 0
    assert pool.submit("a", "b") is None


def test_cancelling_returns_those_that_waited():
    pool = Pool()
    pool.submit("a", "b", "c")
    assert [t.id for t in pool.dispatcher.cancel(["a", "b", "nosuch"])] == ["b"]
    pool.dispatcher.finish("a")
    assert pool.ids == ["a", "c"]


def test_settling_changes_what_a_running_ticket_stands_charged():
    pool = Pool()
    pool.submit("a")
    pool.dispatcher.settle("a", 7)
    assert pool.dispatcher.finish("a").cost == 7
    with pytest.raises(KeyError):
        pool.dispatcher.settle("a", 1)
    with pytest.raises(KeyError):
        pool.dispatcher.finish("a")


def test_a_ticket_that_was_not_executed_costs_nothing():
    pool = Pool()
    pool.submit("a", cost=9)
    ended = pool.dispatcher.finish("a", Outcome.FAILED, executed=False)
    assert (ended.outcome, ended.cost) == (Outcome.FAILED, 0)


def test_a_cap_that_is_lifted_starts_what_waited_for_it():
    pool = Pool(slots=4)
    pool.dispatcher.set_tenant(Tenant("acme", cap=1))
    pool.submit("a", "b")
    assert pool.ids == ["a"]
    pool.dispatcher.set_tenant(Tenant("acme", cap=2))
    assert pool.ids == ["a", "b"]


def test_finishing_inside_a_grant_starts_the_next_after_it():
    def at_once(dispatcher, decision):
        if isinstance(decision, Granted):
            dispatcher.finish(decision.tickets[0].id)

    pool = Pool(react=at_once)
    pool.submit(*"abcde")
    assert pool.ids == list("abcde")
    assert pool.scheduler.running == 0


def test_submitting_inside_an_expiry_is_performed_after_what_stands():
    def retry(dispatcher, decision):
        if isinstance(decision, Expired) and not decision.ticket.id.endswith("!"):
            dispatcher.submit([ticket(decision.ticket.id + "!")])

    pool = Pool(slots=0, react=retry)
    pool.submit("a", "b", deadline_us=10)
    pool.dispatcher.set_engine("gpu", 1)
    pool.dispatcher.finish("a")
    pool.submit("c", deadline_us=20)
    pool.clock.run()
    assert pool.performed == [
        ("granted", "a", 0),
        ("granted", "b", 0),
        ("expired", "c", 20),
    ]
    pool.dispatcher.finish("b")
    assert pool.performed[-1] == ("granted", "c!", 20)


def test_every_way_in_may_be_used_from_inside():
    def react(dispatcher, decision):
        if decision.tickets[0].id == "a":
            dispatcher.set_tenant(Tenant("acme", weight=3))
            dispatcher.set_engine("gpu", 2)
            dispatcher.cancel(["b"])
            dispatcher.change("c", priority=0, deadline_us=5)
            dispatcher.settle("a", 2)
            dispatcher.remove_engine("nosuch")
            dispatcher.pump()

    pool = Pool(react=react)
    pool.submit("a", "b", "c")
    assert pool.ids == ["a", "c"]


def test_a_decision_that_can_not_be_performed_does_not_stop_the_next_event():
    def fail(dispatcher, decision):
        pool.inside = False
        if decision.tickets[0].id == "a":
            raise RuntimeError("staged")

    pool = Pool(react=fail)
    with pytest.raises(RuntimeError, match="staged"):
        pool.submit("a")
    pool.submit("b", deadline_us=10)
    pool.dispatcher.finish("a")
    assert pool.ids == ["a", "b"]


def test_time_that_passes_alone_decides_nothing_twice():
    pool = Pool(slots=0)
    pool.submit("a", deadline_us=10)
    pool.clock.run_until(10)
    pool.dispatcher.pump()
    pool.clock.run_until(99)
    assert pool.performed == [("expired", "a", 10)]


def test_an_alarm_that_comes_early_is_set_anew():
    pool = Pool(slots=0)
    pool.submit("a", deadline_us=10)
    pool.submit("b", deadline_us=20)
    # "a" starts, and the alarm for it stands.
    pool.dispatcher.set_engine("gpu", 1)
    pool.clock.run()
    assert pool.performed == [("granted", "a", 0), ("expired", "b", 20)]
    pool.submit("c", deadline_us=50)
    pool.dispatcher.finish("a")
    pool.clock.run()
    # Nothing waits that could expire: no alarm was left.
    assert pool.clock.now_us() == 20
