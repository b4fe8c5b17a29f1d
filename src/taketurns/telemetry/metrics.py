# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: what a gateway counts, and gauges read off the schedulers at each scrape.

Labels are bounded: tenants, tiers and models are those of the configuration,
and past ``TENANTS_MAX`` tenants the rest share one label.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taketurns.core.snapshot import PoolSnapshot
from taketurns.telemetry.engine_metrics import EngineCollector, States
from taketurns.telemetry.request_metrics import RequestCollector

TENANTS_MAX = 1_000
"""Most tenants with a label of their own."""

OTHER = "other"

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


class Metrics:
    """All metrics of one gateway.

    Args:
        tenants: Names of the configured tenants.
        snapshots: Returns each pool's state by its model's name.
        version: Of this package.

    Attributes:
        count: Counts a request that has ended.
    """

    def __init__(self, tenants: Iterable[str], snapshots: Snapshots, version: str) -> None:
        self._registry = registry = CollectorRegistry()
        self._tenants: frozenset[str] = frozenset()
        registry.register(_PoolCollector(snapshots, self._tenant_label))
        self._ended = RequestCollector(self._tenant_label)
        registry.register(self._ended)
        self.know(tenants)
        self.count = self._ended.count
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
        self._ended.forget_labels()
        self._tenants |= set(sorted(set(tenants) - self._tenants)[:room])

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
