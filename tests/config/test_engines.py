# SPDX-License-Identifier: Apache-2.0
"""The settings of engines: slots that are found, kinds of servers, health, headroom."""

import pytest

from taketurns.config.engines import ServerKind
from taketurns.config.load import parse
from taketurns.engines.kinds import KINDS
from taketurns.errors import ConfigError

HEAD = "tiers: {t: {rank: 0}}\ntenants: {a: {tier: t}}\n"


def model(engine, more="", endpoints="chat"):
    text = f"models:\n  m: {{endpoints: [{endpoints}], engines: [{{{engine}}}]{more}}}\n"
    return parse(HEAD + text, "test.yaml", env={"SLOTS": "auto"}).models["m"]


def faults(engine, more="", endpoints="chat"):
    with pytest.raises(ConfigError) as caught:
        model(engine, more, endpoints)
    return [(fault.path, fault.problem) for fault in caught.value.faults]


URL = 'url: "http://h:1"'


@pytest.mark.parametrize(
    ("written", "slots"), [("auto", "auto"), ("0", 0), ("12", 12), ("'${SLOTS}'", "auto")]
)
def test_slots_are_a_number_or_found(written, slots):
    assert model(f"{URL}, slots: {written}").engines[0].slots == slots


def test_every_kind_that_can_be_written_is_known():
    assert set(ServerKind.__args__) == set(KINDS)
    assert model(f"{URL}, kind: sglang, priority: true").engines[0].kind == "sglang"


@pytest.mark.parametrize(
    ("engine", "more", "path", "problem"),
    [
        (f"{URL}, slots: many", "", "engines[0].slots", "must be a whole number or auto"),
        (f"{URL}, slots: 10001", "", "engines[0].slots", "must be auto or 0 to 10,000"),
        (
            f"{URL}, slots_min: 9, slots_max: 8",
            "",
            "engines[0].slots_max",
            "must be at least slots_min",
        ),
        (f"{URL}, priority: true", "", "engines[0].priority", "is for engines of kind vllm or"),
        (URL, ", headroom: 91%", "headroom", "must be 0% to 90%"),
        (
            URL,
            ", scheduler: shared_queue, headroom: 5%",
            "headroom",
            "needs the round robin, and this model has a shared queue",
        ),
        (URL, ", health: {interval: 2h}", "health.interval", "must be 0s to 1h"),
    ],
)
def test_what_cannot_be_meant_is_a_fault(engine, more, path, problem):
    ((found, said),) = faults(engine, more)
    assert found == f"models.m.{path}"
    assert said.startswith(problem)


@pytest.mark.parametrize("more", [", headroom: 5%", ", sticky: tenant"])
def test_what_is_for_generation_is_refused_for_embeddings(more):
    ((_, said),) = faults(URL, more, endpoints="embeddings")
    assert said.startswith("means nothing here: it is for chat and completions only")
