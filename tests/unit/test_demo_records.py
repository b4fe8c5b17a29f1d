# SPDX-License-Identifier: Apache-2.0
"""What the demo reads off the gateway's log: backlogs, shares of service, the pace of batches."""

import io
import json

import pytest

from taketurns.demo.children import DemoError
from taketurns.demo.load import Flood, answer_status, request_bytes, texts
from taketurns.demo.records import (
    BatchCount,
    Served,
    backlogged,
    both,
    jain,
    pace,
    read_log,
    shares,
)


def served(tenant, arrived_s, wait_s, cost=10):
    return Served(tenant, arrived_s, wait_s, wait_s + 0.1, cost)


def test_a_backlog_lasts_from_an_arrival_to_the_last_dispatch_of_those_that_overlap():
    requests = [served("a", 0, 2), served("a", 1, 3), served("a", 10, 1), served("a", 11, 0.5)]
    assert backlogged(requests) == [(0, 4), (10, 11.5)]
    assert backlogged([]) == []


def test_only_time_in_both_backlogs_counts_for_both():
    assert both([(0, 4), (10, 12)], [(3, 11)]) == [(3, 4), (10, 11)]
    assert both([(0, 1)], [(1, 2)]) == []


def test_shares_count_what_was_dispatched_while_both_waited():
    requests = [
        served("a", 0, 1, cost=100),
        served("a", 0, 5, cost=30),
        served("b", 4, 1, cost=10),
        served("a", 0, 9, cost=100),
    ]
    spans = both(backlogged([requests[2]]), backlogged([r for r in requests if r.tenant == "a"]))
    got = shares(requests, ("a", "b"), spans, batch_s=1)
    assert got == {"a": 0.75, "b": 0.25}
    assert jain(got) == pytest.approx(0.8)


def test_requests_of_the_batch_that_ends_a_span_count_and_those_of_the_next_do_not():
    requests = [served("b", 0, 1), served("a", 0, 1.4), served("a", 0, 2)]
    assert shares(requests, ("a", "b"), [(0, 1)], batch_s=1) == {"a": 0.5, "b": 0.5}


def test_where_nothing_was_dispatched_nobody_has_a_share():
    assert shares([], ("a", "b"), [], batch_s=1) == {"a": 0.0, "b": 0.0}


def test_the_pace_is_the_time_between_two_counts_over_the_batches_between_them():
    found = pace(BatchCount(10.0, 100, 700), BatchCount(12.0, 140, 1_020))
    assert (found.batch_s, found.items, found.texts_per_s) == (0.05, 8, 160)


def _line(**changes):
    return json.dumps(
        {
            "time": "2026-01-01T00:00:01.500+00:00",
            "tenant": "a",
            "outcome": "completed",
            "status": 200,
            "code": "",
            "wait_s": 0.25,
            "total_s": 0.5,
            "cost": 9,
            **changes,
        }
    )


def test_the_log_is_read_in_the_order_of_arrival(tmp_path):
    path = tmp_path / "log"
    path.write_text(f"{_line()}\n{_line(time='2026-01-01T00:00:00.000+00:00', tenant='b')}\n")
    first, second = read_log(path)
    assert (first.tenant, second.tenant) == ("b", "a")
    assert second.dispatched_s - first.arrived_s == pytest.approx(1.75)


def test_a_request_without_an_answer_ends_the_demo(tmp_path):
    path = tmp_path / "log"
    path.write_text(_line(outcome="refused", status=429, code="queue_full") + "\n")
    with pytest.raises(DemoError, match="'a' was not answered: refused 429 queue_full"):
        read_log(path)


def test_texts_are_short_all_different_and_the_same_for_the_same_seed():
    made = texts(3, 2_000)
    assert len(set(made)) == 2_000
    assert {len(text.split()) for text in made} == {6, 7, 8}
    assert made[:100] == texts(3, 100)
    assert made[:100] != texts(4, 100)


def test_an_answer_has_a_status_once_its_last_byte_is_there():
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\nhello"
    assert {answer_status(answer[:end]) for end in range(len(answer))} == {None}
    assert answer_status(answer) == 200
    assert answer_status(b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n") == 429


def test_a_request_tells_the_length_of_its_body():
    sent = request_bytes(Flood("127.0.0.1", 80, "key", 1, 1, 1), "fair sh\u00e4re")
    head, _, body = sent.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.load(io.BytesIO(body))["input"] == "fair sh\u00e4re"
