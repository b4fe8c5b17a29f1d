# SPDX-License-Identifier: Apache-2.0
"""Runs the openai package's own tests on llama.cpp, directly and through the gateway, and compares.

The tests come with the package's source archive on PyPI; it's fetched together
with what the tests need, so this needs the network once. Prints both sets of
names and their difference; ends with 1 where a test passes directly and not
through the gateway, or where fewer than PASSING_MIN pass directly.

    python tests/real/openai_suite.py [--folder FOLDER] [--json FILE]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from real.engines import gateway, llamacpp, tiny_model

PASSING_MIN = 60

TESTS = {
    "tests/api_resources/chat/test_completions.py": "create",
    "tests/api_resources/test_completions.py": "create",
    "tests/api_resources/test_embeddings.py": "create",
    "tests/api_resources/test_models.py": "list or retrieve",
}
ENDPOINTS = {
    "tests/api_resources/chat/test_completions.py": "chat",
    "tests/api_resources/test_completions.py": "completions",
    "tests/api_resources/test_embeddings.py": "embeddings",
    "tests/api_resources/test_models.py": "chat",
}
MODEL = re.compile(r'\bmodel="([^"]+)"|\.retrieve\(\s*"([^"]+)"')
NEEDS = ["inline-snapshot", "pytest", "pytest-asyncio", "pytest-xdist", "rich", "aiohttp", "httpx2"]
KEY_LINE = re.compile(r'^api_key = ".*"$', re.MULTILINE)


def fetch(folder: Path, release: str) -> Path:
    """Fetch the source of a release and make an environment for its tests."""
    source = folder / f"openai-{release}"
    if not source.exists():
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "openai",
             f"openai=={release}", "-d", str(folder)])  # fmt: skip
        with tarfile.open(folder / f"openai-{release}.tar.gz") as archive:
            # Python 3.11 before .4 knows no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            archive.extractall(folder)
    if not (folder / "venv/.ready").exists():
        run([sys.executable, "-m", "venv", str(folder / "venv")])
        run([str(folder / "venv/bin/pip"), "install", "-q", f"openai=={release}", *NEEDS])
        (folder / "venv/.ready").touch()
    conftest = source / "tests/conftest.py"
    text = KEY_LINE.sub('api_key = os.environ["TEST_API_KEY"]', conftest.read_text())
    conftest.write_text(text)
    return source


def models_of(source: Path) -> dict[str, str]:
    """Return the endpoint of each model that the tests name."""
    endpoints: dict[str, str] = {}
    for path, endpoint in ENDPOINTS.items():
        for names in MODEL.findall((source / path).read_text()):
            endpoints.setdefault("".join(names), endpoint)
    return endpoints


def run(command: list[str]) -> None:
    """Run a command that has to succeed."""
    subprocess.run(command, check=True)


def passing(source: Path, url_of: dict[str, str], key: str) -> tuple[set[str], set[str]]:
    """Return the names of the tests that pass against a server, and of those that fail."""
    passed: set[str] = set()
    failed: set[str] = set()
    for path, chosen in TESTS.items():
        url = url_of.get("embeddings" if "embeddings" in path else "chat")
        if url is None:
            continue
        report = source / "report.xml"
        env = os.environ | {"TEST_API_BASE_URL": f"{url}/v1", "TEST_API_KEY": key}
        subprocess.run(
            [str(source.parent / "venv/bin/python"), "-m", "pytest", "-q", "-n", "0", path,
             "-k", chosen, "-p", "no:cacheprovider", f"--junitxml={report}"],
            cwd=source,
            env=env,
            stdout=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
        for case in ET.parse(report).iter("testcase"):
            group = case.get("classname").rpartition(".")[2]
            name = f"{path.removeprefix('tests/api_resources/')}::{group}::{case.get('name')}"
            if case.find("skipped") is None:
                broken = case.find("failure") is not None or case.find("error") is not None
                (failed if broken else passed).add(name)
    return passed, failed


def compare(source: Path, chat: str, embeddings: str | None) -> dict[str, list[str]]:
    """Run the tests both ways, those of embeddings only where an engine serves them."""
    url_of = {"chat": chat} | ({"embeddings": embeddings} if embeddings else {})
    direct, direct_failed = passing(source, url_of, "not-needed")
    models = {
        name: {
            "endpoints": [endpoint],
            "engines": [{"url": embeddings if endpoint == "embeddings" else chat, "slots": 4}],
            **({"dimensions": True} if endpoint == "embeddings" else {}),
        }
        for name, endpoint in models_of(source).items()
        if endpoint != "embeddings" or embeddings
    }
    with gateway(source.parent, models, {"acme": {}}) as (process, keys):
        url_of = dict.fromkeys(url_of, process.url)
        through, through_failed = passing(source, url_of, keys["acme"])
    return {
        "passing_directly": sorted(direct),
        "failing_directly": sorted(direct_failed),
        "passing_through": sorted(through),
        "failing_through": sorted(through_failed),
        "lost": sorted(direct - through),
        "gained": sorted(through - direct),
    }


def on_llamacpp(source: Path) -> dict[str, list[str]]:
    """Compare with two servers of llama.cpp, one for chat and one for embeddings."""
    endpoints = models_of(source)
    texts = [name for name, endpoint in endpoints.items() if endpoint != "embeddings"]
    vectors = [name for name, endpoint in endpoints.items() if endpoint == "embeddings"]
    model = tiny_model(source.parent)
    with (
        llamacpp(model, *texts) as chat,
        llamacpp(model, *vectors, embeddings=True) as embeddings,
    ):
        return compare(source, chat, embeddings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to keep what was fetched")
    parser.add_argument("--release", default=version("openai"), help="of the openai package")
    parser.add_argument("--json", type=Path, help="write the names here")
    parser.add_argument("--engine", help="URL of an engine that runs already; no embeddings then")
    parser.add_argument("--models", action="store_true", help="print the names it has to serve")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.gettempdir()) / "taketurns-openai-suite"
    folder.mkdir(parents=True, exist_ok=True)
    source = fetch(folder, options.release)
    if options.models:
        print(*models_of(source))
        return 0
    names = compare(source, options.engine, None) if options.engine else on_llamacpp(source)
    for what, found in names.items():
        print(f"{what.replace('_', ' ')}: {len(found)}")
        for name in found:
            print(f"  {name}")
    if options.json:
        figures = {"release": options.release, **names}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(bool(names["lost"]) or len(names["passing_directly"]) < PASSING_MIN)


if __name__ == "__main__":
    sys.exit(main())
