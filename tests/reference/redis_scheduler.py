# SPDX-License-Identifier: Apache-2.0
"""The scheduler in Redis with the calls of the one in the core, each carried out at once."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import redis

from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
from taketurns.core.model import PoolRules, Tenant, Ticket, Tier
from taketurns.fleet.pool import BEAT, Call, Event, Pool, decode, submit_event, tenants_event

STATES = {0: "idle", 1: "new", 2: "waiting", 3: "turn"}
REFUSALS = {"pool": Refusal.POOL_QUEUE_FULL, "tenant": Refusal.TENANT_QUEUE_FULL}
TTL_US = 1 << 50


class RedisScheduler:
    """Same calls and same answers as ``taketurns.core.scheduler.Scheduler``."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        rules: PoolRules,
        tiers: Sequence[Tier],
        tenants: Iterable[Tenant] = (),
        *,
        steps: int = 3,
    ) -> None:
        self.client = client
        self.rules = rules
        self.tiers = list(tiers)
        self.ranks = {tier.name: rank for rank, tier in enumerate(tiers)}
        self.pool = Pool(name, "g1")
        self.steps = steps
        self.now_us = 0
        self.tickets: dict[str, Ticket] = {}
        self.running: dict[str, tuple[Ticket, int, str]] = {}
        self.min_charge = rules.min_charge_or_default
        answer = self._run(self.pool.join(rules, tiers, ttl_us=TTL_US, now="0"))
        self.pool.epoch = answer[1]
        client.script_load(BEAT.text)
        self._step(tenants_event(tenants))

    # -- calls ------------------------------------------------------------------------

    def submit(self, ticket: Ticket) -> Refused | None:
        answer = self._step(submit_event([ticket], self.ranks, self.now_us))
        if answer[0] in REFUSALS:
            return Refused(ticket, REFUSALS[answer[0]], answer[1], answer[2])
        assert answer[0] == "queued"
        self.tickets[ticket.id] = ticket
        return None

    def cancel(self, ticket_id: str) -> Ticket | None:
        if self._step(("cancel", ticket_id, False))[0] == "unknown":
            return None
        return self.tickets.pop(ticket_id)

    def change(self, ticket_id: str, *, priority: int, deadline_us: int | None) -> bool:
        left = False if deadline_us is None else deadline_us - self.now_us
        ticket = self.tickets[ticket_id]
        self.tickets[ticket_id] = ticket._replace(priority=priority, deadline_us=deadline_us)
        return self._step(("change", ticket_id, priority, left))[0] == "changed"

    def advance(self, now_us: int) -> list[Expired | Granted]:
        self.now_us = now_us
        decisions: list[Expired | Granted] = []
        while True:
            answer = self._run(self.pool.step([], steps=self.steps, now=str(now_us)))
            for word, *rest in answer[4]:
                if word == "expired":
                    decisions.append(Expired(self.tickets.pop(rest[0])))
                    continue
                engine, _, ids = rest
                granted = tuple(self.tickets.pop(name) for name in ids)
                self.running.update({t.id: (t, t.cost, engine) for t in granted})
                decisions.append(Granted(engine, granted))
            if answer[5] == "done":
                return decisions
            assert answer[5] == "more"

    def settle(self, ticket_id: str, cost: int) -> None:
        ticket, _, engine = self.running[ticket_id]
        self.running[ticket_id] = (ticket, cost, engine)
        assert self._step(("settle", ticket_id, cost))[0] == "settled"

    def finish(
        self,
        ticket_id: str,
        outcome: Outcome = Outcome.COMPLETED,
        *,
        cost: int | None = None,
        executed: bool = True,
    ) -> Ended:
        ticket, standing, engine = self.running.pop(ticket_id)
        event = ("finish", ticket_id, False if cost is None else cost, executed)
        assert self._step(event)[0] == "finished"
        final = max(standing if cost is None else cost, self.min_charge) if executed else 0
        return Ended(ticket, outcome, final, engine)

    def set_tenant(self, tenant: Tenant) -> None:
        self._step(tenants_event([tenant]))

    def set_quantum(self, quantum: int) -> None:
        self.rules = replace(self.rules, quantum=quantum)
        self.min_charge = self.rules.min_charge_or_default
        self._step(("quantum", quantum, self.min_charge, True))

    def set_engine(self, name: str, slots: int) -> None:
        self._step(("engine", name, slots))

    def remove_engine(self, name: str) -> None:
        self._step(("remove_engine", name))

    # -- views ------------------------------------------------------------------------

    def look(self) -> tuple[dict[str, object], int | None]:
        """What a snapshot shows, as plain values, and when the next deadline passes."""
        pipe = self.client.pipeline(transaction=False)
        pipe.get(self.pool.base + "state")
        pipe.hgetall(self.pool.base + "flows")
        pipe.hgetall(self.pool.base + "engines")
        pipe.zrange(self.pool.base + "deadlines", 0, 0, withscores=True)
        beat = self.pool.beat(ttl_us=TTL_US, steps=0, now=str(self.now_us))
        pipe.evalsha(beat.script.sha, len(beat.keys), *beat.keys, *beat.args)
        state, flows, engines, first, beaten = pipe.execute()
        # It compares what can be counted, and says where that is wrong.
        assert decode(beaten)[0] == "ok", decode(beaten)
        wake_us = None if first[0][0] == b"" else int(first[0][1])
        decoded = msgspec.msgpack.decode(state)
        if decoded["until_us"]:
            wake_us = min(decoded["until_us"], wake_us or decoded["until_us"])
        return self._view(decoded, flows, engines), wake_us

    def _view(self, state: dict, rows: dict, engine_rows: dict) -> dict[str, object]:
        tiers = {
            tier.name: {
                "round": T["round"],
                "floor_credit": T["credit"],
                "slots_held": T["held"],
                "tenants": {},
            }
            for tier, T in zip(self.tiers, state["tiers"], strict=True)
        }
        for key, row in rows.items():
            if key == b"":
                continue
            rank, _, tenant = key.decode().partition("|")
            weight, cap, balance, round_, place, _, _, _, in_flight, _, count, cost, *_ = (
                msgspec.msgpack.decode(row)
            )
            tier = tiers[self.tiers[int(rank)].name]
            missed = tier["round"] - 1 - round_
            fresh = place == 0 and not in_flight and not count and missed >= 0
            if fresh and balance + missed * state["quantum"] * weight >= 0:
                continue
            tier["tenants"][tenant] = {
                "weight": weight,
                "cap": cap or None,
                "balance": balance,
                "queued": count,
                "queued_cost": cost,
                "in_flight": in_flight,
                "state": "capped" if place == 0 and count else STATES[place],
            }
        engines = [msgspec.msgpack.decode(row) for key, row in engine_rows.items() if key]
        return {
            "tiers": tiers,
            "queued": state["waiting"],
            "running": state["running"],
            "slots": state["total"],
            "slots_free": sum(max(0, slots - in_flight) for slots, in_flight, *_ in engines),
            "debt_forgiven": state["forgiven"],
        }

    # -- the wire ---------------------------------------------------------------------

    def _step(self, event: Event) -> list:
        answer = self._run(self.pool.step([event], steps=0, now=str(self.now_us)))
        return answer[3][0]

    def _run(self, call: Call) -> list:
        try:
            raw = self.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except redis.exceptions.NoScriptError:
            self.client.script_load(call.script.text)
            raw = self.client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        answer = decode(raw)
        assert answer[0] == "ok", answer
        return answer
