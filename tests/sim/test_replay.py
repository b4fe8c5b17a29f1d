# SPDX-License-Identifier: Apache-2.0
"""A configuration meets recorded traffic, and an engine model is fitted to a request log."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import yaml
from typer.testing import CliRunner

from taketurns.cli.main import app
from taketurns.errors import ConfigError
from taketurns.sim.fit import fit, line, streamed
from taketurns.telemetry.records import RequestRecord

CONFIG = """\
tiers:
  production: {{rank: 0, queue_timeout: 10m}}
  trial: {{rank: 1, queue_timeout: 10m}}
models:
  chat: {{endpoints: [chat], cost: ema, engines: [{{url: "http://h:1", slots: {slots}}}]}}
  vectors: {{endpoints: [embeddings], engines: [{{url: "http://h:2"}}]}}
tenants:
  acme: {{tier: production, weight: {weight}}}
  globex: {{tier: production}}
store: memory
"""

START = datetime(2026, 5, 1, 10, tzinfo=UTC)


def run(*args, fails=False):
    done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=fails)
    if not fails:
        assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def config(tmp_path):
    def write(name="taketurns.yaml", slots=8, weight=1):
        path = tmp_path / name
        path.write_text(CONFIG.format(slots=slots, weight=weight))
        return path

    return write


def record(at_s, *, wait_s=0.5, first_s=0.2, token_s=0.02, **fields):
    """One line as the gateway writes it: made from its own class, so that it stays so."""
    time = (START + timedelta(seconds=at_s)).isoformat(timespec="milliseconds")
    known = {
        "time": time.replace("+00:00", "Z"),
        "request_id": f"r{at_s}",
        "endpoint": "chat",
        "tenant": "acme",
        "model": "chat",
        "engine": "gpu-0",
        "outcome": "completed",
        "stream": True,
        "input_tokens": 100,
        "output_tokens": 50,
    } | fields
    first = wait_s + first_s
    known |= {
        "wait_s": wait_s,
        "first_byte_s": first,
        "total_s": first + token_s * (known["output_tokens"] - 1),
    }
    return json.dumps(asdict(RequestRecord(**known))) + "\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "requests.jsonl"
    lines = [record(at, tenant=("acme", "globex")[at % 2], request_id=f"{at}") for at in range(60)]
    lines.append(record(3, model="other", tenant="acme"))
    lines.append(record(4, tenant="", outcome="invalid"))
    path.write_text("".join(lines))
    return path


def test_a_request_log_is_played_through_a_configuration(log, config):
    done = run("replay", log, "--config", config(), "--json")
    (row,) = json.loads(done.stdout)["schedulers"]
    assert {name: tenant["served"] for name, tenant in row["tenants"].items()} == {
        "acme": 30,
        "globex": 30,
    }
    assert row["figures"]["last_s"]["median"] > 59


def test_two_configurations_are_compared_tenant_by_tenant(tmp_path, config):
    log = tmp_path / "burst.jsonl"
    log.write_text("".join(record(0.01 * n, tenant=("acme", "globex")[n % 2]) for n in range(400)))
    done = run(
        *("replay", log, "--config", config(), "--against", config("other.yaml", weight=8)),
    )
    heads, *lines = done.stdout.splitlines()
    assert heads.split()[:5] == ["tenant", "arrived", "served", "against", "ratio"]
    found = {line.split()[0]: line.split() for line in lines}
    # With eight times the weight acme waits less, and globex no longer than the whole takes.
    assert float(found["acme"][7]) < 0.8
    assert float(found["globex"][7]) > 1


def test_a_trace_without_tenants_is_dealt_to_those_of_the_configuration(tmp_path, config):
    trace = tmp_path / "mooncake.trace"
    rows = ({"timestamp": 100 * n, "input_length": 50, "output_length": 5} for n in range(200))
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run(
        *("replay", trace, "--format", "mooncake", "--config", config(), "--exponent", 0, "--json"),
    )
    tenants = json.loads(done.stdout)["schedulers"][0]["tenants"]
    assert sum(tenant["served"] for tenant in tenants.values()) == 200
    assert abs(tenants["acme"]["served"] - 100) < 30


def test_tenants_that_the_configuration_does_not_know_are_named(config):
    done = run("replay", "vtc_arena_27clients.csv.gz", "--format", "vtc", "--config", config())
    assert "27 tenants of the trace are not in" in done.stderr


def test_plots_are_written(log, config, tmp_path):
    run("replay", log, "--config", config(), "--plots", tmp_path / "plots")
    for path in ("waits.png", "shares.png"):
        assert (tmp_path / "plots" / path).read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "plots").glob("service-*.png"))) == 1


def test_curves_of_a_sweep_are_drawn(tmp_path):
    run(
        *("simulate", "apf-equal", "--sweep", "engines.slots=3,4", "--plots", tmp_path),
    )
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "sweep-one-held-s.png",
        "sweep-two-held-s.png",
    }


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["requests.txt"], "can't tell the format"),
        (["requests.jsonl", "--model", "vectors"], "name a chat model; there are: chat"),
    ],
)
def test_what_cannot_be_played_is_said(args, words, config):
    done = run("replay", *args, "--config", config(), fails=True)
    assert done.exit_code == 2
    assert words in " ".join(done.output.replace("│", " ").split())


def laws(seed=1, requests=400):
    """A log of an engine whose laws are known: 30 ms + 0.2 ms a token; 20 ms + 0.5 ms a request."""
    random = Random(seed)
    ends, lines = [], []
    at = 0.0
    for number in range(requests):
        at += random.expovariate(0.8)
        beside = 1 + sum(end > at for end in ends)
        tokens, output = random.randint(10, 2_000), random.randint(50, 400)
        token_s = (20 + 0.5 * beside) / 1e3
        first_s = (30 + 0.2 * tokens) / 1e3
        ends.append(at + first_s + token_s * output)
        lines.append(
            record(
                at,
                wait_s=0.0,
                first_s=first_s,
                token_s=token_s,
                input_tokens=tokens,
                output_tokens=output,
                request_id=f"{number}",
            )
        )
    return lines


def test_the_laws_of_an_engine_are_found_again(tmp_path):
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(laws()))
    done = run("fit", log, "--model", "chat")
    found = yaml.safe_load(done.stdout)
    assert found["prefill_token_ms"] == pytest.approx(0.2, rel=0.02)
    assert found["step_ms"] == pytest.approx(20, rel=0.05)
    assert found["step_request_ms"] == pytest.approx(0.5, rel=0.3)
    assert found["pool_tokens"] > 1_000
    assert "400 requests" in done.stderr


def test_what_was_fitted_can_be_played(tmp_path, log, config):
    source = tmp_path / "laws.jsonl"
    source.write_text("".join(laws()))
    engine = tmp_path / "engine.yaml"
    engine.write_text(run("fit", source).stdout)
    done = run("replay", log, "--config", config(), "--engine", engine, "--json")
    assert json.loads(done.stdout)["schedulers"][0]["figures"]["served"]["median"] == 60


def test_too_little_to_fit_is_said(tmp_path):
    log = tmp_path / "requests.jsonl"
    log.write_text(record(1))
    with pytest.raises(ConfigError, match="has 1 completed streams; at least 20"):
        run("fit", log)
    log.write_text("{]\n")
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        run("fit", log)
    with pytest.raises(ConfigError, match="No such file"):
        run("fit", tmp_path / "nowhere")


def test_only_completed_streams_of_the_model_are_looked_at():
    rows = [
        json.loads(text)
        for text in (
            record(1),
            record(2, outcome="failed"),
            record(3, model="other"),
            record(4, output_tokens=1),
        )
    ]
    rows.append(rows[0] | {"first_byte_s": None})
    assert len(streamed(rows, "chat")) == 1
    assert len(streamed(rows)) == 2
    with pytest.raises(ValueError, match="at least 20"):
        fit(streamed(rows))


def test_a_line_never_falls_nor_begins_below_nothing():
    assert line([(0, 1), (1, 3), (2, 5)])[:2] == pytest.approx((1, 2))
    assert line([(1, 5), (2, 4), (3, 3)])[:2] == pytest.approx((4, 0))
    assert line([(1, 0), (2, 4), (3, 8)])[0] == 0
    assert line([(1, 5), (1, 7)])[:2] == pytest.approx((6, 0))


def test_the_example_configuration_can_be_tried():
    example = Path(__file__).parents[2] / "examples" / "taketurns.yaml"
    done = run(
        *("replay", "vtc_arena_27clients.csv.gz", "--format", "vtc", "--config", example),
        "--json",
    )
    assert json.loads(done.stdout)["schedulers"][0]["figures"]["served"]["median"] == 1_500
