# SPDX-License-Identifier: Apache-2.0
"""Service in windows agrees with the definition, computed the slow way."""

from random import Random

import pytest
from sim.conftest import asks

from taketurns.sim.measures.histogram import Histogram
from taketurns.sim.measures.windows import ServiceWindows, service_of

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
    windows = ServiceWindows(600 * S)
    for one in requests:
        windows.finished(one)
    differences, accumulated = slow(requests, [28.5 * n for n in range(1, 20)], "abc")
    assert windows.differences() == pytest.approx(differences)
    assert windows.accumulated() == pytest.approx(accumulated)


def test_nothing_served_is_no_difference():
    windows = ServiceWindows(600 * S)
    assert set(windows.differences()) == set(windows.accumulated()) == {0.0}


def test_a_histogram_finds_quantiles_to_a_hundredth():
    random = Random(1)
    times = [round(random.lognormvariate(13, 2)) for _ in range(5_000)]
    histogram = Histogram()
    for time in times:
        histogram.add(time)
    times.sort()
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = times[int(share * len(times)) - 1] / 1e6
        assert histogram.quantile_s(share) == pytest.approx(exact, rel=0.015)
    assert histogram.mean_s == pytest.approx(sum(times) / len(times) / 1e6)
    assert histogram.quantile_s(1) <= times[-1] / 1e6
    assert Histogram().quantile_s(0.5) == Histogram().mean_s == 0
