# SPDX-License-Identifier: Apache-2.0
"""Every example runs, or is a configuration that can be served."""

import subprocess
import sys
from pathlib import Path

import pytest

from taketurns.config.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_of_a_kind_that_is_tried_here():
    files = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert {path.suffix for path in files} == {".py", ".yaml"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_configuration_can_be_loaded(path):
    text = path.read_text("utf-8")
    # Every variable that it takes from the environment without a default.
    names = {part.split("}")[0] for part in text.split("${")[1:]}
    config = load(path, env={name: "value" for name in names if ":-" not in name})
    assert config.models
    assert config.tenants


@pytest.mark.slow
def test_the_library_example_lets_the_small_tenant_go_before_the_large_ones_backlog():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "library.py"], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert sorted(line[:7] for line in lines) == sorted(
        [f"large {number}" for number in range(1, 9)] + ["small 1", "small 2"]
    )
    assert lines[0].startswith("large 8: tenant_queue_full: 6 of 6 tickets are queued")
    served = [line.removesuffix(" on gpu-0") for line in lines[1:]]
    assert served.index("small 2") < served.index("large 6")
    for tenant in ("large", "small"):
        own = [name for name in served if name.startswith(tenant)]
        assert own == sorted(own)
    assert done.stderr == ""
