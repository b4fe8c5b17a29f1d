# SPDX-License-Identifier: Apache-2.0
"""Service in windows agrees with the definition, computed the slow way."""

from random import Random

import pytest
from sim.conftest import asks

from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.measures.timeline import Timeline, service_of
from taketurns.sim.measures.windows import Windows

S = 1_000_000


def finished(tenant, arrived, first, done, tokens=(10, 5)):
    request = asks("x", round(arrived * S), tenant=tenant, tokens=tokens)
    request.first_us, request.finished_us = round(first * S), round(done * S)
    return request


def slow(requests, ticks, names):
    """The published definition, over a list of requests."""
    differences, accumulated = [], []
    for x in ticks:
        rows = []
        for name in names:
            served = asked = 0.0
            for one in requests:
                if one.tenant != name:
                    continue
                if x <= one.arrived_us / S <= x + 60:
                    asked += service_of(one)
                begin, end = one.first_us / S, one.finished_us / S
                if end > begin:
                    overlap = max(0, min(x + 60, end) - max(x, begin))
                    served += service_of(one) * overlap / (end - begin)
            rows.append((served / 60, asked / 60))
        most = max(served for served, _ in rows)
        differences.append(sum(min(most - got, abs(want - got)) for got, want in rows))
        totals = []
        for name in names:
            total = 0.0
            for one in requests:
                begin, end = one.first_us / S, one.finished_us / S
                if one.tenant == name and end > begin:
                    overlap = max(0, min(x + 30, end) - max(30, begin))
                    total += service_of(one) * overlap / (end - begin)
            totals.append(total)
        accumulated.append(max(totals) - min(totals))
    return differences, accumulated


@pytest.mark.parametrize("seed", range(5))
def test_the_differences_are_those_of_the_definition(seed):
    random = Random(seed)
    requests = []
    for _ in range(300):
        arrived = random.uniform(0, 620)
        first = arrived + random.uniform(0, 100)
        done = first + random.choice([0, random.uniform(0, 1), random.uniform(0, 200)])
        lengths = random.randint(1, 500), random.randint(1, 500)
        requests.append(finished(random.choice("abc"), arrived, first, done, lengths))
    windows = Windows(600 * S)
    timeline = Timeline(sorted(set(windows.edges)))
    for one in requests:
        timeline.finished(one.tenant, [one])
    differences, accumulated = slow(requests, [28.5 * n for n in range(1, 20)], "abc")
    assert windows.differences(timeline) == pytest.approx(differences)
    assert windows.accumulated(timeline) == pytest.approx(accumulated)


def test_nothing_served_is_no_difference():
    windows = Windows(600 * S)
    timeline = Timeline(sorted(set(windows.edges)))
    assert set(windows.differences(timeline)) == set(windows.accumulated(timeline)) == {0.0}


def test_a_histogram_finds_quantiles_to_a_hundredth():
    random = Random(1)
    values = [round(random.lognormvariate(13, 2)) for _ in range(5_000)]
    histogram = Histogram()
    histogram.add(values[:2_000])
    histogram.add(values[2_000:])
    values.sort()
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = values[int(share * len(values)) - 1]
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.01)
    assert histogram.quantile(1) <= values[-1] == histogram.largest
    assert Histogram().quantile(0.5) == 0


@pytest.mark.parametrize("value", [0, 1, 63, 64, 127, 128, 129, 255, 256, 10**6, 10**12])
def test_a_histogram_of_one_value_is_near_it(value):
    histogram = Histogram()
    histogram.add([value])
    assert histogram.quantile(0.5) == pytest.approx(value, rel=0.008)
