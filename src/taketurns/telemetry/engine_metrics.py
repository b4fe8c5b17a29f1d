# SPDX-License-Identifier: Apache-2.0
"""How engines fare, read when Prometheus asks. Labels are bounded by the configuration."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from taketurns.ports.engine import ENGINE_STATES, EngineState

States = Callable[[], Mapping[str, Sequence[EngineState]]]


class EngineCollector(Collector):
    """Collects the states of all engines.

    Args:
        states: Returns each pool's engines by its model's name.
    """

    def __init__(self, states: States) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all engines."""
        labels = ["model", "engine"]
        state = GaugeMetricFamily(
            "taketurns_engine_state",
            "1 for the state that an engine is in, 0 for the others.",
            labels=[*labels, "state"],
        )
        limit = GaugeMetricFamily(
            "taketurns_engine_slot_limit",
            "Slots that an engine has while all is well: set, or found.",
            labels=labels,
        )
        waiting = GaugeMetricFamily(
            "taketurns_engine_queue",
            "Requests thought to wait inside an engine, where that's known.",
            labels=labels,
        )
        failures = CounterMetricFamily(
            "taketurns_engine_failures",
            "Requests that failed by an engine's fault.",
            labels=[*labels, "reason"],
        )
        for model, engines in self._states().items():
            for engine in engines:
                for word in ENGINE_STATES:
                    state.add_metric([model, engine.name, word], int(word == engine.state))
                limit.add_metric([model, engine.name], engine.limit)
                if engine.waiting is not None:
                    waiting.add_metric([model, engine.name], engine.waiting)
                for reason, count in engine.failures.items():
                    failures.add_metric([model, engine.name, reason], count)
        yield from (state, limit, waiting, failures)
