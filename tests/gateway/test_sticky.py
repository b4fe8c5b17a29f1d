# SPDX-License-Identifier: Apache-2.0
"""Requests that may share a prefix go to the same engine; who goes next stays as it was."""

import pytest

from taketurns.gateway.affinity import PREFIX_BYTES, affinity_of

BODY = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}'


def test_a_number_belongs_to_a_tenant_and_to_a_beginning():
    hello, bye = BODY % b"hello", BODY % b"bye"
    assert affinity_of("off", "a", hello) == 0
    assert affinity_of("tenant", "a", hello) == affinity_of("tenant", "a", bye) != 0
    assert affinity_of("tenant", "a", hello) != affinity_of("tenant", "b", hello)
    assert affinity_of("prefix", "a", hello) == affinity_of("prefix", "a", hello)
    assert affinity_of("prefix", "a", hello) != affinity_of("prefix", "a", bye)
    assert affinity_of("prefix", "a", hello) != affinity_of("prefix", "b", hello)


@pytest.mark.parametrize("field", [b"messages", b"prompt", b"input"])
def test_only_the_prompts_beginning_counts(field):
    def body(model, text):
        return b'{"model":"%b","%b":"%b"}' % (model, field, text)

    long = b"x" * PREFIX_BYTES
    one = affinity_of("prefix", "a", body(b"m", long + b"one"))
    assert one == affinity_of("prefix", "a", body(b"other", long + b"two"))
    assert one != affinity_of("prefix", "a", body(b"m", b"y" + long))
    assert 1 <= one <= 2**48


def test_without_a_prompt_the_tenant_is_all_there_is():
    assert affinity_of("prefix", "a", b"{}") == affinity_of("tenant", "a", b"{}")


@pytest.mark.parametrize("sticky", ["off", "tenant", "prefix"])
def test_requests_go_where_their_beginning_went(play, chat_model, sticky):
    async def scenario(site):
        for _ in range(3):
            for name in ("first", "second", "third", "fourth"):
                assert (await site.chat(name)).status == 200
        used = [backend for backend in site.backends if backend.requests]
        where = {
            name: [backend for backend in used if any(name in r.body for r in backend.requests)]
            for name in (b"first", b"second", b"third", b"fourth")
        }
        if sticky == "tenant":
            assert len(used) == 1
        elif sticky == "prefix":
            assert {len(backends) for backends in where.values()} == {1}
        else:
            # Idle engines of equal load: always the first.
            assert len(used) == 1

    engines = [{"url": f"http://backend-{n}", "name": f"gpu-{n}", "slots": 8} for n in range(3)]
    play(scenario, backends=3, models={"chat": chat_model(engines=engines, sticky=sticky)})
