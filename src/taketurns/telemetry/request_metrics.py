# SPDX-License-Identifier: Apache-2.0
"""Counts requests as they end: in plain numbers, which Prometheus's client reads at each scrape.

Its own counters take a lock and a few calls each; a request moves seven of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from taketurns.telemetry.records import RequestRecord

SERIES_KEPT_MAX = 10_000
"""Most kinds of requests whose series are kept at hand."""

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_LE = (*(str(float(second)) for second in SECONDS), "+Inf")


class Count:
    """A number that grows."""

    __slots__ = ("value",)
    family: Any = CounterMetricFamily

    def __init__(self) -> None:
        self.value = 0

    def add_to(self, family: Any, labels: Sequence[str]) -> None:
        """Show it."""
        family.add_metric(labels, self.value)


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")
    family: Any = HistogramMetricFamily

    def __init__(self) -> None:
        self.counts = [0] * len(_LE)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds

    def add_to(self, family: Any, labels: Sequence[str]) -> None:
        """Show them: a bucket counts those before it too."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for le, count in zip(_LE, self.counts, strict=True):
            total += count
            buckets.append((le, total))
        family.add_metric(labels, buckets, self.sum_s)


_Value = TypeVar("_Value", Count, Times)


class Family(Generic[_Value]):
    """The series of one metric, by their labels.

    Args:
        kind: What they count.
        name: Of the metric.
        told: What it is.
        labels: Their names.
    """

    def __init__(self, kind: type[_Value], name: str, told: str, labels: Sequence[str]) -> None:
        self._kind: type[_Value] = kind
        self._name = name
        self._told = told
        self._labels = labels
        self._series: dict[tuple[str, ...], _Value] = {}

    def of(self, *labels: str) -> _Value:
        """Return the series of these labels."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._kind()
        return series

    def collect(self) -> Metric:
        """Return all series as they are."""
        family = self._kind.family(self._name, self._told, labels=self._labels)
        for labels, series in self._series.items():
            series.add_to(family, labels)
        shown: Metric = family
        return shown


class _Served(NamedTuple):
    """What requests of one kind that ran count in, looked up once."""

    wait: Times
    cost: Count
    over: Count
    under: Count
    input_tokens: Count
    output_tokens: Count


_Key = tuple[str, str, str, str, str]
_Kept = TypeVar("_Kept", Count, _Served)


def _keep(kept: dict[_Key, _Kept], key: _Key, series: _Kept) -> _Kept:
    """Keep series at hand and return them; where there are too many, all are looked up again."""
    if len(kept) >= SERIES_KEPT_MAX:
        kept.clear()
    kept[key] = series
    return series


class RequestCollector(Collector):
    """Counts requests, and shows what it counted.

    Args:
        label: Returns a tenant's label.
    """

    def __init__(self, label: Callable[[str], str]) -> None:
        self._label = label
        self._ended: dict[_Key, Count] = {}
        self._served: dict[_Key, _Served] = {}
        each = ("model", "endpoint", "tier", "tenant")
        self._requests = Family(
            Count, "taketurns_requests", "Requests that ended, by outcome.", (*each, "outcome")
        )
        self._wait = Family(
            Times, "taketurns_queue_wait_seconds", "From arrival in the queue to dispatch.", each
        )
        self._first_byte = Family(
            Times,
            "taketurns_time_to_first_byte_seconds",
            "From arrival to the first byte of a streamed answer.",
            ("model", "endpoint"),
        )
        self._cost = Family(
            Count,
            "taketurns_served_cost",
            "Cost units that were charged in the end.",
            ("model", "tier", "tenant"),
        )
        self._error = Family(
            Count,
            "taketurns_settlement_error",
            "Cost units by which charges at dispatch missed what requests cost in the end.",
            ("model", "direction"),
        )
        self._tokens = Family(
            Count,
            "taketurns_tokens",
            "Tokens of requests that ran.",
            ("model", "tenant", "direction"),
        )
        self._errors = Family(
            Count, "taketurns_errors", "Answers with an error, by its code.", ("endpoint", "code")
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all requests."""
        for family in (self._requests, self._cost, self._error, self._tokens, self._errors):
            yield family.collect()
        for times in (self._wait, self._first_byte):
            yield times.collect()

    def forget_labels(self) -> None:
        """Look all series up again: a tenant has got a label of its own."""
        self._ended.clear()
        self._served.clear()

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        key = (record.model, record.endpoint, record.tier, record.tenant, record.outcome)
        ended = self._ended.get(key)
        if ended is None:
            ended = _keep(self._ended, key, self._requests.of(*self._labels(record), key[4]))
        ended.value += 1
        if record.code:
            self._errors.of(record.endpoint, record.code).value += 1
        if record.wait_s is not None:
            served = self._served.get(key)
            if served is None:
                served = _keep(self._served, key, self._series_of(record))
            served.wait.observe(record.wait_s)
            charged, cost = record.charged, record.cost
            served.cost.value += cost
            if charged and cost:
                if charged > cost:
                    served.over.value += charged - cost
                else:
                    served.under.value += cost - charged
            served.input_tokens.value += record.input_tokens
            served.output_tokens.value += record.output_tokens
        if record.first_byte_s is not None:
            self._first_byte.of(record.model, record.endpoint).observe(record.first_byte_s)

    def _labels(self, record: RequestRecord) -> tuple[str, str, str, str]:
        tenant = self._label(record.tenant) if record.tenant else ""
        return record.model, record.endpoint, record.tier, tenant

    def _series_of(self, record: RequestRecord) -> _Served:
        model, endpoint, tier, tenant = self._labels(record)
        return _Served(
            self._wait.of(model, endpoint, tier, tenant),
            self._cost.of(model, tier, tenant),
            self._error.of(model, "over"),
            self._error.of(model, "under"),
            self._tokens.of(model, tenant, "input"),
            self._tokens.of(model, tenant, "output"),
        )
