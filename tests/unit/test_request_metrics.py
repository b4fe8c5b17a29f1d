# SPDX-License-Identifier: Apache-2.0
"""What is counted of requests is shown as Prometheus's own client would show it."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from taketurns.telemetry import request_metrics
from taketurns.telemetry.records import RequestRecord
from taketurns.telemetry.request_metrics import SECONDS, RequestCollector

WAITS_S = (0.0, 0.001, 0.0011, 0.3, 60, 300, 301.5)


def record(tenant="acme", **more):
    told = {"endpoint": "chat", "tier": "t", "model": "m", "outcome": "completed", **more}
    return RequestRecord("", "", tenant=tenant, **told)


def shown(registry):
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line and not line.startswith("#")]


def collected(*records, label=lambda tenant: tenant):
    registry = CollectorRegistry()
    collector = RequestCollector(label)
    registry.register(collector)
    for each in records:
        collector.count(each)
    return shown(registry)


def test_waits_fall_into_the_buckets_that_a_histogram_has():
    registry = CollectorRegistry()
    labels = ["model", "endpoint", "tier", "tenant"]
    wait = Histogram(
        "taketurns_queue_wait_seconds", "x", labels, buckets=SECONDS, registry=registry
    )
    for seconds in WAITS_S:
        wait.labels("m", "chat", "t", "acme").observe(seconds)
    found = collected(*(record(wait_s=seconds) for seconds in WAITS_S))
    assert [line for line in found if line.startswith("taketurns_queue_wait")] == shown(registry)


def test_what_ended_is_counted_by_outcome():
    registry = CollectorRegistry()
    labels = ["model", "endpoint", "tier", "tenant", "outcome"]
    ended = Counter("taketurns_requests", "x", labels, registry=registry)
    ended.labels("m", "chat", "t", "acme", "completed").inc(2)
    ended.labels("m", "chat", "t", "acme", "failed").inc()
    found = collected(record(), record(), record(outcome="failed"))
    assert [line for line in found if line.startswith("taketurns_requests")] == shown(registry)


def test_what_a_request_took_and_by_how_much_its_charge_missed():
    found = collected(
        record(wait_s=1.0, charged=10, cost=7, input_tokens=5, output_tokens=2),
        record(wait_s=1.0, charged=10, cost=15, input_tokens=1),
        record(wait_s=1.0, charged=10, cost=0),
    )
    assert 'taketurns_served_cost_total{model="m",tenant="acme",tier="t"} 22.0' in found
    assert 'taketurns_settlement_error_total{direction="over",model="m"} 3.0' in found
    assert 'taketurns_settlement_error_total{direction="under",model="m"} 5.0' in found
    assert 'taketurns_tokens_total{direction="input",model="m",tenant="acme"} 6.0' in found
    assert 'taketurns_tokens_total{direction="output",model="m",tenant="acme"} 2.0' in found


def test_what_was_not_dispatched_took_nothing():
    found = collected(record(outcome="refused", code="queue_full", cost=9, input_tokens=9))
    assert 'taketurns_errors_total{code="queue_full",endpoint="chat"} 1.0' in found
    assert not [line for line in found if "tokens" in line or "cost" in line or "wait" in line]


def test_tenants_with_one_label_are_counted_together_and_kinds_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(request_metrics, "SERIES_KEPT_MAX", 2)
    records = [record(f"tenant-{number}", wait_s=0.0, cost=1) for number in range(5)] * 2
    found = collected(*records, label=lambda _: "other")
    assert 'taketurns_served_cost_total{model="m",tenant="other",tier="t"} 10.0' in found
