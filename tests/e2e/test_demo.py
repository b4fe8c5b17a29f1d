# SPDX-License-Identifier: Apache-2.0
"""The demo as a person runs it, small: real sockets, real model, real clients."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taketurns.engines.weights import missing

pytest.importorskip("openai")
pytest.importorskip("matplotlib")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.embedded,
    pytest.mark.skipif(
        any("MiniLM" in weights.what for weights in missing()), reason="the model isn't installed"
    ),
]

PROC = Path("/proc")
COMMAND = [sys.executable, "-m", "taketurns", "demo", "--small"]


def test_the_small_demo_answers_every_request_and_reports(tmp_path):
    done = subprocess.run(
        [*COMMAND, "--json", "--record", "results/demo.json", "--seed", "5"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told == json.loads((tmp_path / "results" / "demo.json").read_text())
    assert set(told) == {"figures", "machine", "commit", "seed", "peers"}
    assert told["seed"] == 5
    keys = {"name", "value", "unit", "target", "reached", "n", "spread", "note"}
    assert all(set(figure) == keys for figure in told["figures"])
    by_name = {figure["name"]: figure for figure in told["figures"]}
    assert len(by_name) == len(told["figures"])
    with_target = {name for name, figure in by_name.items() if figure["target"]}
    assert with_target == {"b_latency_median", "b_latency_worst"}
    assert all(by_name[name]["reached"] in (True, False) for name in with_target)
    # The demo fails unless every request was answered; the notes count those of the log.
    assert "600 requests" in by_name["a_wait_median"]["note"]
    assert "15 requests" in by_name["shared_queue_b_wait_worst"]["note"]
    assert 0 <= by_name["strict_trial_share"]["value"] <= 100
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.png", "results"]


@pytest.mark.skipif(not PROC.is_dir(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_and_leaves_nothing(tmp_path, number):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    demo = subprocess.Popen(
        COMMAND, cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE
    )
    try:
        # Once the gateway's log is there it serves, or is about to.
        while demo.poll() is None and not list(temporary.glob("*/log.jsonl")):
            time.sleep(0.05)
        children = _children(demo.pid)
        demo.send_signal(number)
        demo.communicate()
    finally:
        demo.kill()
    assert children
    assert not [pid for pid in children if (PROC / pid).is_dir()]
    assert demo.returncode != 0
    assert list(temporary.glob("taketurns-demo-*")) == []


def _children(pid):
    return (PROC / f"{pid}/task/{pid}/children").read_text().split()
