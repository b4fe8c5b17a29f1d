# SPDX-License-Identifier: Apache-2.0
"""Whose item a batch was refused for is found in few calls, and nobody else pays for it."""

import asyncio
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.core.model import Ticket
from taketurns.errors import EngineBrokenError, EngineRefusedError
from taketurns.gateway.bad_items import CALLS_MAX, BadItems, named_item, reworded


class Batch:
    """A batch of requests with some items each, at an engine that refuses some of them."""

    def __init__(self, counts, bad, *, names=False, breaks=()):
        self.requests = [
            [Ticket(f"{request}-{item}", "t", "tier") for item in range(count)]
            for request, count in enumerate(counts)
        ]
        self.bad = set(bad)
        self.names = names
        self.breaks = set(breaks)
        self.calls = []
        self.ended = {}

    def request_of(self, ticket):
        return int(ticket.id.partition("-")[0])

    def refusal(self, tickets):
        for index, ticket in enumerate(tickets):
            if self.request_of(ticket) in self.bad:
                where = f"input[{index}]" if self.names else "something"
                body = f'{{"error":{{"message":"{where} of {ticket.id} is bad"}}}}'
                return EngineRefusedError("e", 400, body.encode())
        return None

    def end(self, ticket, how):
        assert ticket.id not in self.ended, "every item ends once"
        self.ended[ticket.id] = how

    async def send(self, tickets):
        self.calls.append([ticket.id for ticket in tickets])
        if any(self.request_of(ticket) in self.breaks for ticket in tickets):
            return EngineBrokenError("e", "broken")
        error = self.refusal(tickets)
        if error is None:
            for ticket in tickets:
                self.end(ticket, "done")
        return error

    def search(self):
        tickets = [ticket for request in self.requests for ticket in request]
        search = BadItems(
            self.send,
            lambda request, error: [self.end(ticket, error) for ticket in request],
            lambda request: [self.end(ticket, "alone") for ticket in request],
            lambda ticket: f"field of {ticket.id}",
        )
        asyncio.run(search.search(tickets, self.requests, self.refusal(tickets)))
        return {
            self.request_of(ticket): self.ended[ticket.id]
            for request in self.requests
            for ticket in request
        }


@given(
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=32),
    bad=st.sets(st.integers(0, 31), min_size=1, max_size=3),
    names=st.booleans(),
)
def test_only_requests_at_fault_fail_and_each_item_ends_once(counts, bad, names):
    bad = {request % len(counts) for request in bad}
    batch = Batch(counts, bad, names=names)
    ended = batch.search()

    assert len(batch.calls) <= CALLS_MAX
    for request, how in ended.items():
        if request in bad:
            # In the engine's words about its own item; or it's still to be found, alone.
            assert how == "alone" or f"of {request}-" in how.body.decode()
        else:
            assert how in {"done", "alone"}
    if len(bad) == 1:
        assert "alone" not in ended.values()
        assert len(batch.calls) <= max(2, 2 * ceil(log2(len(counts))))


def test_a_named_item_costs_two_calls_whatever_the_batch():
    batch = Batch([2] * 32, {17}, names=True)
    ended = batch.search()

    assert [len(call) for call in batch.calls] == [62, 2]
    assert ended[17].body == b'{"error":{"message":"field of 17-0 of 17-0 is bad"}}'


def test_a_batch_of_one_request_is_not_sent_again():
    batch = Batch([3], {0}, names=True)
    ended = batch.search()

    assert batch.calls == []
    assert b"field of 0-0" in ended[0].body


def test_many_bad_ones_are_queued_to_go_alone_past_the_bound():
    batch = Batch([1] * 32, range(32))
    ended = batch.search()

    assert len(batch.calls) == CALLS_MAX
    assert "alone" in ended.values()


def test_an_engine_that_breaks_meanwhile_fails_what_was_in_that_call():
    batch = Batch([1, 1, 1, 1], {0}, breaks={2})
    ended = batch.search()

    assert ended[1] == "done"
    assert isinstance(ended[0], EngineRefusedError)
    assert all(isinstance(ended[request], EngineBrokenError) for request in (2, 3))


def test_a_cut_search_ends_what_it_had_not_sent():
    batch = Batch([1, 1, 1, 1], {0})

    async def send(tickets):
        for ticket in tickets:
            batch.end(ticket, "cut")
        raise asyncio.CancelledError

    batch.send = send
    with pytest.raises(asyncio.CancelledError):
        batch.search()
    assert len(batch.ended) == 4


@pytest.mark.parametrize(
    ("body", "index"),
    [
        (b'{"error":{"message":"input[3] has 9 tokens","param":"input[3]"}}', 3),
        (b'{"detail":[{"loc":"body.input.12","msg":"too long"}]}', 12),
        (b'{"error":"texts[0] is empty"}', 0),
        (b'{"error":"input[1] and input[2] are bad"}', None),
        (b'{"error":"the input is 3.5 times too long"}', None),
        (b'{"error":"input[12345678]"}', None),
        (b"\xff\x00", None),
    ],
)
def test_an_item_is_named_where_one_index_stands(body, index):
    assert named_item(body) == index


def test_words_about_an_item_that_was_not_in_the_call_stay_as_they_are():
    error = EngineRefusedError("e", 400, b"input[0] input[7]")

    assert reworded(error, ["texts[4]"]).body == b"texts[4] input[7]"
    broken = EngineBrokenError("e", "x")
    assert reworded(broken, ["a"]) is broken
