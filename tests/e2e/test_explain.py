# SPDX-License-Identifier: Apache-2.0
"""``taketurns explain`` says which rules hold for a request, and asks a gateway how they stand."""

import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

pytestmark = pytest.mark.slow

FILE = """\
tiers:
  production: {rank: 0, queue_timeout: 30s, wait_target: 2s}
  trial: {rank: 1, floor: 5%, slot_share: 80%}
models:
  qwen:
    endpoints: [chat, completions]
    engines: [{url: "http://h:1"}]
    cost: tokens
    quantum: 1k
    queue_max: 50
    tenant_queue_bytes_max: 8M
  embed: {endpoints: [embeddings, rerank], engines: [{url: "http://h:2"}], tenants: [acme]}
  queue: {endpoints: [chat], engines: [{url: "http://h:3"}], scheduler: shared_queue}
tenants:
  acme: {tier: production, weight: 2, parallel: 4, min_priority: 100}
  visitor: {tier: trial, suspended: true}
limits:
  - {unit: requests, per: minute, max: 20, name: everyone}
  - {tier: trial, unit: requests, per: minute, max: 5, name: trials}
  - {endpoint: chat, unit: requests, per: minute, max: 500, name: chats}
  - {unit: requests, per: minute, max: 9, mode: shadow, name: tried-before}
  - {tier: production, unit: requests, per: minute, max: 100, mode: shadow, name: tried}
  - {unit: tokens, per: day, max: 1M, scope: total, mode: shadow}
  - {endpoint: embeddings, unit: inputs, per: second, max: 3}
  - {tier: trial, unit: parallel, max: 0}
"""

EMBEDDED = "inputs/second[endpoint=embeddings]"
CHAT = ("--endpoint", "chat", "--model", "qwen")


@pytest.fixture
def run(tmp_path):
    """Return a function that explains the file above, and the folder it runs in."""
    (tmp_path / "t.yaml").write_text(FILE)

    def run(*args, file="t.yaml", **env):
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "taketurns", "explain", file, *map(str, args)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PATH": "", "HOME": str(tmp_path), "COLUMNS": "200", **env},
            check=False,
        )

    return run


@pytest.fixture
def facts(run):
    """Return a function that explains as JSON."""

    def facts(*args, **env):
        done = run(*args, "--json", **env)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return facts


class AdminSide:
    """A gateway's admin side that gives one answer and keeps what it was asked."""

    def __init__(self, status=200, answer=b"{}"):
        admin = self
        self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                admin.asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *args):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


NOW = {
    "rules": [
        {
            "rule": "chats",
            "unit": "requests",
            "limit": 500,
            "used": 500,
            "wait_s": 12.25,
            "mode": "enforce",
        },
        {
            "rule": "tokens/day/total",
            "unit": "tokens",
            "limit": 1000000,
            "used": 7,
            "wait_s": 0,
            "mode": "shadow",
        },
        {"rule": "m", "unit": "requests", "limit": 1, "used": 1, "wait_s": None, "mode": "enforce"},
    ],
    "would": "refused",
    "by": ["chats"],
}


def test_the_most_specific_rule_holds_and_names_those_that_it_stands_for(facts):
    told = facts("--tenant", "acme", *CHAT, "--input-tokens", 500, "--max-tokens", 24)
    assert told["rules"] == [
        {
            "rule": "chats",
            "unit": "requests",
            "max": 500,
            "per": "minute",
            "scope": "each",
            "mode": "enforce",
            "takes": 1,
            "instead_of": ["everyone", "tried-before"],
        },
        {
            "rule": "tried",
            "unit": "requests",
            "max": 100,
            "per": "minute",
            "scope": "each",
            "mode": "shadow",
            "takes": 1,
            "instead_of": ["tried-before"],
        },
        {
            "rule": "tokens/day/total",
            "unit": "tokens",
            "max": 1_000_000,
            "per": "day",
            "scope": "total",
            "mode": "shadow",
            "takes": 524,
            "instead_of": [],
        },
    ]
    assert told["now"] is None


def test_all_that_the_scheduler_goes_by_is_told(facts):
    told = facts("--tenant", "acme", *CHAT, "--input-tokens", 500, "--max-tokens", 24)
    assert told["request"] == {"inputs": 1, "input_tokens": 500, "output_tokens": 24}
    assert (told["tier"], told["rank"], told["weight"]) == ("production", 0, 2)
    assert (told["cost"], told["cost_unit"]) == (500 + 2 * 24, "token")
    assert (told["quantum"], told["per_round"]) == (1_000, 2_000)
    assert (told["parallel"], told["min_priority"]) == (4, 100)
    assert (told["wait_target_s"], told["throttle"]) == (2.0, "enforce")
    assert told["queue"] == {
        "tenant_max": 10_000,
        "tenant_bytes_max": 8 * 1024**2,
        "model_max": 50,
        "model_bytes_max": 256 * 1024**2,
        "all_bytes_max": 1024**3,
        "timeout_s": 30.0,
    }


@pytest.mark.parametrize(
    ("endpoint", "cost", "rules"),
    [
        ("embeddings", 90, ["everyone", "tried", "tokens/day/total", EMBEDDED]),
        ("rerank", 90, ["everyone", "tried", "tokens/day/total"]),
    ],
)
def test_texts_are_counted_where_texts_are_sent(facts, endpoint, cost, rules):
    told = facts(
        *("--tenant", "acme", "--endpoint", endpoint, "--model", "embed"),
        *("--inputs", 3, "--input-tokens", 90),
    )
    assert told["cost"] == cost
    assert [rule["rule"] for rule in told["rules"]] == rules
    assert told["rules"][-1]["takes"] == (3 if endpoint == "embeddings" else 90)
    assert told["parallel"] is None


def test_people_read_the_same(run):
    done = run("--tenant", "acme", *CHAT, "--input-tokens", 500, "--max-tokens", 24)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == """\
acme asks qwen for chat (500 input tokens, at most 24 output tokens)

tier         production, rank 0
share        weight 2: 2,000 units a round
costs        548 units (a unit is a token)
urgency      priority 100 to 999, 0 goes first
runs         at most 4 at once
waits        at most 30s
             its own queue: 10,000, 8M
             the model's: 50, 256M
             the gateway's: 1G
wait target  2s: refused at once where it can't start in time

LIMIT             UNIT      MAX        PER     SCOPE  MODE     TAKES  INSTEAD OF
chats             requests  500        minute  each   enforce  1      everyone, tried-before
tried             requests  100        minute  each   shadow   1      tried-before
tokens/day/total  tokens    1,000,000  day     total  shadow   524    -

How long it would wait, a running gateway knows: ask it with --admin.
"""
    )


def test_without_a_wait_target_no_wait_is_told(run):
    assert "How long it would wait" not in run("--tenant", "visitor", *CHAT).stdout


def test_a_suspended_tenant_and_a_limit_that_nothing_passes_are_said(run):
    told = run("--tenant", "visitor", *CHAT).stdout
    assert "visitor is suspended: all its keys are refused." in told
    assert "trial, rank 1, floor 5%, at most 80% of the slots" in told
    assert "It can never pass parallel[tier=trial]: it takes 1, and the limit is 0." in told
    assert "wait target  none\n" in told


def test_a_shared_queue_has_no_shares(run):
    told = run("--tenant", "acme", "--endpoint", "chat", "--model", "queue").stdout
    assert "share        none: the model has one shared queue for all" in told


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--tenant", "acne", *CHAT), "there is no tenant 'acne'. Did you mean acme?"),
        (
            ("--tenant", "acme", "--endpoint", "chat", "--model", "qwem"),
            "there is no model 'qwem'. Did you mean qwen?",
        ),
        (
            ("--tenant", "acme", "--endpoint", "chats", "--model", "qwen"),
            "model qwen does not serve 'chats'. Did you mean chat?",
        ),
        (
            ("--tenant", "visitor", "--endpoint", "embeddings", "--model", "embed"),
            "for visitor there is no model embed: models.embed.tenants does not name it.",
        ),
        (("--tenant", "acme", *CHAT, "--inputs", "2"), "have no texts or documents"),
        (
            (
                *("--tenant", "acme", "--endpoint", "rerank", "--model", "embed"),
                *("--max-tokens", "2"),
            ),
            "put no tokens out",
        ),
        (("--tenant", "acme", *CHAT, "--admin", "localhost:8081"), "must be a URL such as"),
        (("--tenant", "acme", *CHAT, "--admin", "http://h:99999"), "must be a URL such as"),
        (("--tenant", "acme", *CHAT, "--admin", "http://["), "must be a URL such as"),
        (("--tenant", "acme"), "Missing option"),
    ],
)
def test_what_cannot_be_explained_is_said_with_a_remedy(run, args, said):
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_file_with_faults_is_not_explained(run, tmp_path):
    (tmp_path / "bad.yaml").write_text(FILE + "  - {unit: parallel, max: 1, tenant: acne}\n")
    done = run("--tenant", "acme", *CHAT, file="bad.yaml")
    assert done.returncode == 2
    assert "limits[8].tenant" in done.stderr


# With a gateway


def test_a_token_that_fits_no_header_is_not_repeated(run):
    done = run(
        *("--tenant", "acme", *CHAT, "--admin", "http://127.0.0.1:1"),
        TAKETURNS_ADMIN_TOKEN="hush\n",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "printable ASCII" in done.stderr
    assert "hush" not in done.stderr


def test_the_gateway_is_asked_for_the_same_request(facts):
    with AdminSide(answer=json.dumps(NOW).encode()) as admin:
        told = facts(
            *("--tenant", "acme", *CHAT, "--input-tokens", 500, "--max-tokens", 24),
            *("--admin", admin.url + "/", "--admin-token", "secret"),
        )
    assert told["now"] == NOW
    ((path, authorization),) = admin.asked
    assert authorization == "Bearer secret"
    assert urlsplit(path).path == "/limits"
    assert parse_qs(urlsplit(path).query) == {
        "tenant": ["acme"],
        "endpoint": ["chat"],
        "model": ["qwen"],
        "inputs": ["1"],
        "input_tokens": ["500"],
        "output_tokens": ["24"],
    }


def test_people_read_what_is_used_and_what_would_happen(run):
    with AdminSide(answer=json.dumps(NOW).encode()) as admin:
        done = run("--tenant", "acme", *CHAT, "--admin", admin.url, TAKETURNS_ADMIN_TOKEN="t")
    assert done.returncode == 0
    assert done.stdout.endswith("""
LIMIT             USED  OF         FITS
chats             500   500        in 13s
tokens/day/total  7     1,000,000  now
m                 1     1          not known when

Now it would be refused by chats.
""")
    assert admin.asked[0][1] == "Bearer t"


THROTTLE = {
    "mode": "enforce",
    "target_s": 2.0,
    "predicted_wait_s": 3.2504,
    "better_tiers_cost": 0,
    "own_cost": 12000,
    "others_cost": 4500,
    "cost_per_s": 5000,
    "would": "refused",
    "reason": "share",
    "retry_after_s": 1.3,
}
REPORTED = " (shadow: it is only reported)"
IN_FRONT = """\
Predicted wait: 3.25s (target 2s). In front of it:
             0  better tiers
        12,000  its tenant's own
         4,500  other tenants, until its turn
Served of its tier: 5,000 cost units a second.
"""


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {},
            f"{IN_FRONT}That is too late: what its tenant has in front; it would pass in 1.3s.\n\n",
        ),
        (
            {"reason": "capacity", "mode": "shadow"},
            f"{IN_FRONT}That is too late: no capacity; it would pass in 1.3s{REPORTED}.\n\n",
        ),
        (
            {"predicted_wait_s": 0, "would": "admitted", "reason": None, "retry_after_s": None},
            "Predicted wait: none, a slot is free (target 2s).\n\n",
        ),
        (
            {"predicted_wait_s": None, "would": "admitted", "reason": None, "retry_after_s": None},
            "Predicted wait: not known yet, too little was served (target 2s).\n\n",
        ),
    ],
)
def test_people_read_how_long_it_would_wait_and_why(run, parts, said):
    now = {**NOW, "throttle": {**THROTTLE, **parts}}
    with AdminSide(answer=json.dumps(now).encode()) as admin:
        done = run("--tenant", "acme", *CHAT, "--admin", admin.url)
    assert done.stdout.endswith(f"\n\n{said}Now it would be refused by chats.\n")


def test_an_admitted_request_is_refused_by_nobody(run):
    with AdminSide(answer=b'{"rules": [], "would": "admitted", "by": []}') as admin:
        done = run("--tenant", "acme", *CHAT, "--admin", admin.url)
    assert done.stdout.endswith("\n\nNow it would be admitted.\n")
    assert admin.asked[0][1] is None


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, b'{"error": {"message": "x"}}', "Give server.admin_token with --admin-token"),
        (403, b"", "Give server.admin_token with --admin-token"),
        (404, b'{"error": {"message": "no tenant acme"}}', "answers 404: no tenant acme."),
        (500, b'{"error": "x"}', "answers 500."),
        (502, b"<html>", "answers 502."),
        (200, b"<html>", "answers what can't be read here"),
        (200, b"[]", "answers what can't be read here"),
        (200, b'{"rules": {}, "by": [], "would": 1}', "answers what can't be read here"),
    ],
)
def test_a_gateway_that_does_not_tell_is_an_error_with_a_remedy(run, status, answer, said):
    with AdminSide(status, answer) as admin:
        done = run("--tenant", "acme", *CHAT, "--admin", admin.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_that_is_not_there_is_an_error_with_a_remedy(run):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        # Bound and not listening: nobody can be reached there.
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        done = run("--tenant", "acme", *CHAT, "--admin", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the gateway at {url} does not answer: Connection refused." in done.stderr
    assert "Does it run" in done.stderr
