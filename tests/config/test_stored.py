# SPDX-License-Identifier: Apache-2.0
"""Commands on the store read their part of the file, whatever the rest lacks."""

import pytest

from taketurns.config.stored import load_stored
from taketurns.errors import ConfigError

LINE = "abcdefghijkl:" + "0" * 64
FILE = f"""
server: {{admin_token: "${{NOT_SET}}", port: nonsense}}
models: {{}}
tenants:
  acme: {{tier: "${{NOT_SET}}", keys: ["{LINE}"]}}
  globex: {{}}
store: "${{STORE:-memory}}"
"""


def stored(tmp_path, text, **env):
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    return load_stored(path, env=env)


def test_variables_of_other_parts_need_not_be_set(tmp_path):
    found = stored(tmp_path, FILE)
    assert found.store == "memory"
    assert {name: tenant.keys for name, tenant in found.tenants.items()} == {
        "acme": (LINE,),
        "globex": (),
    }
    assert stored(tmp_path, FILE, STORE="sqlite:///t.db").store == "sqlite:///t.db"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('store: "${STORE}"', "needs the environment variable STORE"),
        ("store: mysql://h", "is not a store that is known here"),
        ('tenants: {acme: {keys: ["${KEY}"]}}', "needs the environment variable KEY"),
        ("tenants: {acme: {keys: [sk-tt]}}", "must be PUBLIC_ID:SHA256"),
        ("tenants: [acme]", "tenants"),
        ("- 1", "must be a mapping"),
        ("", "must be a mapping"),
    ],
)
def test_its_own_part_has_to_be_right(tmp_path, text, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        stored(tmp_path, text)
    assert caught.value.source.endswith("gateway.yaml")


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load_stored(tmp_path / "missing.yaml")
