# SPDX-License-Identifier: Apache-2.0
"""``taketurns serve`` as SageMaker starts it: by environment alone, and ended by SIGTERM."""

import os
import re
import signal
import subprocess
import sys

import pytest
import requests
import yaml

SAFETY_S = 60

pytestmark = pytest.mark.slow

CONFIG = {
    "tiers": {"production": {"rank": 0}},
    "models": {
        "chat": {"endpoints": ["chat"], "engines": [{"url": "http://127.0.0.1:9", "slots": 1}]}
    },
    "tenants": {"acme": {"tier": "production"}},
}


def test_serve_answers_pings_and_ends_on_sigterm(tmp_path):
    path = tmp_path / "taketurns.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    env |= {"TAKETURNS_CONFIG": str(path), "TAKETURNS_SAGEMAKER": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "taketurns", "serve", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            served = process.stdout.readline()
            port = re.search(r"on http://127\.0\.0\.1:(\d+)$", served.strip())[1]
            url = f"http://127.0.0.1:{port}"
            ping = requests.get(f"{url}/ping", timeout=SAFETY_S)
            assert (ping.status_code, ping.content) == (200, b"")
            body = {"messages": [{"role": "user", "content": "hi"}]}
            reply = requests.post(f"{url}/invocations", json=body, timeout=SAFETY_S)
            # The only tenant and the only model are meant; no engine is there.
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_capacity")
            process.send_signal(signal.SIGTERM)
            assert process.wait(SAFETY_S) == 0
        finally:
            process.kill()
