# SPDX-License-Identifier: Apache-2.0
"""Whatever a client sends, it gets one answer that says what is wrong, and nothing else breaks."""

import gzip
import io
import json
import logging

import pytest

from taketurns.errors import StoreUnavailableError
from taketurns.gateway.auth import mint
from taketurns.ports.stores import KeyRecord
from taketurns.stores.sqlite import SqliteKeyStore
from taketurns.testing.engine import ScriptedAnswer

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {"model": "chat", "messages": MESSAGES}


def body_limit(size):
    return {"body_bytes_max": size}


# Keys


def test_every_wrong_key_gets_the_same_401(play, tmp_path):
    path = tmp_path / "keys.db"
    revoked, suspended, stranger = mint(), mint(), mint()

    async def scenario(site):
        good = site.keys["acme"]
        wrong = [
            None,
            "",
            "Bearer",
            "Bearer ",
            "Bearer sk-tt-short",
            f"Basic {good}",
            good,
            f"Bearer {good}x",
            f"Bearer {good[:-1]}",
            f"Bearer {good.swapcase()}",
            f"Bearer {stranger.key}",
            f"Bearer {revoked.key}",
            f"Bearer {suspended.key}",
            f"Bearer {site.keys['mothballed']}",
            "Bearer " + "x" * 5000,
            "Bearer \u00e9\u00e9",
        ]
        answers = set()
        for authorization in wrong:
            headers = {} if authorization is None else {"Authorization": authorization}
            reply = await site.chat(tenant=None, headers=headers)
            assert reply.error["code"] == "invalid_api_key"
            answers.add((reply.status, reply.body, reply.headers["WWW-Authenticate"]))
        assert len(answers) == 1
        assert answers.pop()[::2] == (401, "Bearer")
        assert {(r.tenant, r.outcome, r.status) for r in site.records} == {("", "invalid", 401)}

    store = SqliteKeyStore(path)
    store.add(KeyRecord(revoked.public_id, "acme", revoked.hash, created_s=0))
    store.add(KeyRecord(suspended.public_id, "mothballed", suspended.hash, created_s=0))
    store.revoke(revoked.public_id, revoked_s=1)
    tenants = {
        "acme": {"tier": "production"},
        "mothballed": {"tier": "production", "suspended": True},
    }
    play(scenario, tenants=tenants, store=f"sqlite://{path}")


def test_the_scheme_of_a_key_is_read_in_any_case(play):
    async def scenario(site):
        headers = {"Authorization": f"bearer {site.keys['acme']}"}
        assert (await site.chat(tenant=None, headers=headers)).status == 200

    play(scenario)


def test_a_store_of_keys_that_does_not_answer_is_503_and_keys_of_the_file_still_work(play):
    class Down:
        def get(self, public_id):
            raise StoreUnavailableError("down")

        def close(self):
            pass

    async def scenario(site):
        site.gateway._auth._stores = (*site.gateway._auth._stores, Down())
        reply = await site.chat(tenant=None, headers={"Authorization": f"Bearer {mint().key}"})
        assert (reply.status, reply.error["code"]) == (503, "store_unavailable")
        assert reply.headers["x-request-executed"] == "no"
        assert reply.headers["Retry-After"]
        assert (await site.chat()).status == 200

    play(scenario)


def test_a_model_that_is_forbidden_looks_like_one_that_does_not_exist(play, chat_model):
    async def scenario(site):
        for tenant, model in (("acme", "hidden"), ("acme", "nosuch")):
            reply = await site.chat(model=model, tenant=tenant)
            assert (reply.status, reply.error["code"]) == (404, "model_not_found")
            assert reply.error["param"] == "model"
            assert reply.error["message"].replace(model, "NAME") == (
                "The model 'NAME' does not exist, or you have no access to it. "
                "GET /v1/models lists those that you may use."
            )
            one = await site.send("GET", f"/v1/models/{model}", tenant=tenant)
            assert one.error == reply.error
        assert {record.model for record in site.records} == {""}
        listed = await site.send("GET", "/v1/models")
        assert [model["id"] for model in listed.json["data"]] == ["chat"]
        assert (await site.chat(model="hidden", tenant="globex")).status == 200
        listed = await site.send("GET", "/v1/models", tenant="globex")
        assert [model["id"] for model in listed.json["data"]] == ["chat", "hidden"]

    hidden = chat_model(tenants=["globex"])
    hidden["engines"] = [{"url": "http://fake:3", "name": "gpu-9"}]
    play(scenario, models={"chat": chat_model(), "hidden": hidden})


def test_a_model_asked_for_what_it_does_not_serve_is_400(play):
    async def scenario(site):
        reply = await site.embed(["x"], model="chat")
        assert (reply.status, reply.error["code"]) == (400, "wrong_endpoint")
        assert "chat, completions" in reply.error["message"]

    play(scenario)


# Bodies


@pytest.mark.parametrize(
    ("path", "body", "param", "fragment"),
    [
        (CHAT, b"", None, "not valid JSON"),
        (CHAT, b"{", None, "not valid JSON"),
        (CHAT, b"\xff\xfe", None, "not valid JSON"),
        (CHAT, b"[]", None, "object"),
        (CHAT, b"null", None, "object"),
        (CHAT, b'{"messages":[]}', "messages", "empty"),
        (CHAT, {"model": 7}, "model", "must be"),
        (CHAT, {"model": "chat"}, "messages", "missing"),
        (CHAT, {"model": "chat", "messages": []}, "messages", "empty"),
        (CHAT, {"model": "chat", "messages": "hi"}, "messages", "array"),
        (CHAT, {"model": "chat", "messages": [{}]}, "messages[0].role", "missing"),
        (CHAT, GOOD | {"stream": "yes"}, "stream", "bool"),
        (CHAT, GOOD | {"n": 0}, "n", "0"),
        (CHAT, GOOD | {"max_tokens": -1}, "max_tokens", "-1"),
        (EMBEDDINGS, {"model": "embed"}, "input", "missing"),
        (EMBEDDINGS, {"model": "embed", "input": []}, "input", "empty"),
        (EMBEDDINGS, {"model": "embed", "input": ""}, "input", "empty"),
        (EMBEDDINGS, {"model": "embed", "input": ["a", ""]}, "input[1]", "empty"),
        (EMBEDDINGS, {"model": "embed", "input": {"a": 1}}, "input", "text"),
        (EMBEDDINGS, {"model": "embed", "input": ["a", 1]}, "input[1]", "str"),
        (EMBEDDINGS, {"model": "embed", "input": "a", "dimensions": 0}, "dimensions", "0"),
        (EMBEDDINGS, {"model": "embed", "input": "a", "encoding_format": "x"},
         "encoding_format", "base64"),
        (CHAT, b'{"model":"chat","messages":' + b"[" * 100_000, None, "nested"),
        (CHAT, b'{"model":"chat","x":' + b'{"a":' * 100_000, None, "nested"),
        (EMBEDDINGS, b'{"model":"embed","input":"\\ud800"}', None, "JSON"),
    ],
)  # fmt: skip
def test_a_bad_body_is_400_and_names_its_field(play, path, body, param, fragment):
    async def scenario(site):
        reply = await site.post(path, body)
        assert reply.status == 400
        assert (reply.error["param"], reply.error["type"]) == (param, "invalid_request_error")
        assert fragment in reply.error["message"]
        assert reply.headers["x-request-executed"] == "no"
        (record,) = site.records
        assert (record.outcome, record.tenant, record.cost) == ("invalid", "acme", 0)
        assert record.code == reply.error["code"]

    play(scenario)


def test_a_body_announced_too_large_is_413_before_a_byte_of_it_is_sent(play):
    async def scenario(site):
        wire = await site.wire()
        head = site.raw_post(CHAT, b"").replace(b"Content-Length: 0", b"Content-Length: 99999999")
        await wire.send(head)
        status, headers, body = await wire.reply()
        assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
        assert "4096" in json.loads(body)["error"]["message"]
        assert headers["connection"] == "close"
        await wire.close()

    play(scenario, server=body_limit(4096))


def test_a_chunked_body_is_413_as_soon_as_it_is_too_large(play):
    async def scenario(site):
        wire = await site.wire()
        head = site.raw_post(CHAT, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await wire.send(head + b"1000\r\n" + b"x" * 4096 + b"\r\n1\r\nx\r\n")
        # Its end is never sent.
        status, headers, body = await wire.reply()
        assert (status, json.loads(body)["error"]["code"]) == (413, "body_too_large")
        assert headers["connection"] == "close"
        await wire.close()

    play(scenario, server=body_limit(4096))


def test_a_client_that_sends_all_of_a_large_body_first_still_reads_the_413(play):
    async def scenario(site):
        reply = await site.send("POST", CHAT, data=io.BytesIO(b"x" * 8_000_000))
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")

    play(scenario, server=body_limit(4096))


def test_a_body_of_exactly_the_limit_is_read(play):
    async def scenario(site):
        body = json.dumps(GOOD).encode()
        body += b" " * (4096 - len(body))
        assert (await site.post(CHAT, body)).status == 200
        assert (await site.post(CHAT, body + b" ")).status == 413

    play(scenario, server=body_limit(4096))


def test_a_body_in_chunks_is_read(play):
    async def scenario(site):
        wire = await site.wire()
        head = site.raw_post(CHAT, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await wire.send(head)
        for byte in json.dumps(GOOD).encode():
            await wire.send(b"1\r\n%c\r\n" % byte)
        await wire.send(b"0\r\n\r\n")
        assert (await wire.reply())[0] == 200

    play(scenario)


def test_a_compressed_body_is_415(play):
    async def scenario(site):
        packed = gzip.compress(json.dumps(GOOD).encode())
        reply = await site.post(CHAT, packed, headers={"Content-Encoding": "gzip"})
        assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")
        plain = await site.chat(headers={"Content-Encoding": "identity"})
        assert plain.status == 200

    play(scenario)


def test_a_client_that_expects_100_continue_is_told_to(play):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post(CHAT, GOOD, headers=["Expect: 100-continue"])
        head, _, body = request.partition(b"\r\n\r\n")
        await wire.send(head + b"\r\n\r\n")
        assert (await wire.head())[0] == 100
        await wire.send(body)
        assert (await wire.reply())[0] == 200

    play(scenario)


def test_a_client_that_expects_100_continue_is_not_told_to_when_its_key_is_wrong(play):
    async def scenario(site):
        wire = await site.wire()
        request = site.raw_post(CHAT, GOOD, headers=["Expect: 100-continue"])
        head, _, _ = request.replace(site.keys["acme"].encode(), b"no").partition(b"\r\n\r\n")
        await wire.send(head + b"\r\n\r\n")
        status, headers, _ = await wire.reply()
        assert (status, headers["connection"]) == (401, "close")
        await wire.close()

    play(scenario)


def test_a_body_that_does_not_come_is_408(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD)[:-5])
        status, headers, body = await wire.reply()
        assert (status, json.loads(body)["error"]["code"]) == (408, "body_timeout")
        assert headers["connection"] == "close"
        await wire.close()

    play(scenario, server={"body_timeout": "50ms"})


def test_a_client_that_hangs_up_amid_its_body_is_noted_as_gone(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(site.raw_post(CHAT, GOOD)[:-5])
        await site.until(lambda: site.gateway.active)
        wire.cut()
        await site.until(lambda: site.records)
        assert (site.records[0].outcome, site.records[0].status) == ("cancelled", 499)

    play(scenario)


# Urls and methods


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", EMBEDDINGS, "POST"),
        ("DELETE", "/v1/models/chat", "GET"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/readyz", "GET, HEAD"),
        ("PATCH", CHAT, "POST"),
        ("OPTIONS", CHAT, "POST"),
    ],
)
def test_a_wrong_method_is_405_and_names_the_right_one(play, method, path, allowed):
    async def scenario(site):
        reply = await site.send(method, path)
        assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
        assert reply.headers["Allow"] == allowed
        assert allowed in reply.error["message"]

    play(scenario)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v3/chat", CHAT + "/", "//v1/models", "/metrics", "/v1/models/"]
)
def test_an_unknown_url_is_404(play, path):
    async def scenario(site):
        reply = await site.send("GET", path)
        assert (reply.status, reply.error["code"]) == (404, "unknown_url")

    play(scenario)


def test_a_query_is_ignored(play):
    async def scenario(site):
        assert (await site.send("GET", "/v1/models?limit=5")).status == 200
        assert (await site.post(CHAT + "?api-version=1", GOOD)).status == 200

    play(scenario)


# Connections


def test_a_connection_is_kept_after_good_answers_and_refusals_of_a_read_body(play):
    async def scenario(site):
        wire = await site.wire()
        for body, expected in ((GOOD, 200), (b"{", 400), ({"model": "x"}, 404), (GOOD, 200)):
            await wire.send(site.raw_post(CHAT, body))
            status, headers, _ = await wire.reply()
            assert status == expected
            assert headers.get("connection") != "close"

    play(scenario)


def test_pipelined_requests_are_answered_in_order(play):
    async def scenario(site):
        wire = await site.wire()
        await wire.send(
            site.raw_post(CHAT, GOOD)
            + site.raw_post(EMBEDDINGS, {"model": "embed", "input": "x"})
            + site.raw_post(CHAT, b"{")
        )
        replies = [await wire.reply() for _ in range(3)]
        assert [status for status, _, _ in replies] == [200, 200, 400]
        assert json.loads(replies[0][2])["object"] == "chat.completion"
        assert json.loads(replies[1][2])["object"] == "list"

    play(scenario)


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_a_body_that_was_not_read_is_never_taken_for_a_request(play, key):
    async def scenario(site):
        inner = site.raw_post(CHAT, GOOD, tenant="globex")
        # The URL is unknown, or the key is: either way the body isn't looked at.
        request = site.raw_post("/v1/nothing" if key == "right" else CHAT, inner)
        if key == "wrong":
            request = request.replace(site.keys["acme"].encode(), b"sk-nobody")
        wire = await site.wire()
        await wire.send(request)
        received = await wire.rest()
        assert received.count(b"HTTP/1.1 ") == 1
        assert received.startswith(b"HTTP/1.1 404" if key == "right" else b"HTTP/1.1 401")
        assert not site.engines["gpu-0"].calls
        assert len(site.records) == 1

    play(scenario)


def test_http_1_0_is_answered_and_closed(play):
    async def scenario(site):
        for stream in (False, True):
            wire = await site.wire()
            request = site.raw_post(CHAT, GOOD | {"stream": stream})
            await wire.send(request.replace(b"HTTP/1.1", b"HTTP/1.0"))
            received = await wire.rest()
            assert b" 200 OK\r\n" in received
            assert b"Transfer-Encoding" not in received
            assert b"one" in received

    play(scenario)


SECRET = b"sk-tt-aaaaaaaaaaaa-SECRETSECRETSECRET"

MALFORMED = {
    "no http": b"hello SECRETSECRET\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + b"x" * 100 + b"\r\n\r\n",
    "bad version": b"GET /v1/models HTTP/9.9\r\n\r\n",
    "space in a header's name": b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization : "
    + SECRET
    + b"\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: a\r\nBearer " + SECRET + b"\r\n\r\n",
    "nul": b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: " + SECRET + b"\x00\r\n\r\n",
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
    ),
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "negative length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n " + SECRET + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_http_is_400_in_our_form_and_quoted_nowhere(play, caplog, name):
    caplog.set_level(logging.INFO)

    async def scenario(site):
        wire = await site.wire()
        await wire.send(MALFORMED[name])
        status, headers, body = await wire.reply()
        assert status == 400
        assert headers["content-type"].startswith("application/json")
        assert json.loads(body)["error"]["code"] == "malformed_http"
        assert await wire.rest() == b""
        assert (await site.chat()).status == 200
        assert b"SECRET" not in body

    play(scenario)
    assert "SECRET" not in caplog.text


def test_a_broken_chunk_is_400_and_ends_the_connection(play):
    async def scenario(site):
        wire = await site.wire()
        head = site.raw_post(CHAT, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        await wire.send(head + b"zz\r\nSECRET\r\n")
        received = await wire.rest()
        assert received.count(b" 400 Bad Request\r\n") == received.count(b"HTTP/1.") == 1
        assert b"SECRET" not in received
        assert not site.engines["gpu-0"].calls

    play(scenario)


def test_connections_over_the_limit_are_503(play):
    async def scenario(site):
        first, second = await site.wire(), await site.wire()
        for wire in (first, second):
            await wire.send(site.raw_post(CHAT, GOOD))
            assert (await wire.reply())[0] == 200
        third = await site.wire()
        status, headers, _ = await third.reply()
        assert (status, headers["retry-after"]) == (503, "1")
        assert await third.rest() == b""
        await first.close()
        await second.close()
        await site.until(lambda: True)

    play(scenario, server={"connections_max": 2})


def test_no_key_and_no_prompt_appears_in_a_log_or_an_error(play, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    prompt = "CANARY prompt"
    log = tmp_path / "requests.jsonl"
    told = []

    async def scenario(site):
        site.gateway._border.log = site.own_log
        bodies = [
            {"model": "chat", "messages": prompt},
            {"model": "chat", "messages": [{"role": "user", "content": prompt}], "n": 0},
            {"model": "chat", "messages": [{"content": prompt}]},
            {"model": "nosuch", "messages": [{"role": "user", "content": prompt}]},
            {"model": "chat", "messages": [{"role": "user", "content": prompt}], "stream": prompt},
        ]
        told.extend([await site.post(CHAT, body) for body in bodies])
        told.append(await site.post(CHAT, b'{"model":"chat","messages":["CANARY" "x"]}'))
        wrong = ([prompt, 5], [[prompt]], {"CANARY": 1})
        told.extend([await site.embed(item) for item in wrong])
        site.engines["gpu-0"]._script.append(ScriptedAnswer(open_error=ZeroDivisionError()))
        told.append(await site.chat(prompt))
        assert (await site.chat(prompt)).status == 200
        assert (await site.embed([prompt])).status == 200
        keys = list(site.keys.values())
        for reply in told:
            assert reply.status >= 400
            assert "CANARY" not in reply.body.decode()
            assert not any(key in reply.body.decode() for key in keys)
        told.append(keys)

    play(scenario, server={"log": str(log)})
    lines = log.read_text().splitlines()
    assert len(lines) == len(told) - 1 + 2
    for line in lines:
        assert json.loads(line)["request_id"].startswith("req_")
    assert "ZeroDivisionError" in caplog.text
    text = caplog.text + log.read_text()
    assert "CANARY" not in text
    assert not any(key in text for key in told[-1])
