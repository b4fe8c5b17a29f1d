# SPDX-License-Identifier: Apache-2.0
"""A fleet on this machine: gateways and engines as processes that can be killed and started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from taketurns.testing.redis_server import free_port

SAFETY_S = 60
"""No process takes so long to end unless it hangs."""


class FleetSite:
    """Gateways with one configuration, over engines that write down what they begin.

    Every process has a name: ``gateway-0``, ``engine-0`` and so on. The gateways
    serve one model, ``chat``.

    Args:
        folder: For files and logs.
        coordinator: Its URL.
        tenants: As in the configuration, with their keys.
        gateways: How many.
        engines: How many.
        slots: Of each engine.
        sections: Further sections of the configuration.

    Attributes:
        gateways: Their names.
        engines: Their names.
        ports: Where each listens, by name; the same after a restart.
        admin_ports: Of the gateways.
    """

    def __init__(
        self,
        folder: Path,
        coordinator: str,
        tenants: Mapping[str, Any],
        *,
        gateways: int = 3,
        engines: int = 3,
        slots: int = 4,
        sections: Mapping[str, Any] | None = None,
    ) -> None:
        self.gateways = [f"gateway-{number}" for number in range(gateways)]
        self.engines = [f"engine-{number}" for number in range(engines)]
        self.ports = {name: free_port() for name in (*self.gateways, *self.engines)}
        self.admin_ports = {name: free_port() for name in self.gateways}
        self._folder = folder
        self._ran = folder / "ran"
        self._ran.touch()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        parts = [
            {"url": f"http://127.0.0.1:{self.ports[name]}", "name": name, "slots": slots}
            for name in self.engines
        ]
        config = {
            "server": {"log": "off"},
            "coordinator": coordinator,
            "tiers": {"production": {"rank": 0}},
            "models": {"chat": {"endpoints": ["chat"], "engines": parts}},
            "tenants": dict(tenants),
            **(sections or {}),
        }
        # What is JSON is YAML.
        self.config = folder / "taketurns.yaml"
        self.config.write_text(json.dumps(config))

    def __enter__(self) -> Self:
        for name in self.ports:
            self.start(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str) -> None:
        """Start a process; it serves a moment later."""
        port = str(self.ports[name])
        if name in self.admin_ports:
            admin = str(self.admin_ports[name])
            command = ["taketurns", "serve", str(self.config), "--port", port]
            command += ["--admin-port", admin]
        else:
            command = ["taketurns.testing.writing_engine", port, str(self._ran)]
        without_proxies = {key: v for key, v in os.environ.items() if "proxy" not in key.lower()}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - this package's own modules
                [sys.executable, "-m", *command], stdout=log, stderr=log, env=without_proxies
            )

    def kill(self, name: str) -> None:
        """Kill a process, as ``kill -9`` does."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(SAFETY_S)

    def stop(self, name: str) -> int:
        """Let a process end in the regular way; return its exit status."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(SAFETY_S)

    def log(self, name: str) -> str:
        """Return what a process has printed."""
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")

    def ran(self) -> list[str]:
        """Return the texts of all requests that engines have begun."""
        return self._ran.read_text().split()
