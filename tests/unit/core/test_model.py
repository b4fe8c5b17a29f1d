# SPDX-License-Identifier: Apache-2.0
"""The facts that the scheduler works with are checked where they are made."""

import dataclasses

import pytest

from taketurns.core.model import (
    PRIORITY_DEFAULT,
    WEIGHT_MAX,
    BatchRules,
    PoolRules,
    Tenant,
    Ticket,
    Tier,
)


def test_a_ticket_needs_only_id_tenant_and_tier():
    ticket = Ticket("t", "acme", "standard")
    assert (ticket.cost, ticket.size, ticket.priority) == (1, 1, PRIORITY_DEFAULT)
    assert ticket.deadline_us is None
    assert ticket.group == ""


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        (Tier, {"floor_percent": -1}, "floor_percent must be 0 to 50, got -1"),
        (Tier, {"floor_percent": 51}, "floor_percent must be 0 to 50, got 51"),
        (Tier, {"slot_share_percent": 0}, "slot_share_percent must be 1 to 100, got 0"),
        (Tier, {"slot_share_percent": 101}, "slot_share_percent must be 1 to 100, got 101"),
        (Tenant, {"weight": 0}, "weight must be 1 to 1000, got 0"),
        (Tenant, {"weight": WEIGHT_MAX + 1}, "weight must be 1 to 1000, got 1001"),
        (Tenant, {"cap": 0}, "cap must be at least 1, got 0"),
    ],
)
def test_a_tier_or_tenant_out_of_bounds_is_an_error_that_names_the_value(kind, fields, words):
    with pytest.raises(ValueError, match=words):
        kind("name", **fields)


def test_bounds_are_inclusive():
    assert Tier("t", floor_percent=50, slot_share_percent=1).floor_percent == 50
    assert Tier("t", floor_percent=0, slot_share_percent=100).slot_share_percent == 100
    assert Tenant("t", weight=WEIGHT_MAX, cap=1).cap == 1
    assert Tenant("t", weight=1).cap is None


@pytest.mark.parametrize("name", ["size_max", "items_max", "misfits_max"])
def test_each_bound_of_a_batch_is_at_least_one(name):
    fields = {"size_max": 1, "items_max": 1, "misfits_max": 1}
    assert getattr(BatchRules(**fields), name) == 1
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        BatchRules(**{**fields, name: 0})


@pytest.mark.parametrize("name", ["quantum", "debt_rounds", "tenant_queue_max", "queue_max"])
def test_each_number_of_a_pools_rules_is_at_least_one(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        PoolRules(**{"quantum": 1, name: 0})


def test_the_least_charge_is_an_eighth_of_the_quantum_and_at_least_one_unless_it_is_set():
    assert PoolRules(quantum=800).min_charge_or_default == 100
    assert PoolRules(quantum=7).min_charge_or_default == 1
    assert PoolRules(quantum=800, min_charge=3).min_charge_or_default == 3
    assert PoolRules(quantum=800, min_charge=0).min_charge_or_default == 0
    with pytest.raises(ValueError, match="min_charge must be at least 0, got -1"):
        PoolRules(quantum=1, min_charge=-1)


@pytest.mark.parametrize("fact", [Tier("t"), Tenant("t"), BatchRules(1, 1), PoolRules(1)])
def test_facts_are_immutable(fact):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(fact, dataclasses.fields(fact)[0].name, "other")
