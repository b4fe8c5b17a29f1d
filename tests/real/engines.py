# SPDX-License-Identifier: Apache-2.0
"""Starts llama.cpp's own server on a tiny model, and a gateway in front of it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from e2e.process import NO_PORTS, SAFETY_S, Process, environment
from real import tiny_llama

from taketurns.engines import weights
from taketurns.gateway.auth import mint

ADMIN_TOKEN = "operator"
SERVER = Path(__file__).with_name("llamacpp_server.py")


def tiny_model(folder: Path) -> Path:
    """Return the tiny model's file in a folder; it's written where it isn't there."""
    path = folder / "tiny-llama.gguf"
    if not path.exists():
        tiny_llama.write(weights.find(weights.SMOLLM2_MODEL), path)
    return path


@contextlib.contextmanager
def llamacpp(model: Path, *names: str, slots: int = 4, embeddings: bool = False) -> Iterator[str]:
    """Serve a model under some names; yields the server's base URL."""
    arguments = [str(model), str(slots), *names, *(["--embeddings"] if embeddings else [])]
    process = subprocess.Popen(
        [sys.executable, SERVER, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http"), f"llama.cpp did not start: {url!r}"
        yield url
    finally:
        process.terminate()
        process.wait(SAFETY_S)
        process.stdout.close()


@contextlib.contextmanager
def gateway(folder: Path, models: dict, tenants: dict, **more) -> Iterator[tuple[Process, dict]]:
    """Serve models to tenants; yields the process and each tenant's key."""
    keys = {}
    sections = {}
    for name, tenant in tenants.items():
        minted = mint()
        keys[name] = minted.key
        sections[name] = {"tier": "only", "keys": [minted.line], **tenant}
    server = {"admin_token": ADMIN_TOKEN}
    config = {
        "server": server,
        "tiers": {"only": {"rank": 0}},
        "models": models,
        "tenants": sections,
        **more,
    }
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(config))
    process = Process([str(path), *NO_PORTS, "--log", str(folder / "log.jsonl")], folder)
    try:
        yield process, keys
    finally:
        process.end()
