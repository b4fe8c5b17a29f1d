# SPDX-License-Identifier: Apache-2.0
"""Starts the proxies that are compared, each on one core, and reads what they use."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from taketurns.gateway.auth import mint

HERE = Path(__file__).parent
START_S = 90.0

GATEWAY = """
server: {{port: {port}, admin_port: 0, log: "{folder}/requests.log"}}
store: "sqlite://{folder}/taketurns.db"
tiers:
  production: {{rank: 0, wait_target: 5s}}
  trial: {{rank: 1, wait_target: 10s, floor: 5%}}
models:
  chat: {{endpoints: [chat], cost: {cost}, engines: [{{url: "{engine}", slots: 2000}}]}}
tenants: {tenants}
limits:
  - {{unit: requests, per: minute, max: 100M}}
  - {{unit: tokens, per: minute, max: 900M}}
  - {{unit: requests, per: month, max: 900M}}
"""

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  upstream engine {{ server {address}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""

LITELLM = """
model_list:
  - model_name: chat
    litellm_params: {{model: openai/chat, api_base: "{engine}/v1", api_key: none}}
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a proxy is to run.

    Attributes:
        engine: URL of the engine.
        port: Where it's to listen.
        folder: For its files.
        core: Which it's pinned to.
    """

    engine: str
    port: int
    folder: Path
    core: int


@dataclass(slots=True)
class Proxy:
    """A proxy that runs.

    Attributes:
        port: Where it listens.
        keys: API keys to send.
    """

    port: int
    process: "subprocess.Popen[bytes]"
    keys: list[str] = field(default_factory=lambda: ["sk-any"])

    def _processes(self) -> list[int]:
        found, seen = [self.process.pid], 0
        while seen < len(found):
            for task in Path(f"/proc/{found[seen]}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
            seen += 1
        return found

    def cpu_us(self) -> float:
        """Return the CPU time that all its threads have used."""
        return sum(
            int((task / "schedstat").read_text().split()[0]) / 1e3
            for pid in self._processes()
            for task in Path(f"/proc/{pid}/task").iterdir()
        )

    def memory_mb(self) -> float:
        """Return the memory that its processes hold, each page once."""
        kilobytes = 0
        for pid in self._processes():
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kilobytes += int(line.split()[1])
        return kilobytes / 1024

    def stop(self) -> None:
        """End it, with what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def launch(
    command: Sequence[str], place: Place, environment: dict[str, str] | None = None
) -> Proxy:
    """Start a proxy, and wait until it listens.

    Raises:
        RuntimeError: It doesn't.
    """
    with (place.folder / "output").open("wb") as output:
        process = subprocess.Popen(
            ["taskset", "-c", str(place.core), *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    proxy = Proxy(place.port, process)
    end_s = time.perf_counter() + START_S
    while time.perf_counter() < end_s and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", place.port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return proxy
    proxy.stop()
    raise RuntimeError(
        f"{command[0]} did not start: {(place.folder / 'output').read_text()[-500:]}"
    )


def taketurns(place: Place, cost: str) -> Proxy:
    """Start the gateway with all that it does for each request."""
    keys = [mint() for _ in range(4)]
    tenants = ", ".join(
        f'tenant-{number}: {{tier: {tier}, weight: {number + 1}, keys: ["{key.line}"]}}'
        for number, (key, tier) in enumerate(
            zip(keys, ("production", "production", "trial", "trial"), strict=True)
        )
    )
    text = GATEWAY.format(
        port=place.port,
        folder=place.folder,
        engine=place.engine,
        cost=cost,
        tenants=f"{{{tenants}}}",
    )
    config = place.folder / "taketurns.yaml"
    config.write_text(text)
    proxy = launch([sys.executable, "-m", "taketurns", "serve", str(config)], place)
    proxy.keys = [key.key for key in keys]
    return proxy


def nginx(place: Place) -> Proxy:
    """Start nginx: the least that a proxy costs."""
    config = place.folder / "nginx.conf"
    address = place.engine.removeprefix("http://")
    config.write_text(NGINX.format(port=place.port, folder=place.folder, address=address))
    return launch(
        [_nginx_binary(), "-c", str(config), "-e", str(place.folder / "error.log")], place
    )


def fastapi_httpx(place: Place, binaries: Path) -> Proxy:
    """Start what most would write."""
    command = [str(binaries / "uvicorn"), "fastapi_httpx:app", "--app-dir", str(HERE / "peers")]
    command += ["--port", str(place.port), "--no-access-log", "--log-level", "warning"]
    return launch(command, place, {"ENGINE": place.engine})


def vllm_router(place: Place, binaries: Path) -> Proxy:
    """Start the router of vLLM, in Rust."""
    command = [str(binaries / "vllm-router"), "--worker-urls", place.engine]
    command += ["--port", str(place.port), "--host", "127.0.0.1", "--policy", "round_robin"]
    command += ["--prometheus-port", str(free_port()), "--log-level", "error"]
    command += ["--max-concurrent-requests", "10000"]
    return launch(command, place)


def litellm(place: Place, binaries: Path) -> Proxy:
    """Start LiteLLM's proxy."""
    config = place.folder / "litellm.yaml"
    config.write_text(LITELLM.format(engine=place.engine))
    command = [str(binaries / "litellm"), "--config", str(config)]
    command += ["--port", str(place.port), "--host", "127.0.0.1", "--num_workers", "1"]
    key = f"sk-{secrets.token_hex(32)}"
    settings = {"LITELLM_LOG": "ERROR", "NO_DOCS": "True", "LITELLM_MASTER_KEY": key}
    proxy = launch(command, place, settings)
    proxy.keys = [key]
    return proxy


def _nginx_binary() -> str:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""


def available(binaries: Path | None) -> dict[str, str]:
    """Return the version of each peer that is installed here."""
    found = {}
    if path := _nginx_binary():
        said = subprocess.run([path, "-v"], capture_output=True, text=True, check=True).stderr
        found["nginx"] = said.strip().rpartition("/")[2]
    if binaries is not None:
        for name in ("vllm-router", "fastapi", "litellm"):
            program = "uvicorn" if name == "fastapi" else name
            if (binaries / program).exists():
                code = f"import importlib.metadata as m; print(m.version({name!r}))"
                said = subprocess.run(
                    [binaries / "python", "-c", code], capture_output=True, text=True, check=False
                ).stdout
                if said:
                    found[name] = said.strip()
    found["taketurns"] = version("taketurns")
    return found
