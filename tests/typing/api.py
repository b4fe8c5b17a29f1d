# SPDX-License-Identifier: Apache-2.0
"""Uses the whole public API as a caller would: checked by mypy, never run."""

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import assert_never, assert_type

import taketurns
from taketurns import (
    BatchRules,
    Clock,
    ConfigError,
    Dispatcher,
    Ended,
    Expired,
    Explanation,
    Granted,
    Outcome,
    PoolRules,
    PoolSnapshot,
    Refusal,
    Refused,
    Scheduler,
    SystemClock,
    TaketurnsError,
    Tenant,
    Ticket,
    Tier,
    Turn,
    TurnExpiredError,
    TurnRefusedError,
    Turns,
    VirtualClock,
    jain_index,
    max_min_shares,
)

TIERS = (Tier("production"), Tier("trial", floor_percent=5, slot_share_percent=80))
RULES = PoolRules(
    quantum=1_000,
    min_charge=None,
    debt_rounds=64,
    tenant_queue_max=100,
    queue_max=1_000,
    batch=BatchRules(size_max=8_192, items_max=64, padded=True, misfits_max=4),
    shared_queue=False,
)


def drive_the_scheduler(now_us: int) -> None:
    scheduler = Scheduler(RULES, TIERS, [Tenant("acme", weight=3, cap=8)])
    scheduler.set_engine("gpu-0", 4)
    ticket = Ticket("t", "acme", "trial", cost=10, size=10, priority=0, deadline_us=None, group="g")
    refused = scheduler.submit(ticket)
    if refused is not None:
        assert_type(refused, Refused)
        assert_type(refused.reason, Refusal)
        assert_type(refused.limit - refused.queued, int)
    for decision in scheduler.advance(now_us):
        match decision:
            case Granted(engine, tickets):
                assert_type(engine, str)
                assert_type(tickets, tuple[Ticket, ...])
            case Expired(expired):
                assert_type(expired, Ticket)
            case _:
                assert_never(decision)
    assert_type(scheduler.change("t", priority=1, deadline_us=now_us), bool)
    assert_type(scheduler.cancel("t"), Ticket | None)
    assert_type(scheduler.next_wake_us(), int | None)
    scheduler.settle("t", 12)
    assert_type(scheduler.finish("t", Outcome.FAILED, cost=3, executed=False), Ended)
    scheduler.set_tenant(Tenant("acme"))
    scheduler.set_quantum(500)
    scheduler.remove_engine("gpu-0")
    assert_type((scheduler.queued, scheduler.running), tuple[int, int])
    assert_type(scheduler.is_waiting("t"), bool)
    look(scheduler.snapshot(), scheduler.explain("t"))


def look(state: PoolSnapshot, explanation: Explanation | None) -> None:
    for tier in state.tiers:
        assert_type({tenant.tenant: tenant.balance for tenant in tier.tenants}, dict[str, int])
    assert_type([engine.in_flight for engine in state.engines], list[int])
    if explanation is not None:
        assert_type([(item.tenant, item.why) for item in explanation.ahead], list[tuple[str, str]])
        assert_type(explanation.complete, bool)


def dispatch_on_virtual_time(perform: Callable[[Granted | Expired], None]) -> None:
    clock = VirtualClock(start_us=0)
    dispatcher = Dispatcher(Scheduler(RULES, TIERS), clock, perform)
    dispatcher.set_engine("gpu-0", 1)
    assert_type(dispatcher.submit([Ticket("t", "acme", "trial")]), Refused | None)
    assert_type(dispatcher.cancel(["t"]), list[Ticket])
    assert_type(dispatcher.change("t", priority=0, deadline_us=None), bool)
    dispatcher.settle("t", 1)
    assert_type(dispatcher.finish("t"), Ended)
    dispatcher.set_tenant(Tenant("acme"))
    dispatcher.remove_engine("gpu-0")
    dispatcher.pump()
    clock.run_until(1_000_000)
    clock.run()
    dispatcher.close()


def clocks(loop: asyncio.AbstractEventLoop) -> list[Clock]:
    system: Clock = SystemClock(loop)
    system.call_at(system.now_us(), loop.stop).cancel()
    return [system, VirtualClock()]


async def take_turns(clock: Clock) -> None:
    turns = Turns(RULES, TIERS, [Tenant("acme")], clock=clock, on_decision=None)
    turns.set_engine("gpu-0", slots=8)
    try:
        async with turns.turn(
            "acme", tier="trial", cost=5, priority=0, deadline_us=None, ticket_id="t"
        ) as turn:
            assert_type(turn, Turn)
            assert_type(turn.engine, str)
            turn.settle(7)
            turn.ends_as(Outcome.CANCELLED)
            turn.not_executed()
        assert_type(turn.ended, Ended | None)
    except TurnRefusedError as error:
        assert_type(error.refused, Refused)
    except TurnExpiredError as error:
        assert_type(error.ticket, Ticket)
    granted = turns.expect("u")
    turns.submit([Ticket("u", "acme", "trial")])
    assert_type(await granted, str)
    turns.settle("u", 1)
    assert_type(turns.finish("u", Outcome.COMPLETED, cost=None, executed=True), Ended)
    assert_type(turns.cancel(["u"]), list[Ticket])
    turns.set_tenant(Tenant("acme", cap=1))
    turns.remove_engine("gpu-0")
    assert_type(turns.scheduler.snapshot(), PoolSnapshot)
    assert_type(turns.clock, Clock)
    turns.close()


def measure() -> None:
    assert_type(jain_index([1.0, 2.0]), float)
    assert_type(max_min_shares(10, {"acme": 3}, {"acme": 1}), dict[str, Fraction])


def explain_errors(error: TaketurnsError) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(fault.path for fault in error.faults) + error.source
    return f"{error.code}: {error.hint}"


def misuse_is_found() -> None:
    taketurns.Nothing  # type: ignore[attr-defined]  # noqa: B018
    Ticket("t", "acme")  # type: ignore[call-arg]
    Tenant("acme", weight="heavy")  # type: ignore[arg-type]
    Scheduler(RULES, TIERS).finish("t", "completed")  # type: ignore[arg-type]
