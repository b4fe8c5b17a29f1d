# SPDX-License-Identifier: Apache-2.0
"""``taketurns serve`` as a process of its own, started and stopped by a test."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

SAFETY_S = 180
"""Nothing takes so long unless it hangs."""

COMMAND = [sys.executable, "-W", "error", "-m", "taketurns", "serve"]
NO_PORTS = ["--port", "0", "--admin-port", "0"]


def environment(**more):
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return env | {"PYTHONUNBUFFERED": "1"} | more


class Process:
    """The command, and what it printed."""

    def __init__(self, args, directory):
        self.process = subprocess.Popen(
            [*COMMAND, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            env=environment(),
        )
        self.lines = []
        self._errors = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(("Stop with", "metrics and health")) and self._greeted():
                break
        else:
            self.process.wait(SAFETY_S)
            self._reader.join(SAFETY_S)
            pytest.fail(f"it did not start: {self.errors}")
        text = "\n".join(self.lines)
        self.url = re.search(r"^taketurns serves .* on (http://\S+)$", text, re.MULTILINE)[1]
        self.admin_url = re.search(r"^metrics and health on (http://\S+)$", text, re.MULTILINE)[1]
        self.keys = dict(re.findall(r"^  (\w+) +(sk-tt-\S+)$", text, re.MULTILINE))

    def _greeted(self):
        return self.lines[-1].startswith("Stop with") or "--quickstart" not in self.process.args

    def _read_errors(self):
        self._errors.extend(self.process.stderr)

    @property
    def errors(self):
        return "".join(self._errors)

    def curls(self):
        """Return the commands that it printed, each as one text for a shell."""
        text = "\n".join(self.lines)
        return [
            "curl" + found for found in re.findall(r"^  curl((?:.*\\\n)*.*)$", text, re.MULTILINE)
        ]

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        status = self.process.wait(SAFETY_S)
        self._reader.join(SAFETY_S)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        return status, rest

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.wait()
