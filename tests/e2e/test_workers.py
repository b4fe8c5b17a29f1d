# SPDX-License-Identifier: Apache-2.0
"""``taketurns serve --workers``: processes on one port that share limits and outlive each other."""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from e2e.process import COMMAND, SAFETY_S, environment

from taketurns.gateway.auth import mint
from taketurns.testing.redis_server import RedisServer

pytestmark = pytest.mark.slow

WORKERS = 2
LINE = re.compile(r"worker (\d+), process (\d+): (http://\S+), metrics and health on (http://\S+)")


class Fleet:
    """The command with its workers, as they say that they serve."""

    def __init__(self, config, directory, *options):
        self.process = subprocess.Popen(
            [*COMMAND, str(config), "--workers", str(WORKERS), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=environment(),
        )
        self.workers = []
        self.errors = []
        self._ended = False
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._read_lines),
            threading.Thread(target=self._read_errors),
        ]
        for thread in self._threads:
            thread.start()

    def _read_lines(self):
        for line in self.process.stdout:
            if found := LINE.match(line):
                with self._changed:
                    self.workers.append((int(found[1]), int(found[2]), found[3], found[4]))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_errors(self):
        for line in self.process.stderr:
            with self._changed:
                self.errors.append(line)
                self._changed.notify_all()

    def until(self, condition):
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._ended, SAFETY_S)
            assert condition(), "".join(self.errors)

    def wait(self):
        code = self.process.wait(SAFETY_S)
        for thread in self._threads:
            thread.join(SAFETY_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@pytest.fixture
def redis():
    with RedisServer() as server:
        yield server


@pytest.fixture
def config(tmp_path, redis):
    minted = mint()
    data = {
        "server": {"port": 0, "admin_port": 0, "log": "off", "drain": 5},
        "coordinator": redis.url,
        "tiers": {"production": {"rank": 0}},
        "models": {"chat": {"endpoints": ["chat"], "engines": [{"url": "http://127.0.0.1:1"}]}},
        "tenants": {"acme": {"tier": "production", "keys": [minted.line]}},
    }
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(data))
    return path, minted.key, data


@pytest.fixture
def start(tmp_path):
    started = []

    def start(path, *options):
        fleet = Fleet(path, tmp_path, *options)
        started.append(fleet)
        return fleet

    yield start
    for fleet in started:
        if fleet.process.poll() is None:
            fleet.process.kill()
            fleet.wait()


def get(url, key=None):
    """Return status and body, over a connection of its own."""
    request = urllib.request.Request(url, headers={"Connection": "close"})
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=SAFETY_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/stat").open() as stat:
        return stat.read().split(")")[1].split()[0] == "Z"
    return False


def test_workers_share_a_port_are_started_anew_and_drain(config, start):
    path, key, data = config
    fleet = start(path)
    fleet.until(lambda: len(fleet.workers) == WORKERS)
    assert {number for number, *_ in fleet.workers} == {1, 2}
    (url,) = {url for _, _, url, _ in fleet.workers}
    admins = [admin for *_, admin in fleet.workers]
    assert len(set(admins)) == WORKERS

    def served(admin):
        text = get(f"{admin}/metrics")[1].decode()
        return "taketurns_requests_total{" in text

    asked = 0
    while not all(served(admin) for admin in admins):
        assert get(f"{url}/v1/models", key)[0] == 200
        asked += 1
        assert asked < 1000, "one worker gets nothing"

    # One is killed: the other serves, and a new one takes its place.
    _, pid, _, _ = fleet.workers[0]
    os.kill(pid, signal.SIGKILL)
    fleet.until(lambda: len(fleet.workers) == WORKERS + 1)
    assert any("signal 9" in line for line in fleet.errors)
    assert get(f"{url}/v1/models", key)[0] == 200

    # A reload reaches all of them.
    data["tenants"]["globex"] = {"tier": "production"}
    path.write_text(yaml.safe_dump(data))
    fleet.process.send_signal(signal.SIGHUP)
    fleet.until(lambda: sum("reloaded" in line for line in fleet.errors) == WORKERS)

    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait() == 0
    assert all(gone(pid) for _, pid, _, _ in fleet.workers)
    assert "Traceback" not in "".join(fleet.errors)


def test_workers_stop_when_their_supervisor_is_killed(config, start):
    path, _, _ = config
    fleet = start(path)
    fleet.until(lambda: len(fleet.workers) == WORKERS)
    fleet.process.kill()
    fleet.wait()
    for _, pid, _, _ in fleet.workers:
        while not gone(pid):
            time.sleep(0.02)


def test_a_configuration_that_no_worker_can_use_ends_them_all(config, start):
    path, _, data = config
    data["coordinator"] = "redis://127.0.0.1:1/0?nothing=1"
    path.write_text(yaml.safe_dump(data))
    fleet = start(path)
    assert fleet.wait() == 2
    assert any("no setting 'nothing'" in line for line in fleet.errors)


def test_without_a_coordinator_they_are_refused(config, tmp_path):
    path, _, data = config
    data["coordinator"] = "local"
    path.write_text(yaml.safe_dump(data))
    done = subprocess.run(
        [*COMMAND, str(path), "--workers", "2"],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=SAFETY_S,
        check=False,
    )
    assert done.returncode == 2
    assert "coordinator:" in done.stderr
    assert json.dumps(done.stdout) == '""'
