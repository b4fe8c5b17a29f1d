# SPDX-License-Identifier: Apache-2.0
"""Workloads and traces give the requests that their files ask for, the same for the same seed."""

import gzip
import json
import statistics
from itertools import pairwise
from random import Random

import pytest

from taketurns.errors import ConfigError
from taketurns.sim.closed_loops import read_loop
from taketurns.sim.engines.slots import SlotsEngine, SlotsProfile
from taketurns.sim.reading import Section
from taketurns.sim.schedulers.fcfs import FirstCome
from taketurns.sim.schedulers.rpm import PerMinute
from taketurns.sim.traces import read_trace
from taketurns.sim.workloads import merged, read_traffic


def made(seed="0", duration=1_000, name="acme", **value):
    traffic = read_traffic(name, Section({"input": 10, "output": 5} | value))
    return list(merged(traffic, seed, duration))


def gaps(requests):
    times = [one.arrived_us / 1e6 for one in requests]
    return [later - sooner for sooner, later in pairwise(times)]


def test_the_same_seed_gives_the_same_requests_and_another_one_others():
    def facts(seed):
        found = made(seed, 50, rate=2, input=[1, 100])
        return [(one.id, one.arrived_us, one.input_tokens) for one in found]

    assert facts("1") == facts("1") != facts("2")


def test_one_tenant_more_changes_nothing_for_the_others():
    one = read_traffic("a", Section({"rate": 1, "input": [1, 9], "output": 1}))
    two = read_traffic("b", Section({"rate": 3, "input": [1, 9], "output": 1}))
    alone = [r.arrived_us for r in merged(one, "7", 100)]
    beside = [r.arrived_us for r in merged([*one, *two], "7", 100) if r.tenant == "a"]
    assert alone == beside


def test_poisson_arrivals_have_the_rate_and_the_spread_of_poisson():
    found = gaps(made(rate=5))
    assert statistics.mean(found) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(found) == pytest.approx(0.2, rel=0.07)


def test_gamma_arrivals_are_as_bursty_as_asked():
    found = gaps(made(rate=5, arrivals="gamma", cv=3))
    assert statistics.mean(found) == pytest.approx(0.2, rel=0.15)
    assert statistics.stdev(found) / statistics.mean(found) == pytest.approx(3, rel=0.15)


def test_even_arrivals_are_even():
    assert gaps(made(rate=4, arrivals="even")) == pytest.approx([0.25] * 3_999, abs=2e-6)


def test_arrivals_keep_to_their_minutes_and_hours():
    found = made(rate=5, active=60, silent=40, start=100, stop=900)
    assert all(one.arrived_us % 100_000_000 < 60_000_000 for one in found)
    assert found[0].arrived_us >= 100e6
    assert found[-1].arrived_us < 900e6


def test_a_wave_has_its_trough_at_the_start_of_each_period():
    found = made(rate=20, period=500, depth=1)
    near, far = (
        sum(abs((one.arrived_us / 1e6 - centre + 250) % 500 - 250) < 50 for one in found)
        for centre in (0, 250)
    )
    assert near < far / 5


def test_a_burst_comes_all_at_once():
    found = made(burst={"at": 3, "requests": 50})
    assert [one.arrived_us for one in found] == [3_000_000] * 50


def test_a_population_is_dealt_by_zipfs_law():
    found = made(rate=20, population=100, exponent=1.0)
    counts = {}
    for one in found:
        counts[one.tenant] = counts.get(one.tenant, 0) + 1
    assert counts["acme-0"] / len(found) == pytest.approx(1 / 5.187, rel=0.1)
    assert counts["acme-0"] / counts["acme-9"] == pytest.approx(10, rel=0.35)


def test_lengths_are_as_asked():
    found = made(rate=5, input=[3, 7], output={"median": 100, "sigma": 1, "most": 900})
    assert {one.input_tokens for one in found} == {3, 4, 5, 6, 7}
    outputs = [one.output_tokens for one in found]
    assert statistics.median(outputs) == pytest.approx(100, rel=0.1)
    assert max(outputs) == 900


def test_facts_go_with_every_request():
    found = made(rate=1, count=2, tier="gold", priority=3, deadline=2.5, weight=4)
    assert {one.tenant for one in found} == {"acme-1", "acme-2"}
    one = found[0]
    assert (one.tier, one.priority, one.deadline_us) == ("gold", 3, one.arrived_us + 2_500_000)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "rate: is missing"),
        ({"rate": 1, "arrivals": "poison"}, "Did you mean 'poisson'"),
        ({"rate": 1, "input": [5, 2]}, "must be .least, most."),
        ({"rate": 1, "input": 0}, "must be at least 1"),
        ({"rate": 1, "priority": 1_000}, "must be 0 to 999"),
        ({"rate": True}, "must be a number"),
        ({"rate": 1, "wieght": 3}, "Did you mean 'weight'"),
    ],
)
def test_traffic_that_makes_no_sense_is_a_fault_of_the_file(value, words):
    with pytest.raises(ConfigError, match=words):
        made(**value)


def test_a_client_in_a_loop_waits_for_its_answer_and_thinks(play):
    value = {"threads": 1, "calls": 3, "think": 2, "input": 1, "output": 1}
    clients = read_loop("acme", Section(value)).clients("0")

    def engine(place):
        return SlotsEngine(SlotsProfile(1, 0, 0, 500_000), place)

    watched = play(lambda _: FirstCome(), [], profile=engine, model=None, clients=clients)
    assert [one.arrived_us / 1e6 for one in watched.all] == [2, 4.5, 7]


def test_a_client_that_is_refused_thinks_again(play):
    value = {"threads": 1, "calls": 3, "think": 2, "input": 1, "output": 1}
    clients = read_loop("acme", Section(value)).clients("0")
    watched = play(lambda _: PerMinute(1), [], clients=clients)
    assert (len(watched.done), len(watched.refusals)) == (1, 2)


# Traces


def trace(folder, text, kind, *, packed=False, **value):
    file = folder / ("trace.gz" if packed else "trace")
    if packed:
        file.write_bytes(gzip.compress(text.encode()))
    else:
        file.write_text(text)
    section = Section({"file": file.name, "format": kind} | value)
    return [
        (one.arrived_us / 1e6, one.tenant, one.input_tokens, one.output_tokens)
        for one in read_trace(section, folder)(Random("0"))
    ]


def log_line(second, tenant="acme", **fields):
    time = f"2026-05-01T10:00:{second:06.3f}Z"
    return json.dumps({"time": time, "tenant": tenant, "outcome": "completed"} | fields) + "\n"


def test_formats_of_others_are_read(tmp_path):
    assert trace(tmp_path, "arrival_s,client,prompt_tokens,output_tokens\n1.5,a,3,4\n", "vtc") == [
        (1.5, "a", 3, 4)
    ]
    azure = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    found = trace(tmp_path, azure, "azure-2023", packed=True, assign={"tenants": 1})
    assert found[0] == (0, "tenant-0", 374, 44)
    assert found[1][0] == pytest.approx(4.314579)
    mooncake = '{"timestamp": 2500, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n'
    found = trace(tmp_path, mooncake, "mooncake", tokens_most=1_000, speed=2)
    assert (found[0][0], *found[0][2:]) == (1.25, 1_000, 500)
    burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,7,8,15,x\n"
    assert trace(tmp_path, burst, "burst-gpt")[0][2:] == (7, 8)


def test_the_gateways_own_log_is_read_in_the_order_of_arrival(tmp_path):
    # Lines are written when requests end.
    text = (
        log_line(5, input_tokens=50, output_tokens=5)
        + log_line(2, "globex", input_tokens=20, output_tokens=2)
        + log_line(3, "", outcome="invalid")
        + log_line(9, input_tokens=90, output_tokens=9)
    )
    assert trace(tmp_path, text, "request-log") == [
        (0, "globex", 20, 2),
        (3, "acme", 50, 5),
        (7, "acme", 90, 9),
    ]


def test_tenants_are_dealt_the_same_way_for_the_same_seed(tmp_path):
    text = "".join(
        json.dumps({"timestamp": n, "input_length": 1, "output_length": 1}) + "\n"
        for n in range(400)
    )
    first = trace(tmp_path, text, "mooncake", assign={"tenants": 4, "exponent": 1})
    assert first == trace(tmp_path, text, "mooncake", assign={"tenants": 4, "exponent": 1})
    assert {row[1] for row in first} == {f"tenant-{n}" for n in range(4)}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("arrival_s,client\n1,a\n", "vtc", "row 1: is not of this format"),
        ("not json\n", "mooncake", "row 1"),
        ("", "vtx", "Did you mean 'vtc'"),
    ],
)
def test_a_trace_that_cannot_be_read_says_where(tmp_path, text, kind, words):
    with pytest.raises(ConfigError, match=words):
        trace(tmp_path, text, kind)


def test_a_trace_that_is_not_there_is_a_fault(tmp_path):
    section = Section({"file": "nowhere.csv", "format": "vtc"})
    with pytest.raises(ConfigError, match=r"nowhere\.csv"):
        list(read_trace(section, tmp_path)(Random(0)))


def servegen(folder, **value):
    client = {
        "client": 7,
        "rate_rps": [0.0, 2.0, 0.5],
        "cv_max": [0.0, 2.0, 1.0],
        "q": [0.01, 0.5, 0.99],
        "input_q": [10, 100, 1000],
        "output_q": [5, 50, 500],
    }
    (folder / "clients").write_text(json.dumps(client) + "\n")
    section = Section({"file": "clients", "format": "servegen"} | value)
    return list(read_trace(section, folder)(Random("1")))


def test_servegens_clients_send_at_the_rates_of_their_hours(tmp_path):
    found = servegen(tmp_path)
    by_hour = [sum(one.arrived_us // 3_600_000_000 == hour for one in found) for hour in range(3)]
    assert by_hour[0] == 0
    assert by_hour[1] == pytest.approx(7_200, rel=0.1)
    assert by_hour[2] == pytest.approx(1_800, rel=0.1)
    assert statistics.median(one.input_tokens for one in found) == pytest.approx(100, rel=0.1)
    assert {one.tenant for one in found} == {"client-7"}
    burst = gaps([one for one in found if one.arrived_us < 7_200e6])
    assert statistics.stdev(burst) / statistics.mean(burst) == pytest.approx(2, rel=0.15)


def test_servegens_clients_can_begin_at_an_hour_faster_and_shorter(tmp_path):
    found = servegen(tmp_path, hour=1, scale=0.5, tokens_most=60)
    assert found[0].arrived_us < 60e6
    assert len(found) == pytest.approx(4_500, rel=0.1)
    assert max(one.input_tokens for one in found) == 60


def test_a_file_that_describes_no_clients_is_a_fault(tmp_path):
    with pytest.raises(ConfigError, match="is not of this format"):
        trace(tmp_path, "{}\n", "servegen")
