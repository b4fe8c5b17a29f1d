# SPDX-License-Identifier: Apache-2.0
"""Quantities, defaults, and the schema that describes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from taketurns.config import quantities
from taketurns.config.model import Config
from taketurns.config.schema import json_schema
from taketurns.ports.engine import EngineLimits


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (quantities.duration_s, "500ms", 0.5),
        (quantities.duration_s, "30s", 30.0),
        (quantities.duration_s, "5m", 300.0),
        (quantities.duration_s, "2h", 7200.0),
        (quantities.duration_s, "1.5s", 1.5),
        (quantities.duration_s, "7", 7.0),
        (quantities.duration_s, 7, 7.0),
        (quantities.duration_s, 0.25, 0.25),
        (quantities.size_bytes, "16k", 16 * 1024),
        (quantities.size_bytes, "8M", 8 * 1024**2),
        (quantities.size_bytes, "1G", 1024**3),
        (quantities.size_bytes, 5, 5),
        (quantities.count, "60k", 60_000),
        (quantities.count, "2M", 2_000_000),
        (quantities.count, 5, 5),
        (quantities.percent, "5%", 5),
        (quantities.percent, "100%", 100),
        (quantities.percent, 0, 0),
        (quantities.whole, "-3", -3),
        (quantities.whole, 3, 3),
        (quantities.flag, "true", True),
        (quantities.flag, False, False),
    ],
)
def test_a_quantity_is_read_as_people_write_it(read, value, expected):
    assert read(value) == expected


@pytest.mark.parametrize(
    "read",
    [
        quantities.duration_s,
        quantities.size_bytes,
        quantities.count,
        quantities.percent,
        quantities.whole,
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "5 s", "5S", "-5s", "1e3", "٣", "5s\n", "5kk", "101%", "%", "9" * 30),
        *(True, None, [], -0.5, float("inf"), float("nan")),
    ],
)
def test_anything_else_is_refused_with_a_remedy(read, value):
    with pytest.raises(PydanticCustomError) as caught:
        read(value)
    assert caught.value.context["hint"]


@given(st.integers(0, 200_000))
def test_a_duration_is_written_as_it_would_be_read(milliseconds):
    text = quantities.duration_text(milliseconds / 1000)
    assert round(quantities.duration_s(text) * 1000) == milliseconds


def test_defaults_are_those_that_the_reference_names(small):
    config = Config.model_validate(small)
    server, tier, tenant = config.server, config.tiers["production"], config.tenants["acme"]
    assert (server.host, server.port, server.admin_host, server.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        8081,
    )
    assert (server.admin_token, server.log, server.connections_max) == (None, "-", 10_000)
    assert (server.body_bytes_max, server.drain, server.drain_delay) == (8 * 1024**2, 30.0, 0.0)
    assert (tier.queue_timeout, tier.floor, tier.slot_share) == (60.0, 0, 100)
    assert (tenant.weight, tenant.parallel, tenant.min_priority) == (1, None, 0)
    assert (tenant.keys, tenant.suspended) == ((), False)
    chat = config.models["chat"]
    assert (chat.kind, chat.cost_or_default, chat.scheduler) == (
        "generation",
        "requests",
        "round_robin",
    )
    assert (chat.tenant_queue_max, chat.queue_max, chat.debt_rounds) == (10_000, 100_000, None)
    assert (chat.input_tokens_max, chat.inputs_max, chat.dimensions) == (512, 2048, False)
    assert (chat.tenants, chat.owned_by, chat.engines[0].slots) == (None, "taketurns", 8)
    assert (config.store, config.store_path) == ("memory", None)


def test_engine_limits_have_the_defaults_of_the_port(small):
    limits = Config.model_validate(small).models["chat"].engine_limits
    assert limits.model_dump() == {
        "connect": EngineLimits().connect_s,
        "first_byte": EngineLimits().first_byte_s,
        "between_chunks": EngineLimits().between_chunks_s,
        "total": EngineLimits().total_s,
    }


def test_embeddings_count_tokens_by_default(small):
    small["models"]["chat"]["endpoints"] = ["embeddings"]
    model = Config.model_validate(small).models["chat"]
    assert (model.kind, model.cost_or_default) == ("embeddings", "tokens")


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ("sqlite:///var/lib/t.db", "/var/lib/t.db"),
        ("sqlite://./t.db", "t.db"),
        ("sqlite://t.db", "t.db"),
        ("postgresql://tt:secret@h/name?sslmode=require", "None"),
        ("postgres:///name?host=/run/postgresql", "None"),
    ],
)
def test_three_slashes_mean_an_absolute_path(small, store, path):
    assert str(Config.model_validate(small | {"store": store}).store_path) == path


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_loopback_the_admin_side_needs_no_token(small, host):
    assert Config.model_validate(small | {"server": {"admin_host": host}})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_elsewhere_the_admin_side_needs_a_token(small, host):
    with pytest.raises(ValidationError):
        Config.model_validate(small | {"server": {"admin_host": host}})
    assert Config.model_validate(small | {"server": {"admin_host": host, "admin_token": "t"}})


def test_an_engine_url_loses_the_slash_at_its_end(small):
    small["models"]["chat"]["engines"] = [{"url": "https://h/base/"}, {"url": "http://[::1]:80"}]
    engines = Config.model_validate(small).models["chat"].engines
    assert [e.url for e in engines] == ["https://h/base", "http://[::1]:80"]


def test_a_configuration_does_not_change(small):
    config = Config.model_validate(small)
    with pytest.raises(ValidationError):
        config.tenants["acme"].weight = 5


def test_a_configuration_is_valid_when_read_back(small):
    config = Config.model_validate(small)
    assert Config.model_validate(config) == config


def test_every_key_is_described_in_the_schema():
    schema = json_schema()
    sections = [schema, *schema["$defs"].values()]
    assert len(sections) == 12
    for section in sections:
        assert section["additionalProperties"] is False
        for key, field in section["properties"].items():
            assert field.get("description"), key


def test_every_optional_key_says_its_default():
    schema = json_schema()
    for section in schema["$defs"].values():
        for key, field in section["properties"].items():
            if key in section.get("required", ()) or "$ref" in field or "allOf" in field:
                continue
            said = field["description"]
            assert "Default" in said or key == "admin_token", (key, said)
