# SPDX-License-Identifier: Apache-2.0
"""The scheduler and the naive one, driven by the same calls and compared after each."""

from collections.abc import Iterable, Sequence

from reference.naive_scheduler import NaiveScheduler

from taketurns.core.decision import Ended, Expired, Granted, Refused
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.core.scheduler import Scheduler
from taketurns.core.snapshot import PoolSnapshot

_TENANT_FIELDS = ("weight", "cap", "balance", "queued", "queued_cost", "in_flight", "state")


def plain(snapshot: PoolSnapshot) -> dict[str, object]:
    """A snapshot as the plain values of :meth:`NaiveScheduler.view`."""
    tiers = {
        tier.name: {
            "round": tier.round,
            "floor_credit": tier.floor_credit,
            "slots_held": tier.slots_held,
            "tenants": {
                t.tenant: {name: getattr(t, name) for name in _TENANT_FIELDS} for t in tier.tenants
            },
        }
        for tier in snapshot.tiers
    }
    totals = ("queued", "running", "slots", "slots_free", "debt_forgiven")
    return {"tiers": tiers} | {name: getattr(snapshot, name) for name in totals}


class SideBySide:
    """Both schedulers; each call asserts that they agree, and names what was called."""

    def __init__(
        self, rules: PoolRules, tiers: Sequence[Tier], tenants: Iterable[Tenant] = ()
    ) -> None:
        tenants = list(tenants)
        self.real = Scheduler(rules, tiers, tenants)
        self.naive = NaiveScheduler(rules, tiers, tenants)
        self.now_us = 0
        self.numbered = 0
        self.calls: list[str] = []

    def submit(self, tenant: str, tier: str, **fields: object) -> Refused | None:
        ticket = Ticket(f"t{self.numbered}", tenant, tier, **fields)  # type: ignore[arg-type]
        self.numbered += 1
        answer = self._both("submit", ticket)
        assert answer is None or isinstance(answer, Refused)
        return answer

    def cancel(self, ticket_id: str) -> None:
        self._both("cancel", ticket_id)

    def change(self, ticket_id: str, priority: int, deadline_us: int | None) -> None:
        self._both("change", ticket_id, priority=priority, deadline_us=deadline_us)

    def advance(self, by_us: int = 0) -> list[Expired | Granted]:
        self.now_us += by_us
        answer = self._both("advance", self.now_us)
        assert isinstance(answer, list)
        return answer

    def settle(self, ticket_id: str, cost: int) -> None:
        self._both("settle", ticket_id, cost)

    def finish(self, ticket_id: str, **how: object) -> Ended:
        answer = self._both("finish", ticket_id, **how)
        assert isinstance(answer, Ended)
        return answer

    def set_tenant(self, tenant: Tenant) -> None:
        self._both("set_tenant", tenant)

    def set_quantum(self, quantum: int) -> None:
        self._both("set_quantum", quantum)

    def set_engine(self, name: str, slots: int) -> None:
        self._both("set_engine", name, slots)

    def remove_engine(self, name: str) -> None:
        self._both("remove_engine", name)

    def waiting(self) -> list[str]:
        return self.naive.waiting_ids()

    def running(self) -> list[str]:
        return list(self.naive.running)

    def _both(self, name: str, *args: object, **kwargs: object) -> object:
        shown = [repr(a) for a in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
        self.calls.append(f"{name}({', '.join(shown)})")
        real = getattr(self.real, name)(*args, **kwargs)
        naive = getattr(self.naive, name)(*args, **kwargs)
        self._compare(real, naive)
        self._compare(plain(self.real.snapshot()), self.naive.view())
        self._compare(self.real.next_wake_us(), self.naive.next_wake_us())
        return real

    def _compare(self, real: object, naive: object) -> None:
        if real != naive:
            lines = [*self.calls, "", *_differences("", real, naive)]
            raise AssertionError("\n".join(lines))


def _differences(path: str, real: object, naive: object) -> list[str]:
    """Where two answers part, one line each."""
    if isinstance(real, dict) and isinstance(naive, dict):
        found: list[str] = []
        for key in [*real, *(k for k in naive if k not in real)]:
            one, other = real.get(key), naive.get(key)
            if one != other:
                found += _differences(f"{path}/{key}", one, other)
        return found
    return [f"{path or 'answer'}: scheduler {real!r}", f"{path or 'answer'}: naive {naive!r}"]
