# SPDX-License-Identifier: Apache-2.0
"""A month's quota is never granted beyond its mark, whatever the store does."""

import asyncio
import logging
import sqlite3
import threading
from collections import Counter
from contextlib import closing

import pytest

from taketurns.core.limits import Admitted, Amounts, Ledger, LimitRule, Span, Unit
from taketurns.errors import StoreError, StoreUnavailableError
from taketurns.gateway.marks import block_of
from taketurns.gateway.quotas import (
    ANSWER_US,
    RETRY_US,
    RETRY_US_MAX,
    TRIM_US,
    Covered,
    Quotas,
)
from taketurns.ports.clock import VirtualClock
from taketurns.ports.stores import NO_BOUNDS, QuotaKey
from taketurns.stores.memory import MemoryQuotaStore
from taketurns.stores.sqlite_quotas import SqliteQuotaStore

REQUESTS = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 1000)
TOKENS = LimitRule("tokens", Unit.TOKENS, Span.MONTH, 100_000)
TOTAL = LimitRule("all", Unit.REQUESTS, Span.MONTH, 1000, total=True)
KEY = QuotaKey("2026-11", "requests:trial", "acme")
TOKENS_KEY = QuotaKey("2026-11", "tokens:tokens", "acme")
BLOCK = 8
ONE = Amounts()


class FaultyStore(MemoryQuotaStore):
    """Fails, or stands still, as long as it's told to.

    Attributes:
        error: What writing raises; None: it works.
        gate: Writing waits for it.
        writes: The marks of each call of raise_to that worked.
    """

    def __init__(self):
        super().__init__()
        self.error = None
        self.gate = threading.Event()
        self.gate.set()
        self.writes = []
        self.attempts = 0
        self.closed = False

    def raise_to(self, marks, bounds=NO_BOUNDS):
        self.attempts += 1
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        raised = super().raise_to(marks, bounds)
        self.writes.append(dict(marks))
        return raised

    def lower_to(self, marks):
        if self.error is not None:
            raise self.error
        super().lower_to(marks)

    def close(self):
        self.closed = True


class Site:
    """Ledger and quotas on a virtual clock; the store's thread is a real one."""

    def __init__(self, store, rules=(REQUESTS,), *, month="2026-11", block=lambda rule: BLOCK):
        self.store = store
        self.rules = rules
        self.month = month
        self.months = set()
        self.granted = Counter()
        self.returned = False
        self.clock = VirtualClock()
        self.ledger = Ledger()
        self.quotas = Quotas(store, self.ledger, rules, lambda: self.month, self.clock, block=block)

    def charge(self, tenant="acme", *, amounts=ONE, rules=None):
        admitted = self.ledger.admit(
            rules or self.rules, tenant, amounts, now_us=0, month=self.quotas.month()
        )
        return admitted if isinstance(admitted, Admitted) else None

    async def admit(self, tenant="acme", *, amounts=ONE, rules=None):
        """Do what a gateway does; return what was admitted, "limit" or "store"."""
        month = self.month
        if month not in self.months:
            self.months.add(month)
            self.granted.clear()
        admitted = self.charge(tenant, amounts=amounts, rules=rules)
        if admitted is None:
            return "limit"
        try:
            covered = (
                self.quotas.covers(tenant, admitted)
                or await self.quotas.cover(tenant, admitted) is Covered.YES
            )
        except asyncio.CancelledError:
            admitted.settle(None)
            raise
        if not covered:
            admitted.settle(None)
            return "store"
        self.granted[tenant] += admitted.charges[0].amount
        if isinstance(self.store, MemoryQuotaStore) and not self.returned:
            rule = admitted.charges[0].rule
            mark = self.mark(QuotaKey(month, f"{rule.unit}:{rule.name}", tenant))
            assert self.granted[tenant] <= mark, "granted beyond the mark"
        return admitted

    def settle(self, admitted, used):
        self.returned = True
        admitted.settle(used)
        self.quotas.settled("acme", admitted)

    async def idle(self):
        """Wait until the store has answered all it was asked."""
        while self.quotas._writing is not None:
            await asyncio.wait({self.quotas._writing})
            await turn()

    def used(self, rule="trial", tenant="acme"):
        return self.ledger.months().get((rule, tenant), ("", 0))[1]

    def mark(self, key=KEY):
        return self.store.load("").get(key, 0)


async def turn():
    """Let whatever is ready run."""
    for _ in range(5):
        await asyncio.get_running_loop().run_in_executor(None, int)


def play(scenario, site):
    async def whole():
        await site.quotas.start()
        await scenario(site)
        await site.quotas.aclose()

    asyncio.run(asyncio.wait_for(whole(), 60))


def restarted(store, rules=(REQUESTS,), *, month="2026-11"):
    """Return what a process that starts anew counts."""
    site = Site(store, rules, month=month)

    async def scenario(site):
        pass

    play(scenario, site)
    return site


def test_a_mark_is_kept_before_the_first_grant_and_stays_ahead_of_the_count():
    async def scenario(site):
        for count in range(1, 200):
            assert not isinstance(await site.admit(), str)
            assert count <= site.mark() <= count + BLOCK

    play(scenario, Site(MemoryQuotaStore()))


def test_requests_one_after_another_wait_for_the_store_only_at_the_first():
    async def scenario(site):
        waited = 0
        for _ in range(100):
            admitted = site.charge()
            if not site.quotas.covers("acme", admitted):
                waited += 1
                assert await site.quotas.cover("acme", admitted) is Covered.YES
            await site.idle()
        assert waited == 1
        # A write for every three quarters of a block.
        assert len(site.store.writes) <= 1 + 100 // (BLOCK * 3 // 4)

    play(scenario, Site(FaultyStore()))


def test_a_clean_stop_writes_the_exact_count_and_a_crash_leaves_the_mark():
    async def scenario(site):
        for _ in range(13):
            await site.admit()
        await site.idle()
        crashed = MemoryQuotaStore()
        crashed.raise_to(site.store.load(""))
        site.crashed = crashed

    site = Site(MemoryQuotaStore())
    play(scenario, site)
    assert site.mark() == 13
    assert restarted(site.store).used() == 13
    assert 13 <= restarted(site.crashed).used() <= 13 + BLOCK


def test_exactly_the_limit_is_granted_over_restarts_and_to_many_at_once():
    rule = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 100)
    store = FaultyStore()
    granted = []

    async def scenario(site):
        results = await asyncio.gather(*(site.admit() for _ in range(30)))
        granted.extend(item for item in results if not isinstance(item, str))
        assert "store" not in results

    for _ in range(5):
        play(scenario, Site(store, (rule,)))
    assert len(granted) == 100
    assert store.load("") == {KEY: 100}
    # Those who wait are covered together.
    assert store.attempts <= 5 * 4


def test_marks_stay_within_the_limit():
    rule = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 10)

    async def scenario(site):
        for _ in range(10):
            assert await site.admit() != "store"
            assert site.mark() <= 10
        await site.idle()
        attempts = site.store.attempts
        assert await site.admit() == "limit"
        assert site.store.attempts == attempts

    play(scenario, Site(FaultyStore(), (rule,)))


def test_a_request_larger_than_a_block_is_covered_by_one_write():
    async def scenario(site):
        await site.admit(amounts=Amounts(input_tokens=90_000))
        assert len(site.store.writes) == 1
        assert 90_000 <= site.mark(TOKENS_KEY) <= 90_000 + BLOCK

    play(scenario, Site(FaultyStore(), (TOKENS,)))


def test_without_a_store_everything_is_covered():
    async def scenario(site):
        for _ in range(3):
            admitted = site.charge()
            assert site.quotas.covers("acme", admitted)
            site.settle(admitted, None)

    play(scenario, Site(None))


def test_each_tenant_and_the_total_have_marks_of_their_own():
    async def scenario(site):
        for tenant in ("acme", "globex", "acme"):
            await site.admit(tenant)

    site = Site(MemoryQuotaStore(), (REQUESTS, TOTAL))
    play(scenario, site)
    assert {key[1:]: mark for key, mark in site.store.load("").items()} == {
        ("requests:trial", "acme"): 2,
        ("requests:trial", "globex"): 1,
        ("requests:all", ""): 3,
    }
    again = restarted(site.store, (REQUESTS, TOTAL))
    assert (again.used(), again.used(tenant="globex"), again.used("all", "")) == (2, 1, 3)


def test_a_rule_that_counts_something_else_begins_anew():
    async def scenario(site):
        await site.admit()

    site = Site(MemoryQuotaStore())
    play(scenario, site)
    other_unit = LimitRule("trial", Unit.TOKENS, Span.MONTH, 1000)
    other_scope = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 1000, total=True)
    for rule in (other_unit, other_scope):
        assert restarted(site.store, (rule,)).ledger.months() == {}
    assert restarted(site.store).used() == 1


def test_a_rule_that_comes_back_goes_on_from_its_mark():
    async def scenario(site):
        for _ in range(5):
            await site.admit()
        await site.idle()
        for rules in ((), (REQUESTS,)):
            site.ledger.keep(rules)
            site.quotas.set_rules(rules)
        assert 5 <= site.used() <= 5 + BLOCK
        before = site.used()
        assert not isinstance(await site.admit(), str)
        assert (site.used(), site.mark() >= site.used()) == (before + 1, True)

    play(scenario, Site(MemoryQuotaStore()))


def test_a_rule_whose_limit_changes_goes_on_from_its_count():
    async def scenario(site):
        for _ in range(5):
            await site.admit()
        less = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 6)
        site.ledger.keep((less,))
        site.quotas.set_rules((less,))
        assert site.used() == 5
        assert [isinstance(await site.admit(rules=(less,)), str) for _ in range(2)] == [False, True]

    play(scenario, Site(MemoryQuotaStore()))


# Months


def test_a_new_month_begins_at_nothing_with_a_mark_of_its_own():
    async def scenario(site):
        for _ in range(5):
            await site.admit()
        site.month = "2026-12"
        await site.admit()
        assert site.used() == 1
        await site.idle()
        later = KEY._replace(month="2026-12")
        assert 1 <= site.mark(later) <= 1 + BLOCK
        assert site.mark() >= 5

    play(scenario, Site(MemoryQuotaStore()))


def test_a_request_that_ends_in_the_next_month_changes_nothing_there():
    async def scenario(site):
        admitted = await site.admit(amounts=Amounts(input_tokens=50))
        site.month = "2026-12"
        await site.admit(amounts=Amounts(input_tokens=7))
        site.settle(admitted, Amounts(input_tokens=90))
        assert site.used("tokens") == 7

    play(scenario, Site(MemoryQuotaStore(), (TOKENS,)))


def test_a_request_that_waits_for_the_store_over_the_months_end_is_let_in():
    async def scenario(site):
        site.store.gate.clear()
        waiting = asyncio.get_running_loop().create_task(site.admit())
        other = asyncio.get_running_loop().create_task(site.admit("globex"))
        await turn()
        site.month = "2026-12"
        admitted = site.charge()
        site.store.gate.set()
        assert not isinstance(await waiting, str)
        assert not isinstance(await other, str)
        if not site.quotas.covers("acme", admitted):
            assert await site.quotas.cover("acme", admitted) is Covered.YES
        assert site.used() == 1

    play(scenario, Site(FaultyStore()))


def test_a_wall_clock_that_was_ahead_before_a_restart_loses_no_months_count():
    async def december(site):
        for _ in range(3):
            await site.admit()

    store = MemoryQuotaStore()
    play(december, Site(store, month="2026-12"))

    async def november_again(site):
        assert site.used() == 0
        await site.admit()
        site.month = "2026-12"
        site.quotas.month()
        assert site.used() == 3
        await site.admit()
        assert site.used() == 4

    play(november_again, Site(store, month="2026-11"))
    assert restarted(store, month="2026-12").used() == 4


def test_months_long_over_are_forgotten():
    store = MemoryQuotaStore()

    async def scenario(site):
        await site.admit()
        await site.idle()

    for number in range(1, 10):
        play(scenario, Site(store, month=f"2026-{number:02}"))
    assert sorted(key.month for key in store.load("")) == [f"2026-{n:02}" for n in (6, 7, 8, 9)]


# Settling


def test_what_was_used_beyond_the_reservation_is_written_at_once():
    async def scenario(site):
        admitted = await site.admit(amounts=Amounts(input_tokens=10))
        site.settle(admitted, Amounts(input_tokens=500))
        await site.idle()
        assert 500 <= site.mark(TOKENS_KEY) <= 500 + BLOCK

    play(scenario, Site(MemoryQuotaStore(), (TOKENS,)))


def test_a_mark_comes_down_after_much_that_was_reserved_is_given_back():
    async def scenario(site):
        held = [await site.admit(amounts=Amounts(output_tokens=1000)) for _ in range(20)]
        assert site.mark(TOKENS_KEY) >= 20_000
        for admitted in held:
            site.settle(admitted, Amounts(output_tokens=10))
        site.clock.run_until(TRIM_US - 1)
        await site.idle()
        assert site.mark(TOKENS_KEY) >= 20_000
        site.clock.run_until(TRIM_US)
        await site.idle()
        assert site.mark(TOKENS_KEY) == 200 + BLOCK
        # What is granted from here on is covered again.
        await site.admit(amounts=Amounts(output_tokens=1000))
        assert site.mark(TOKENS_KEY) >= 1200

    play(scenario, Site(MemoryQuotaStore(), (TOKENS,)))


def test_a_mark_that_can_not_be_lowered_is_not_granted_up_to():
    async def scenario(site):
        admitted = await site.admit(amounts=Amounts(output_tokens=1000))
        site.settle(admitted, Amounts(output_tokens=10))
        site.store.error = StoreUnavailableError("full")
        site.clock.run_until(TRIM_US)
        await site.idle()
        assert not site.quotas.failing
        assert await site.admit(amounts=Amounts(output_tokens=500)) == "store"
        assert site.quotas.failing
        site.store.error = None

    play(scenario, Site(FaultyStore(), (TOKENS,)))


# Faults


def test_while_the_disk_is_full_the_reserved_block_is_served_and_no_more(caplog):
    async def scenario(site):
        assert not isinstance(await site.admit(), str)
        await site.idle()
        site.store.error = StoreUnavailableError("database or disk is full")
        room = site.mark() - site.used()
        results = [await site.admit() for _ in range(room + 5)]
        assert ["store" if item == "store" else "" for item in results] == [""] * room + [
            "store"
        ] * 5
        assert site.used() == site.mark(), "who is refused is not charged"
        assert site.quotas.failing
        assert await site.admit("globex") == "store"
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "disk is full" in caplog.text

        site.store.error = None
        site.clock.run_until(site.clock.now_us() + RETRY_US)
        await site.idle()
        assert not site.quotas.failing
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
        for tenant in ("acme", "globex"):
            assert not isinstance(await site.admit(tenant), str)

    with caplog.at_level(logging.WARNING, "taketurns"):
        play(scenario, Site(FaultyStore()))


@pytest.mark.parametrize("error", [StoreError("malformed"), ValueError("a fault of ours")])
def test_no_fault_of_the_store_gets_through_to_a_request(error):
    async def scenario(site):
        site.store.error = error
        assert await site.admit() == "store"
        assert site.quotas.failing
        site.store.error = None

    play(scenario, Site(FaultyStore()))


def test_the_store_is_tried_again_after_longer_and_longer_pauses_and_not_between():
    async def scenario(site):
        site.store.error = StoreUnavailableError("locked")
        assert await site.admit() == "store"
        pauses = []
        for _ in range(8):
            now_us = site.clock.now_us()
            pauses.append(site.quotas.retry_us - now_us)
            attempts = site.store.attempts
            assert await site.admit() == "store"
            site.clock.run_until(now_us + pauses[-1] - 1)
            await site.idle()
            assert site.store.attempts == attempts
            site.clock.run_until(now_us + pauses[-1])
            assert site.quotas.retry_us is None
            await site.idle()
            assert site.store.attempts == attempts + 1
        assert pauses == [min(RETRY_US << n, RETRY_US_MAX) for n in range(8)]
        site.store.error = None
        site.clock.run_until(site.quotas.retry_us)
        await site.idle()
        assert (site.quotas.failing, site.quotas.retry_us) == (False, None)

    play(scenario, Site(FaultyStore()))


def test_a_fault_whose_month_ends_is_over():
    async def scenario(site):
        site.store.error = StoreUnavailableError("locked")
        assert await site.admit() == "store"
        site.month = "2026-12"
        site.charge()
        site.clock.run_until(RETRY_US)
        assert not site.quotas.failing
        assert site.quotas.retry_us is None

    play(scenario, Site(FaultyStore()))


def test_requests_wait_for_a_store_that_stands_still_no_longer_than_a_bound(caplog):
    async def scenario(site):
        site.store.gate.clear()
        tasks = [asyncio.get_running_loop().create_task(site.admit()) for _ in range(3)]
        await turn()
        site.clock.run_until(ANSWER_US - 1)
        await turn()
        assert not any(task.done() for task in tasks)
        site.clock.run_until(ANSWER_US)
        assert [await task for task in tasks] == ["store"] * 3
        assert site.quotas.failing
        assert await site.admit() == "store"
        site.store.gate.set()
        await site.idle()
        assert not site.quotas.failing
        assert not isinstance(await site.admit(), str)

    with caplog.at_level(logging.WARNING, "taketurns"):
        play(scenario, Site(FaultyStore()))
    assert "no answer within 1 s" in caplog.text


def test_a_store_that_answers_late_and_wrongly_is_tried_again():
    async def scenario(site):
        site.store.gate.clear()
        site.store.error = StoreUnavailableError("locked")
        task = asyncio.get_running_loop().create_task(site.admit())
        await turn()
        site.clock.run_until(ANSWER_US)
        assert await task == "store"
        site.store.gate.set()
        await site.idle()
        assert site.quotas.failing
        site.store.error = None
        site.clock.run_until(site.quotas.retry_us)
        await site.idle()
        assert not site.quotas.failing

    play(scenario, Site(FaultyStore()))


def test_one_that_gives_up_waiting_does_not_disturb_the_others():
    async def scenario(site):
        site.store.gate.clear()
        tasks = [asyncio.get_running_loop().create_task(site.admit()) for _ in range(3)]
        await turn()
        tasks[0].cancel()
        await turn()
        site.store.gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert not any(isinstance(item, str) for item in results[1:])
        assert site.used() == 2

    play(scenario, Site(FaultyStore()))


def test_a_shadow_rule_never_keeps_a_request_waiting():
    shadow = LimitRule("trial", Unit.REQUESTS, Span.MONTH, 3, shadow=True)

    async def scenario(site):
        for _ in range(5):
            assert site.quotas.covers("acme", site.charge())
        await site.idle()
        assert 5 <= site.mark() <= 5 + BLOCK
        site.store.error = StoreUnavailableError("locked")
        for _ in range(2 * BLOCK):
            assert site.quotas.covers("acme", site.charge())
        assert site.used() == 5 + 2 * BLOCK
        site.store.error = None

    play(scenario, Site(FaultyStore(), (shadow,)))


def test_a_stop_ends_the_waiting_and_survives_a_store_that_fails(caplog):
    async def scenario(site):
        await site.admit()
        await site.idle()
        site.store.gate.clear()
        task = asyncio.get_running_loop().create_task(site.admit("globex"))
        await turn()
        stop = asyncio.get_running_loop().create_task(site.quotas.aclose())
        await turn()
        assert await task == "store"
        site.store.error = StoreUnavailableError("full")
        site.store.gate.set()
        await stop
        assert site.store.closed
        admitted = site.charge("pico")
        assert await site.quotas.cover("pico", admitted) is Covered.NO

    async def whole(site):
        await site.quotas.start()
        await scenario(site)

    with caplog.at_level(logging.ERROR, "taketurns"):
        site = Site(FaultyStore())
        asyncio.run(asyncio.wait_for(whole(site), 60))
    assert "not written at the end" in caplog.text
    assert site.mark() >= 1


# The real file


def test_a_really_locked_file_is_served_from_its_block_and_recovers(tmp_path):
    path = tmp_path / "taketurns.db"

    async def scenario(site):
        assert not isinstance(await site.admit(), str)
        await site.idle()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            results = [await site.admit() for _ in range(2 * BLOCK)]
            served = [item for item in results if item != "store"]
            assert len(served) == BLOCK
            assert site.quotas.failing
            other.execute("ROLLBACK")
        site.clock.run_until(site.clock.now_us() + RETRY_US_MAX)
        await site.idle()
        assert not isinstance(await site.admit(), str)

    play(scenario, Site(SqliteQuotaStore(path)))
    assert restarted(SqliteQuotaStore(path)).used() == 1 + BLOCK + 1


def test_a_file_that_can_not_be_read_is_told_at_the_start(tmp_path):
    path = tmp_path / "taketurns.db"
    path.write_bytes(b"\x5a" * 20_000)

    async def scenario():
        site = Site(SqliteQuotaStore(path))
        try:
            with pytest.raises(StoreError, match="can't be used") as caught:
                await site.quotas.start()
            assert str(path) in str(caught.value)
        finally:
            await site.quotas.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize(("limit", "block"), [(0, 1), (999, 1), (1000, 1), (5_000_000, 5000)])
def test_a_block_is_a_thousandth_of_the_limit(limit, block):
    assert block_of(LimitRule("trial", Unit.REQUESTS, Span.MONTH, limit)) == block


def test_a_rule_that_goes_while_its_mark_is_written_grants_nothing_that_is_not_counted():
    async def scenario():
        store = FaultyStore()
        site = Site(store)
        await site.quotas.start()
        store.gate.clear()
        waiting = asyncio.create_task(site.quotas.cover("acme", charged(site)))  # noqa: TID251
        soon = asyncio.Event()
        asyncio.get_running_loop().call_soon(soon.set)
        await soon.wait()
        site.ledger.keep([])
        site.quotas.set_rules([])
        # It isn't granted: whoever waits looks at the rules anew.
        assert await waiting is Covered.TAKEN
        store.gate.set()
        site.quotas.set_rules(site.rules)
        await site.quotas.aclose()
        assert store.load("")[KEY] >= site.granted["acme"]

    def charged(site):
        admitted = site.charge()
        assert not site.quotas.covers("acme", admitted)
        return admitted

    asyncio.run(asyncio.wait_for(scenario(), 60))
