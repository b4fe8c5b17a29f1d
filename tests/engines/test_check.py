# SPDX-License-Identifier: Apache-2.0
"""Servers are asked whether they are what the configuration says."""

import asyncio
from collections.abc import Mapping

import pytest

from taketurns.engines.check import EngineCheck, Finding
from taketurns.testing.http_engine import FakeHttpEngine, Fault

PAGES = {"/health": b"", "/metrics": b"vllm:num_requests_waiting 0\n"}


def check(
    *,
    pages: Mapping[str, bytes] | None = None,
    faults: Mapping[int, Fault] | None = None,
    kind: str = "vllm",
    model: str = "fake",
    health: str | None = "/health",
    refuses: bool = False,
) -> Finding:
    """Check a server that shows these pages, with these faults."""

    async def run() -> Finding:
        async with FakeHttpEngine(faults) as engine:
            engine.pages = dict(PAGES if pages is None else pages)
            if refuses:
                await engine.refuse()
            found = await EngineCheck(
                engine.url,
                key="sk-engine",
                kind=kind,
                model=model,
                health=health,
                gauges=True,
                timeout_s=10,
            ).run()
            asked = [*engine.asked, *engine.requests]
            assert {request.method for request in asked} <= {"GET"}
            assert {r.headers["authorization"] for r in asked} <= {"Bearer sk-engine"}
            return found

    return asyncio.run(run())


def test_one_that_is_as_it_should_be_is_well() -> None:
    assert check() == Finding()


def test_one_that_is_not_there_is_told() -> None:
    found = check(refuses=True)
    assert "can't be reached" in found.problem
    assert "url" in found.hint


def test_one_that_speaks_no_http_is_told() -> None:
    garbage = {1: Fault(raw=b"SSH-2.0-x\r\n", cut_at=11)}
    found = check(faults=garbage, health=None, kind="openai")
    assert "doesn't answer" in found.problem


def test_one_that_is_not_well_is_told() -> None:
    assert check(pages={}).problem == "answers 404 to GET /health"


def test_one_whose_queue_can_not_be_read_is_told() -> None:
    found = check(pages={"/health": b"", "/metrics": b""}, kind="llamacpp")
    assert "llamacpp:requests_deferred" in found.problem
    assert found.hint == "Start it with --metrics."
    assert "vllm:num_requests_waiting" in check(pages={"/health": b""}).problem


@pytest.mark.parametrize("status", [401, 403])
def test_one_that_refuses_the_key_is_told(status: int) -> None:
    assert check(faults={1: Fault(status)}).problem == f"refuses the key ({status})"


def test_one_that_does_not_know_the_model_is_told_with_what_it_has() -> None:
    found = check(model="other")
    assert found == Finding("doesn't know the model other", "Set `model`. It has: fake.")


def test_llamacpp_serves_its_model_under_any_name() -> None:
    pages = {"/health": b"", "/metrics": b"llamacpp:requests_deferred 0\n"}
    assert check(pages=pages, kind="llamacpp", model="other") == Finding()


def test_where_models_are_not_listed_nothing_is_said_of_them() -> None:
    found = check(faults={1: Fault(404)})
    assert (found.problem, "can't be seen" in found.hint) == ("", True)
