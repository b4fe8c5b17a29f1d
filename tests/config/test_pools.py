# SPDX-License-Identifier: Apache-2.0
"""The configuration becomes what the scheduler is made with."""

import pytest

from taketurns.config.model import Config
from taketurns.config.pools import engine_limits, engine_names, pool, pools, tiers
from taketurns.core.cost import REQUEST_COST
from taketurns.core.model import BatchRules, PoolRules, Tenant, Tier
from taketurns.ports.engine import EngineLimits

ENGINES = [{"url": "http://127.0.0.1:1"}]


def test_tiers_stand_in_the_order_of_their_ranks(small):
    small["tiers"] = {
        "trial": {"rank": 7, "floor": "5%", "slot_share": "80%", "queue_timeout": "2m"},
        "production": {"rank": 3},
    }
    config = Config.model_validate(small)
    assert tiers(config) == (Tier("production"), Tier("trial", 5, 80))
    assert pool(config, "chat").queue_timeout_us == {
        "production": 60_000_000,
        "trial": 120_000_000,
    }


@pytest.mark.parametrize(
    ("model", "weight", "quantum"),
    [
        ({"endpoints": ["chat"]}, 1, REQUEST_COST),
        ({"endpoints": ["chat"]}, 3, REQUEST_COST // 3),
        ({"endpoints": ["chat"]}, 1000, 1),
        ({"endpoints": ["chat"], "quantum": "2k"}, 3, 2000),
        ({"endpoints": ["completions"], "cost": "tokens"}, 1, 100),
        ({"endpoints": ["chat"], "cost": "ema"}, 5, 20),
        ({"endpoints": ["chat"], "cost": "tokens"}, 1000, 1),
        ({"endpoints": ["embeddings"]}, 1, 64),
        ({"endpoints": ["embeddings"]}, 5, 12),
        ({"endpoints": ["embeddings"]}, 1000, 1),
        ({"endpoints": ["embeddings"], "batch": {"tokens_max": 7}}, 1, 1),
        ({"endpoints": ["embeddings"], "batch": {"tokens_max": 6400}}, 1, 100),
        ({"endpoints": ["embeddings"], "cost": "requests"}, 2, REQUEST_COST // 2),
    ],
)
def test_the_quantum_is_a_request_or_100_tokens_or_a_64th_of_a_batch(small, model, weight, quantum):
    small["models"]["chat"] = {"engines": ENGINES, **model}
    small["tenants"]["acme"]["weight"] = weight
    small["tenants"]["globex"] = {"tier": "production"}
    assert pool(Config.model_validate(small), "chat").rules.quantum == quantum


@pytest.mark.parametrize(
    ("model", "weight", "rounds"),
    [
        ({"cost": "requests"}, 100, 64),
        ({"cost": "ema"}, 1, 1_000),
        ({"cost": "ema"}, 5, 5_000),
        ({"cost": "tokens", "quantum": "20k"}, 1, 64),
    ],
)
def test_a_tenant_may_have_64_rounds_or_100_000_tokens_of_debt(small, model, weight, rounds):
    small["models"]["chat"] = {"endpoints": ["chat"], "engines": ENGINES, **model}
    small["tenants"]["acme"]["weight"] = weight
    assert pool(Config.model_validate(small), "chat").rules.debt_rounds == rounds


def test_rules_carry_what_the_file_says(small):
    small["models"] = {
        "chat": {
            "endpoints": ["chat"],
            "engines": ENGINES,
            "scheduler": "shared_queue",
            "tenant_queue_max": 5,
            "queue_max": 50,
            "debt_rounds": 9,
        },
        "emb": {
            "endpoints": ["embeddings"],
            "engines": ENGINES,
            "batch": {"tokens_max": 80, "items_max": 4, "padded": True},
        },
    }
    made = pools(Config.model_validate(small))
    assert made["chat"].rules == PoolRules(
        quantum=1000, tenant_queue_max=5, queue_max=50, debt_rounds=9, shared_queue=True
    )
    assert made["emb"].rules == PoolRules(
        # Eight batches' worth of debt.
        quantum=1,
        min_charge=1,
        debt_rounds=640,
        batch=BatchRules(80, 4, padded=True),
    )


def test_a_pool_knows_the_tenants_that_may_use_it_and_caps_generation_only(small):
    small["tenants"] = {
        "acme": {"tier": "production", "weight": 2, "parallel": 3},
        "globex": {"tier": "production", "weight": 500},
    }
    small["models"] = {
        "chat": {"endpoints": ["chat"], "engines": ENGINES, "tenants": ["acme"]},
        "emb": {"endpoints": ["embeddings"], "engines": ENGINES},
    }
    made = pools(Config.model_validate(small))
    assert made["chat"].tenants == (Tenant("acme", 2, 3),)
    assert made["chat"].rules.quantum == REQUEST_COST // 2
    assert made["emb"].tenants == (Tenant("acme", 2), Tenant("globex", 500))


def test_engine_limits_reach_the_port(small):
    small["models"]["chat"]["engine_limits"] = {"connect": "500ms", "total": "2h"}
    limits = Config.model_validate(small).models["chat"].engine_limits
    assert engine_limits(limits) == EngineLimits(connect_s=0.5, total_s=7200.0)


def test_every_engine_has_a_name_of_its_own(small):
    small["models"]["chat"]["engines"] = [
        {"url": "http://a:1"},
        {"url": "http://a:1"},
        {"url": "http://a:1", "name": "a-1"},
        {"embedded": "smollm2"},
        {"embedded": "smollm2"},
        {"url": "http://b:2", "name": "smollm2"},
    ]
    names = engine_names(Config.model_validate(small).models["chat"])
    assert names == ("a:1", "a:1-2", "a-1", "smollm2-2", "smollm2-3", "smollm2")
