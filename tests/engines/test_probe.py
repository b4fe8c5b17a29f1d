# SPDX-License-Identifier: Apache-2.0
"""Servers are asked how they fare: in time, within bounds, and by the right gauge."""

import asyncio

import pytest

from taketurns.engines.kinds import KINDS
from taketurns.engines.probe import METRICS_BYTES_MAX, EngineProbe, read_gauge
from taketurns.testing.http_engine import FakeHttpEngine, Fault

VLLM = b"""\
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 70.0
vllm:num_requests_waiting{engine="0",model_name="a}\\"b"} 3.0
vllm:num_requests_waiting{engine="1",model_name="a}\\"b"} 4.0
vllm:num_requests_running{engine="0",model_name="m"} 9.0
"""
SGLANG = b'sglang:num_running_reqs{model_name="m"} 2.0\nsglang:num_queue_reqs{model_name="m"} 5.0\n'
LLAMACPP = b"llamacpp:requests_processing 4\nllamacpp:requests_deferred 2\n"
TEI = b"te_queue_size 6\n"


@pytest.mark.parametrize(
    ("kind", "page", "waiting"),
    [("vllm", VLLM, 7), ("sglang", SGLANG, 5), ("llamacpp", LLAMACPP, 2), ("tei", TEI, 6)],
)
def test_the_gauge_of_each_kind_is_read(kind, page, waiting):
    assert read_gauge(page, KINDS[kind].waiting) == waiting


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"vllm:num_requests_waiting_by_reason 3\n",
        b"vllm:num_requests_waiting NaN\n",
        b"vllm:num_requests_waiting +Inf\n",
        b"vllm:num_requests_waiting three\n",
        b"# vllm:num_requests_waiting 3\n",
        b"my_vllm:num_requests_waiting 3\n",
    ],
)
def test_what_is_no_such_gauge_says_nothing(page):
    assert read_gauge(page, KINDS["vllm"].waiting) is None


def test_a_negative_gauge_counts_as_none_waiting():
    assert read_gauge(b"te_queue_size -1\n", KINDS["tei"].waiting) == 0


def ask(scenario):
    async def play():
        async with FakeHttpEngine() as engine:
            probe = EngineProbe("a", engine.url, key="secret", timeout_s=0.3)
            await scenario(engine, probe)
            await probe.aclose()

    asyncio.run(play())


def test_a_server_is_asked_with_its_key():
    async def scenario(engine, probe):
        engine.pages = {"/health": b"", "/metrics": VLLM}
        assert await probe.well("/health")
        assert await probe.waiting("/metrics", KINDS["vllm"].waiting) == 7
        assert {request.headers["authorization"] for request in engine.asked} == {"Bearer secret"}
        assert len(engine.connected) == 1

    ask(scenario)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500),
        Fault(status=404),
        Fault(reset_at=0),
        Fault(cut_at=20),
        Fault(stall_at=0),
        Fault(raw=b"garbage\r\n\r\n"),
    ],
)
def test_whatever_goes_wrong_is_a_server_that_is_not_well(fault):
    async def scenario(engine, probe):
        engine.faults = {1: fault, 2: fault}
        assert not await probe.well("/health")
        assert await probe.waiting("/metrics", ["any"]) is None

    ask(scenario)


def test_one_that_is_not_there_is_not_well():
    async def scenario(engine, probe):
        await engine.refuse()
        assert not await probe.well("/health")

    ask(scenario)


def test_a_page_without_end_tells_nothing():
    async def scenario(engine, probe):
        engine.pages = {"/metrics": b"te_queue_size 6\n" + b"#" * METRICS_BYTES_MAX}
        assert await probe.waiting("/metrics", ["te_queue_size"]) is None

    ask(scenario)
