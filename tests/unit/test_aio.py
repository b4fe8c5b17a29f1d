# SPDX-License-Identifier: Apache-2.0
"""A turn is waited for, held while its block is open, and given back however it ends."""

import asyncio

import pytest

from taketurns.aio import TurnExpiredError, TurnRefusedError, Turns
from taketurns.core.decision import Expired, Granted, Outcome
from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
from taketurns.ports.clock import VirtualClock
from taketurns.system import SystemClock

TIERS = [Tier("gold"), Tier("tin")]


@pytest.fixture
def play():
    """Return a function that runs a scenario with a pool, and sees that nothing is left."""

    def play(scenario, *, slots=1, clean=True, tenants=(), **rules):
        async def main():
            clock = VirtualClock()
            turns = Turns(PoolRules(quantum=8, **rules), TIERS, tenants, clock=clock)
            if slots:
                turns.set_engine("gpu", slots)
            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                await scenario(turns, clock, tasks)
            if clean:
                await ticks()
                assert turns.scheduler.queued == turns.scheduler.running == 0
                assert not turns._waiters

        asyncio.run(main())

    return play


async def ticks(count=5):
    """Let the event loop go round a few times."""
    loop = asyncio.get_running_loop()
    for _ in range(count):
        turned = loop.create_future()
        loop.call_soon(turned.set_result, None)
        await turned


class Holder:
    """A task that takes a turn and holds it until it's told to go on."""

    def __init__(self, turns, tasks, tenant="acme", **fields):
        self.turn = turns.turn(tenant, tier="gold", **fields)
        self.inside = asyncio.Event()
        self.go_on = asyncio.Event()
        self.error = None
        self.task = tasks.create_task(self._run())

    async def _run(self):
        try:
            async with self.turn:
                self.inside.set()
                await self.go_on.wait()
        except TurnExpiredError as error:
            self.error = error


def test_a_turn_names_its_engine_and_gives_the_slot_back(play):
    async def scenario(turns, clock, tasks):
        async with turns.turn("acme", tier="gold", cost=5) as turn:
            assert turn.engine == "gpu"
            assert turn.ended is None
            assert turns.scheduler.running == 1
        assert turn.ended.outcome is Outcome.COMPLETED
        assert (turn.ended.cost, turn.ended.engine) == (5, "gpu")

    play(scenario)


def test_turns_alternate_between_tenants(play):
    async def scenario(turns, clock, tasks):
        first = Holder(turns, tasks, "pico")
        await first.inside.wait()
        ran = []

        async def run(tenant):
            async with turns.turn(tenant, tier="gold", cost=8):
                ran.append(tenant)

        for tenant in ("acme", "acme", "acme", "globex", "globex"):
            tasks.create_task(run(tenant))
        await ticks()
        assert turns.scheduler.queued == 5
        first.go_on.set()
        await first.task
        while len(ran) < 5:
            await ticks(1)
        assert ran[:4].count("acme") == ran[:4].count("globex") == 2

    play(scenario)


def test_a_ticket_carries_what_it_was_asked_for(play):
    async def scenario(turns, clock, tasks):
        clock.run_until(77)
        turn = turns.turn("acme", tier="tin", cost=3, priority=9, deadline_us=100, ticket_id="mine")
        ticket = turn.ticket
        assert (ticket.id, ticket.tenant, ticket.tier) == ("mine", "acme", "tin")
        assert (ticket.cost, ticket.priority) == (3, 9)
        assert (ticket.deadline_us, ticket.arrived_us) == (100, 77)
        ids = {turns.turn("acme", tier="tin").ticket.id for _ in range(50)}
        assert len(ids) == 50

    play(scenario)


def test_a_block_that_fails_counts_as_failed_and_its_error_passes(play):
    async def scenario(turns, clock, tasks):
        turn = turns.turn("acme", tier="gold", cost=4)
        with pytest.raises(ZeroDivisionError):
            async with turn:
                raise ZeroDivisionError
        assert (turn.ended.outcome, turn.ended.cost) == (Outcome.FAILED, 4)

    play(scenario)


def test_a_block_that_is_cancelled_counts_as_cancelled_and_is_charged(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks, cost=4)
        await held.inside.wait()
        held.task.cancel()
        await ticks()
        assert (held.turn.ended.outcome, held.turn.ended.cost) == (Outcome.CANCELLED, 4)

    play(scenario)


def test_a_turn_may_say_how_it_ends_what_it_costs_and_that_nothing_ran(play):
    async def scenario(turns, clock, tasks):
        async with turns.turn("acme", tier="gold", cost=4) as turn:
            turn.settle(9)
            turn.settle(7)
            turn.ends_as(Outcome.FAILED)
        assert (turn.ended.outcome, turn.ended.cost) == (Outcome.FAILED, 7)
        async with turns.turn("acme", tier="gold", cost=4) as turn:
            turn.settle(9)
            turn.not_executed()
        assert (turn.ended.outcome, turn.ended.cost) == (Outcome.COMPLETED, 0)

    play(scenario)


def test_a_full_queue_refuses_on_entry(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks)
        await held.inside.wait()
        waiting = Holder(turns, tasks)
        await ticks()
        turn = turns.turn("acme", tier="gold")
        with pytest.raises(TurnRefusedError) as caught:
            async with turn:
                pytest.fail("never entered")
        assert (caught.value.code, caught.value.refused.limit) == ("queue_full", 1)
        assert turn.ended is None
        await ticks()
        assert len(turns._waiters) == 1
        held.go_on.set()
        waiting.go_on.set()

    play(scenario, tenant_queue_max=1)


def test_a_deadline_that_passes_raises_on_entry(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks)
        await held.inside.wait()
        late = Holder(turns, tasks, deadline_us=500)
        await ticks()
        clock.run_until(500)
        await late.task
        assert isinstance(late.error, TurnExpiredError)
        assert late.error.ticket is late.turn.ticket
        assert late.turn.ended is None
        held.go_on.set()

    play(scenario)


def test_a_deadline_that_has_passed_already_raises_at_once(play):
    async def scenario(turns, clock, tasks):
        with pytest.raises(TurnExpiredError):
            async with turns.turn("acme", tier="gold", deadline_us=0):
                pytest.fail("never entered")

    play(scenario)


def test_whoever_is_cancelled_while_waiting_leaves_the_queue(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks)
        await held.inside.wait()
        gone, stays = Holder(turns, tasks), Holder(turns, tasks)
        await ticks()
        gone.task.cancel()
        await ticks()
        assert turns.scheduler.queued == 1
        assert gone.turn.ended is None
        held.go_on.set()
        await stays.inside.wait()
        stays.go_on.set()

    play(scenario)


def test_a_grant_that_crosses_a_cancellation_is_given_back_and_costs_nothing(play):
    async def scenario(turns, clock, tasks):
        async with turns.turn("acme", tier="gold"):
            crossed, following = Holder(turns, tasks, cost=5), Holder(turns, tasks)
            await ticks()
        # The grant is decided, and its task has not run since.
        assert (turns.scheduler.queued, turns.scheduler.running) == (1, 1)
        crossed.task.cancel()
        await following.inside.wait()
        assert not crossed.inside.is_set()
        assert (crossed.turn.ended.outcome, crossed.turn.ended.cost) == (Outcome.CANCELLED, 0)
        following.go_on.set()

    play(scenario)


def test_a_grant_right_after_a_cancellation_goes_to_the_next(play):
    async def scenario(turns, clock, tasks):
        async with turns.turn("acme", tier="gold"):
            gone, stays = Holder(turns, tasks), Holder(turns, tasks)
            await ticks()
            # The slot is freed before the cancelled task has said that it is gone.
            gone.task.cancel()
        await stays.inside.wait()
        assert not gone.inside.is_set()
        stays.go_on.set()

    play(scenario)


def test_an_expiry_that_crosses_a_cancellation_is_no_error_left_behind(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks)
        await held.inside.wait()
        crossed = Holder(turns, tasks, deadline_us=500)
        await ticks()
        clock.run_until(500)
        crossed.task.cancel()
        await ticks()
        assert crossed.task.cancelled()
        first = Holder(turns, tasks, deadline_us=900)
        await ticks()
        first.task.cancel()
        clock.run_until(900)
        await ticks()
        assert first.task.cancelled()
        held.go_on.set()

    play(scenario)


def test_an_id_in_use_is_refused_and_its_owner_is_not_disturbed(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks, ticket_id="running")
        await held.inside.wait()
        waiting = Holder(turns, tasks, ticket_id="waiting")
        await ticks()
        for ticket_id in ("running", "waiting"):
            with pytest.raises(ValueError, match=ticket_id):
                async with turns.turn("acme", tier="gold", ticket_id=ticket_id):
                    pytest.fail("never entered")
        await ticks()
        held.go_on.set()
        await waiting.inside.wait()
        waiting.go_on.set()

    play(scenario)


def test_an_id_may_be_used_again_after_its_end(play):
    async def scenario(turns, clock, tasks):
        for _ in range(3):
            async with turns.turn("acme", tier="gold", ticket_id="same") as turn:
                assert turn.engine == "gpu"

    play(scenario)


def test_an_unknown_tier_is_a_value_error_and_leaves_no_waiter(play):
    async def scenario(turns, clock, tasks):
        with pytest.raises(ValueError, match="nosuch"):
            async with turns.turn("acme", tier="nosuch"):
                pytest.fail("never entered")

    play(scenario)


def test_caps_engines_and_weights_can_be_changed(play):
    async def scenario(turns, clock, tasks):
        holders = [Holder(turns, tasks) for _ in range(3)]
        await ticks()
        assert turns.scheduler.running == 1
        turns.set_tenant(Tenant("acme", weight=2, cap=2))
        await ticks()
        assert turns.scheduler.running == 2
        turns.remove_engine("gpu")
        for holder in holders:
            holder.go_on.set()
        await ticks()
        assert turns.scheduler.running == 0
        assert turns.scheduler.queued == 1
        turns.set_engine("other", 1)
        await holders[2].task
        assert holders[2].turn.engine == "other"

    play(scenario, slots=4, tenants=[Tenant("acme", cap=1)])


def test_batches_go_to_who_asked_for_the_decisions():
    async def scenario():
        decided = []
        clock = VirtualClock()
        turns = Turns(
            PoolRules(quantum=8, batch=BatchRules(size_max=10, items_max=2)),
            TIERS,
            clock=clock,
            on_decision=decided.append,
        )
        assert turns.clock is clock
        turns.submit([Ticket(f"i{n}", "acme", "gold", deadline_us=9) for n in range(5)])
        turns.set_engine("cpu", 1)
        assert isinstance(decided[0], Granted)
        assert [t.id for t in decided[0].tickets] == ["i0", "i1"]
        assert [t.id for t in turns.cancel(["i0", "i4"])] == ["i4"]
        turns.settle("i0", 4)
        assert turns.finish("i0").cost == 4
        clock.run_until(9)
        assert [d.ticket.id for d in decided[1:] if isinstance(d, Expired)] == ["i2", "i3"]
        turns.finish("i1", Outcome.FAILED, executed=False)
        assert turns.scheduler.queued == turns.scheduler.running == 0

    asyncio.run(scenario())


def test_a_closed_pool_wakes_nobody(play):
    async def scenario(turns, clock, tasks):
        held = Holder(turns, tasks)
        await held.inside.wait()
        late = Holder(turns, tasks, deadline_us=500)
        await ticks()
        turns.close()
        clock.run()
        await ticks()
        assert not late.task.done()
        late.task.cancel()
        held.go_on.set()

    play(scenario)


def test_the_running_loops_clock_is_the_default():
    async def scenario():
        turns = Turns(PoolRules(quantum=1), TIERS)
        assert isinstance(turns.clock, SystemClock)
        turns.set_engine("gpu", 1)
        async with turns.turn("acme", tier="gold", deadline_us=turns.clock.now_us() + 10_000_000):
            with pytest.raises(TurnExpiredError):
                async with turns.turn("acme", tier="gold", deadline_us=turns.clock.now_us() + 1000):
                    pytest.fail("never entered")
        turns.close()

    asyncio.run(scenario())


def test_many_at_once_all_get_a_turn_and_never_more_than_the_slots(play):
    async def scenario(turns, clock, tasks):
        inside = [0]
        most = [0]

        async def run(number):
            async with turns.turn(f"tenant-{number % 7}", tier="gold", cost=1 + number % 9):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                await ticks(1 + number % 3)
                inside[0] -= 1

        await asyncio.gather(*(run(number) for number in range(300)))
        assert most[0] == 4

    play(scenario, slots=4)
