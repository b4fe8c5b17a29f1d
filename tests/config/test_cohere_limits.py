# SPDX-License-Identifier: Apache-2.0
"""The example with Cohere's published limits: each row of the table holds, to the request."""

from pathlib import Path

import pytest

from taketurns.config.load import load
from taketurns.core.limits import Admitted, Amounts, Denied, Ledger, Unit, rules_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "cohere-limits.yaml"
MINUTE_US = 60_000_000
TENANT = {"trial": "visitor", "production": "customer"}

CONFIG = load(EXAMPLE, env={})
RULES = CONFIG.limit_rules()


class Client:
    """One tenant's requests; of its limits those of a minute only, where asked so."""

    def __init__(self, tier, *, months=True):
        self.tier = tier
        self.tenant = TENANT[tier]
        self.ledger = Ledger()
        self.months = months

    def send(self, model, endpoint, *, inputs=1, now_us=0, month="2026-11"):
        """Return the names of the units that refuse a request; none where it passes."""
        rules = rules_for(RULES, tenant=self.tenant, tier=self.tier, model=model, endpoint=endpoint)
        if not self.months:
            rules = [rule for rule in rules if rule.period_us]
        result = self.ledger.admit(
            rules, self.tenant, Amounts(inputs=inputs), now_us=now_us, month=month
        )
        if isinstance(result, Denied):
            return [status.rule.unit for status in result.statuses]
        assert isinstance(result, Admitted)
        result.settle(Amounts(inputs=inputs))
        return []


ROWS = [
    ("trial", "command", "chat", 20),
    ("trial", "command-light", "chat", 20),
    ("trial", "embed", "rerank", 10),
    ("trial", "embed", "tokenize", 100),
    ("trial", "command", "completions", 500),
    ("production", "command", "chat", 500),
    ("production", "command-light", "chat", 500),
    ("production", "embed", "rerank", 1_000),
    ("production", "embed", "tokenize", 2_000),
    ("production", "command", "completions", 500),
]


@pytest.mark.parametrize(("tier", "model", "endpoint", "limit"), ROWS)
def test_one_request_more_than_the_limit_of_a_minute_is_refused(tier, model, endpoint, limit):
    client = Client(tier, months=False)
    # Spread over the minute: any window of a minute counts, wherever it begins.
    for number in range(limit):
        now_us = number * MINUTE_US // limit
        assert client.send(model, endpoint, now_us=now_us) == [], number
    assert client.send(model, endpoint, now_us=MINUTE_US - 1) == [Unit.REQUESTS]
    assert client.send(model, endpoint, now_us=3 * MINUTE_US) == []


@pytest.mark.parametrize("tier", ["trial", "production"])
def test_embed_counts_inputs_and_not_requests(tier):
    client = Client(tier, months=False)
    # 20 requests of 96 texts, the most that one of Cohere's may have, and one of 80.
    for _ in range(20):
        assert client.send("embed", "embeddings", inputs=96) == []
    assert client.send("embed", "embeddings", inputs=81) == [Unit.INPUTS]
    assert client.send("embed", "embeddings", inputs=80) == []
    assert client.send("embed", "embeddings") == [Unit.INPUTS]


@pytest.mark.parametrize("tier", ["trial", "production"])
def test_two_thousand_requests_of_one_text_pass_embed(tier):
    client = Client(tier, months=False)
    assert all(client.send("embed", "embeddings") == [] for _ in range(2_000))
    assert client.send("embed", "embeddings") == [Unit.INPUTS]


@pytest.mark.parametrize("tier", ["trial", "production"])
def test_each_chat_model_has_a_limit_of_its_own(tier):
    client = Client(tier, months=False)
    while client.send("command", "chat") == []:
        pass
    assert client.send("command-light", "chat") == []


def test_a_trial_has_a_thousand_calls_a_month_over_all_endpoints():
    client = Client("trial")
    calls = [("command", "chat"), ("embed", "rerank"), ("embed", "embeddings")]
    for number in range(1_000):
        # One call a minute: no other limit comes near.
        assert client.send(*calls[number % 3], now_us=number * MINUTE_US) == []
    later_us = 1_001 * MINUTE_US
    for call in calls:
        assert client.send(*call, now_us=later_us) == [Unit.REQUESTS]
    assert client.send("command", "chat", now_us=later_us, month="2026-12") == []


def test_production_has_no_month():
    assert all(rule.tier == "trial" for rule in RULES if not rule.period_us)


def test_two_tenants_of_a_tier_do_not_share_their_limits():
    assert not any(rule.total for rule in RULES)


def test_every_limit_is_tried_here():
    tried = {
        rule.name
        for tier in TENANT
        for model, section in CONFIG.models.items()
        for endpoint in (*section.endpoints, "tokenize")
        for rule in rules_for(RULES, tenant=TENANT[tier], tier=tier, model=model, endpoint=endpoint)
    }
    assert tried == {rule.name for rule in RULES}
