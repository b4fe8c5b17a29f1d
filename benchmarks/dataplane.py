# SPDX-License-Identifier: Apache-2.0
"""How fast requests and streams pass through the gateway, beside other proxies in the same run.

The gateway runs with all it has: keys, three limits, throttle, two tiers of two
tenants, metering, log, metrics. Each proxy has one core; load and mock engine
share the other one. nginx is the limit of what a proxy can do. Peers other than
nginx are looked for in a virtual environment that is named by --peers:

    python3 -m venv peers
    peers/bin/pip install 'litellm[proxy]' vllm-router fastapi httpx uvicorn uvloop httptools
    python benchmarks/dataplane.py --peers peers/bin [--json] [--rounds N] [--record PATH]

Needs nginx and wrk.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import proxies
import uvloop
from harness import deliver, measured, options_for
from loopback import Streams, open_loop, request
from proxies import Place, Proxy

from taketurns.figures import Figure, median

CONNECTIONS = 64
STREAMS = 1_000
OPEN_PER_S = 2_000
SLOW_MS, FAST_MS = 100, 20

WRK_SCRIPT = """
local requests = {{ {requests} }}
local number = 0
function request()
  number = number % #requests + 1
  return requests[number]
end
"""

Values = dict[str, dict[str, list[float]]]


class Bench:
    """Measures one proxy after another.

    Args:
        engine: URL of the mock engine.
        seconds: How long each thing is measured.
        folder: For files.
    """

    def __init__(self, engine: str, seconds: float, folder: Path) -> None:
        self.values: Values = defaultdict(lambda: defaultdict(list))
        self._engine = engine
        self._seconds = seconds
        self._folder = folder

    def place(self, name: str) -> Place:
        """Return where a proxy is to run."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        return Place(self._engine, proxies.free_port(), folder, core=0)

    def run(self, name: str, start: Callable[[Place], Proxy], phases: str) -> None:
        """Measure a proxy: j: closed loop, o: open loop, s: slow streams, f: fast streams."""
        try:
            proxy = start(self.place(name))
            try:
                for phase in phases:
                    getattr(self, f"_{phase}")(name, proxy)
            finally:
                proxy.stop()
        except Exception as error:  # noqa: BLE001 - one peer's failure is not the others'
            print(f"{name}: {error}", file=sys.stderr)

    def direct(self, port: int) -> None:
        """Measure the engine itself."""
        self.values["direct"]["per_s"].append(self._wrk(port, ["none"]))
        self._o("direct", port, ["none"])

    def _j(self, name: str, proxy: Proxy) -> None:
        self._wrk(proxy.port, proxy.keys, seconds=1)
        before_us = proxy.cpu_us()
        per_s = self._wrk(proxy.port, proxy.keys)
        used_us = proxy.cpu_us() - before_us
        values = self.values[name]
        values["per_s"].append(per_s)
        values["us_per_request"].append(used_us / (per_s * self._seconds))

    def _wrk(self, port: int, keys: list[str], seconds: float | None = None) -> float:
        quoted = (
            request(port, key).decode().replace("\\", "\\\\").replace("\r\n", "\\r\\n")
            for key in keys
        )
        script = self._folder / "requests.lua"
        script.write_text(WRK_SCRIPT.format(requests=", ".join(f"'{text}'" for text in quoted)))
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds or self._seconds:g}s"]
        done = subprocess.run(
            [*command, "-s", script, f"http://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if "Non-2xx" in done:
            raise RuntimeError(f"refused: {done}")
        return float(re.search(r"Requests/sec:\s+([\d.]+)", done)[1])

    def _o(self, name: str, proxy: Proxy | int, keys: list[str] | None = None) -> None:
        port = proxy if isinstance(proxy, int) else proxy.port
        requests = [request(port, key) for key in keys or proxy.keys]
        uvloop.run(open_loop(port, requests, per_s=OPEN_PER_S, seconds=1))
        found = uvloop.run(open_loop(port, requests, per_s=OPEN_PER_S, seconds=self._seconds))
        self.values[name]["p50_us"].append(found[len(found) // 2])
        self.values[name]["p99_us"].append(found[len(found) * 99 // 100])

    def _s(self, name: str, proxy: Proxy) -> None:
        uvloop.run(self._stream(name, proxy, SLOW_MS))

    def _f(self, name: str, proxy: Proxy) -> None:
        uvloop.run(self._stream(name, proxy, FAST_MS))

    async def _stream(self, name: str, proxy: Proxy, period_ms: int) -> None:
        streams = Streams()
        requests = [request(proxy.port, key, period_ms=period_ms) for key in proxy.keys]
        await streams.open(proxy.port, requests, STREAMS)
        await asyncio.sleep(1)
        streams.delays_us.clear()
        events, before_us = streams.events, proxy.cpu_us()
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        await asyncio.sleep(self._seconds)
        events, used_us = streams.events - events, proxy.cpu_us() - before_us
        per_s = events / (loop.time() - begin_s)
        delays_us = sorted(streams.delays_us)
        values = self.values[name]
        if period_ms == SLOW_MS:
            values["us_per_event"].append(used_us / events)
            values["memory_mb"].append(proxy.memory_mb())
        else:
            values["events_per_s"].append(per_s)
            values["event_p99_ms"].append(delays_us[len(delays_us) * 99 // 100] / 1e3)
        streams.close()
        await asyncio.sleep(0.5)


MEASURES = {
    "per_s": ("requests_per_s", "1/s"),
    "us_per_request": ("cpu_us_per_request", "us"),
    "p50_us": ("latency_p50_at_2000_per_s", "us"),
    "p99_us": ("latency_p99_at_2000_per_s", "us"),
    "us_per_event": ("cpu_us_per_event", "us"),
    "memory_mb": ("memory_with_1000_streams", "MB"),
    "events_per_s": ("events_per_s_of_50000", "1/s"),
    "event_p99_ms": ("event_delay_p99_at_50000_per_s", "ms"),
}


def figures_of(values: Values) -> list[Figure]:
    """Return what was measured, and how the gateway stands to its peers, round by round."""
    found = [
        measured(f"{MEASURES[key][0]}_{name.replace('-', '_')}", of_name[key], MEASURES[key][1])
        for name, of_name in values.items()
        for key in MEASURES
        if of_name.get(key)
    ]
    ours = values["taketurns"]

    def ratio(name: str, key: str, peer: str, bound: str, limit: float) -> None:
        pairs = list(zip(ours.get(key, []), values[peer].get(key, []), strict=False))
        if not pairs:
            return
        ratios = [mine / theirs for mine, theirs in pairs]
        good = median(ratios) >= limit if bound == ">=" else median(ratios) <= limit
        found.append(measured(name, ratios, "", f"{bound} {limit:g}", reached=good))

    def own(name: str, found_values: list[float], unit: str, limit: float) -> None:
        if found_values:
            good = median(found_values) <= limit
            found.append(measured(name, found_values, unit, f"<= {limit:g}", reached=good))

    ratio("requests_per_s_to_vllm_router", "per_s", "vllm-router", ">=", 1.2)
    ratio("requests_per_s_to_litellm", "per_s", "litellm", ">=", 100)
    ratio("cpu_per_request_to_nginx", "us_per_request", "nginx", "<=", 3.5)
    ratio("cpu_per_event_to_nginx", "us_per_event", "nginx", "<=", 1.7)
    ratio("event_delay_p99_to_nginx", "event_p99_ms", "nginx", "<=", 1)
    for key, name, limit in (("p50_us", "added_p50_ms", 0.4), ("p99_us", "added_p99_ms", 1.5)):
        pairs = zip(ours.get(key, []), values["direct"].get(key, []), strict=False)
        own(name, [(mine - bare) / 1e3 for mine, bare in pairs], "ms", limit)
    own("memory_mb_with_1000_streams", ours.get("memory_mb", []), "MB", 100)
    return found


def main() -> None:
    """Measure, print, and record where asked."""
    parser = options_for(__doc__)
    parser.add_argument("--peers", type=Path, help="bin folder of an environment with peers")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to take the median of")
    parser.add_argument("--seconds", type=float, default=5, help="how long each is measured")
    parser.add_argument("--cost", default="ema", help="cost model of the gateway's pool")
    parser.add_argument("--only", default="", help="these proxies alone, joined by commas")
    parser.add_argument("--phases", default="josf", help="j, o, s, f: see Bench.run")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2 or not shutil.which("wrk"):
        sys.exit("dataplane: needs two cores, and wrk")
    binaries = None if options.peers is None else options.peers.absolute()
    peers = proxies.available(binaries)
    starts: dict[str, tuple[Callable[[Place], Proxy], str]] = {
        "nginx": (proxies.nginx, "josf"),
        "taketurns": (partial(proxies.taketurns, cost=options.cost), "josf"),
    }
    if binaries is not None:
        starts["vllm-router"] = (partial(proxies.vllm_router, binaries=binaries), "josf")
        starts["fastapi"] = (partial(proxies.fastapi_httpx, binaries=binaries), "js")
        starts["litellm"] = (partial(proxies.litellm, binaries=binaries), "j")
    for name in ("nginx", "vllm-router", "fastapi", "litellm"):
        if name not in peers:
            print(f"{name} is not installed: skipped", file=sys.stderr)
    chosen = set(filter(None, options.only.split(","))) or set(starts)
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory(prefix="dataplane-") as folder:
        engine = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("loopback.py"))], stdout=subprocess.PIPE
        )
        try:
            port = int(engine.stdout.readline())
            bench = Bench(f"http://127.0.0.1:{port}", options.seconds, Path(folder))
            for _ in range(options.rounds):
                bench.direct(port)
                for name, (start, phases) in starts.items():
                    if name in peers and name in chosen:
                        asked = "".join(phase for phase in phases if phase in options.phases)
                        bench.run(name, start, asked)
        finally:
            engine.terminate()
            engine.wait()
    deliver(figures_of(bench.values), options, peers=peers)


if __name__ == "__main__":
    main()
