# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: counters as requests end, and gauges read off the schedulers at each scrape.

Labels are bounded: tenants, tiers and models are those of the configuration,
and past ``TENANTS_MAX`` tenants the rest share one label.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taketurns.core.snapshot import PoolSnapshot
from taketurns.telemetry.engine_metrics import EngineCollector, States
from taketurns.telemetry.records import RequestRecord

TENANTS_MAX = 1_000
"""Most tenants with a label of their own."""

SERIES_KEPT_MAX = 10_000
"""Most kinds of requests whose series are kept at hand."""

OTHER = "other"

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

Snapshots = Callable[[], Mapping[str, PoolSnapshot]]


class _PoolCollector(Collector):
    """Reads every pool's state when Prometheus asks."""

    def __init__(self, snapshots: Snapshots, label: Callable[[str], str]) -> None:
        self._snapshots = snapshots
        self._label = label

    def collect(self) -> Iterator[Metric]:
        tenant_labels = ["model", "tier", "tenant"]
        depth = GaugeMetricFamily(
            "taketurns_queue_depth", "Tickets that wait.", labels=tenant_labels
        )
        queued_cost = GaugeMetricFamily(
            "taketurns_queue_cost", "Cost of the tickets that wait.", labels=tenant_labels
        )
        in_flight = GaugeMetricFamily(
            "taketurns_inflight", "Tickets that run.", labels=tenant_labels
        )
        deficit = GaugeMetricFamily(
            "taketurns_drr_deficit",
            "Balance in cost units; negative: overdraft that waiting repays.",
            labels=tenant_labels,
        )
        slots = GaugeMetricFamily("taketurns_slots", "Slots.", labels=["model", "engine"])
        used = GaugeMetricFamily(
            "taketurns_slots_in_use", "Slots in use.", labels=["model", "engine"]
        )
        rounds = CounterMetricFamily(
            "taketurns_rounds", "Rounds of the round robin.", labels=["model", "tier"]
        )
        forgiven = CounterMetricFamily(
            "taketurns_debt_forgiven",
            "Cost units of debt past the bound, which were let go.",
            labels=["model"],
        )
        for model, pool in self._snapshots().items():
            forgiven.add_metric([model], pool.debt_forgiven)
            for engine in pool.engines:
                slots.add_metric([model, engine.name], engine.slots)
                used.add_metric([model, engine.name], engine.in_flight)
            for tier in pool.tiers:
                rounds.add_metric([model, tier.name], tier.round)
                sums: dict[str, list[int]] = {}
                for tenant in tier.tenants:
                    row = sums.setdefault(self._label(tenant.tenant), [0, 0, 0, 0])
                    row[0] += tenant.queued
                    row[1] += tenant.queued_cost
                    row[2] += tenant.in_flight
                    row[3] += tenant.balance
                for label, row in sums.items():
                    labels = [model, tier.name, label]
                    for family, value in zip(
                        (depth, queued_cost, in_flight, deficit), row, strict=True
                    ):
                        family.add_metric(labels, value)
        yield from (depth, queued_cost, in_flight, deficit, slots, used, rounds, forgiven)


_Key = tuple[str, str, str, str, str]
_Kept = TypeVar("_Kept")


class _Served(NamedTuple):
    """What requests of one kind that ran count in, looked up once."""

    wait: Histogram
    cost: Counter
    input_tokens: Counter
    output_tokens: Counter


def _keep(kept: dict[_Key, _Kept], key: _Key, series: _Kept) -> _Kept:
    """Keep series at hand and return them; where there are too many, all are looked up again."""
    if len(kept) >= SERIES_KEPT_MAX:
        kept.clear()
    kept[key] = series
    return series


class Metrics:
    """All metrics of one gateway.

    Args:
        tenants: Names of the configured tenants.
        snapshots: Returns each pool's state by its model's name.
        version: Of this package.
    """

    def __init__(self, tenants: Iterable[str], snapshots: Snapshots, version: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._tenants: frozenset[str] = frozenset()
        self._ended: dict[_Key, Counter] = {}
        self._served: dict[_Key, _Served] = {}
        self.know(tenants)
        registry.register(_PoolCollector(snapshots, self._tenant_label))
        request_labels = ["model", "endpoint", "tier", "tenant"]
        self._requests = Counter(
            "taketurns_requests",
            "Requests that ended, by outcome.",
            [*request_labels, "outcome"],
            registry=registry,
        )
        self._wait = Histogram(
            "taketurns_queue_wait_seconds",
            "From arrival in the queue to dispatch.",
            request_labels,
            buckets=SECONDS,
            registry=registry,
        )
        self._first_byte = Histogram(
            "taketurns_time_to_first_byte_seconds",
            "From arrival to the first byte of a streamed answer.",
            ["model", "endpoint"],
            buckets=SECONDS,
            registry=registry,
        )
        self._cost = Counter(
            "taketurns_served_cost",
            "Cost units that were charged in the end.",
            ["model", "tier", "tenant"],
            registry=registry,
        )
        self._error = Counter(
            "taketurns_settlement_error",
            "Cost units by which charges at dispatch missed what requests cost in the end.",
            ["model", "direction"],
            registry=registry,
        )
        self._tokens = Counter(
            "taketurns_tokens",
            "Tokens of requests that ran.",
            ["model", "tenant", "direction"],
            registry=registry,
        )
        self._errors = Counter(
            "taketurns_errors",
            "Answers with an error, by its code.",
            ["endpoint", "code"],
            registry=registry,
        )
        self._limits = Counter(
            "taketurns_limit_refusals",
            "Requests that a limit refused, or would have in shadow mode.",
            ["limit", "mode"],
            registry=registry,
        )
        self._late = Counter(
            "taketurns_throttle_refusals",
            "Requests that would have waited too long and were refused, or would have been.",
            ["model", "mode", "reason"],
            registry=registry,
        )
        self._batch_items = Histogram(
            "taketurns_batch_items",
            "Texts in a batch.",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=registry,
        )
        self._mistrusts = Counter(
            "taketurns_engine_usage_mistrusted",
            "Batches whose engine reported characters as tokens: its count was not used.",
            ["model"],
            registry=registry,
        )
        self.draining = Gauge(
            "taketurns_draining", "1 while the gateway is stopping.", registry=registry
        )
        self.log_broken = Gauge(
            "taketurns_log_broken", "1 once the request log can't be written.", registry=registry
        )
        self.quotas_failing = Gauge(
            "taketurns_quota_store_failing",
            "1 while the counts of month quotas can't be kept.",
            registry=registry,
        )
        self.usage_failing = Gauge(
            "taketurns_usage_store_failing",
            "1 while what tenants use can't be written; it is kept in memory.",
            registry=registry,
        )
        self.keys_failing = Gauge(
            "taketurns_key_store_failing",
            "1 while changes of keys can't be read from the database.",
            registry=registry,
        )
        self.alone = Gauge(
            "taketurns_coordinator_alone",
            "1 while a gateway of a fleet goes on without its coordinator.",
            registry=registry,
        )
        self.reloaded = Gauge(
            "taketurns_config_last_reload_successful",
            "1 unless the last reload of the configuration was refused.",
            registry=registry,
        )
        self.reloaded.set(1)
        info = Gauge("taketurns_build_info", "Always 1.", ["version"], registry=registry)
        info.labels(version).set(1)

    def watch_engines(self, states: States) -> None:
        """Show how engines fare; ``states`` returns each pool's by its model's name."""
        self._registry.register(EngineCollector(states))

    def know(self, tenants: Iterable[str]) -> None:
        """Give more tenants labels of their own, as long as there are any left."""
        room = TENANTS_MAX - len(self._tenants)
        self._ended.clear()
        self._served.clear()
        self._tenants |= set(sorted(set(tenants) - self._tenants)[:room])

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        key = (record.model, record.endpoint, record.tier, record.tenant, record.outcome)
        requests = self._ended.get(key)
        if requests is None:
            requests = _keep(self._ended, key, self._requests.labels(*self._labels(record), key[4]))
        requests.inc()
        if record.code:
            self._errors.labels(record.endpoint, record.code).inc()
        if record.wait_s is not None:
            served = self._served.get(key)
            if served is None:
                served = _keep(self._served, key, self._series_of(record))
            served.wait.observe(record.wait_s)
            served.cost.inc(record.cost)
            if record.charged != record.cost and record.charged and record.cost:
                direction = "over" if record.charged > record.cost else "under"
                error = abs(record.charged - record.cost)
                self._error.labels(record.model, direction).inc(error)
            served.input_tokens.inc(record.input_tokens)
            served.output_tokens.inc(record.output_tokens)
        if record.first_byte_s is not None:
            self._first_byte.labels(record.model, record.endpoint).observe(record.first_byte_s)

    def _labels(self, record: RequestRecord) -> tuple[str, str, str, str]:
        tenant = self._tenant_label(record.tenant) if record.tenant else ""
        return record.model, record.endpoint, record.tier, tenant

    def _series_of(self, record: RequestRecord) -> "_Served":
        model, endpoint, tier, tenant = self._labels(record)
        return _Served(
            self._wait.labels(model, endpoint, tier, tenant),
            self._cost.labels(model, tier, tenant),
            self._tokens.labels(model, tenant, "input"),
            self._tokens.labels(model, tenant, "output"),
        )

    def count_limit(self, rule: str, mode: str) -> None:
        """Count a request that a limit refused (``enforce``), or would have (``shadow``)."""
        self._limits.labels(rule, mode).inc()

    def count_late(self, model: str, mode: str, reason: str) -> None:
        """Count a request that a throttle refused (``enforce``), or would have (``shadow``)."""
        self._late.labels(model, mode, reason).inc()

    def count_batch(self, model: str, items: int) -> None:
        """Count a batch that was sent to an engine."""
        self._batch_items.labels(model).observe(items)

    def count_mistrust(self, model: str) -> None:
        """Count a batch whose engine reported characters as tokens."""
        self._mistrusts.labels(model).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def _tenant_label(self, tenant: str) -> str:
        # The shared queue's one flow stands for everybody.
        return tenant if tenant in self._tenants or tenant == "*" else OTHER
