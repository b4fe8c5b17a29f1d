# SPDX-License-Identifier: Apache-2.0
"""Pools ask engines of every kind for vectors and scores, and mix tenants where they can."""

import logging

import pytest

from taketurns.engines.minilm import MiniLmTokenizer
from taketurns.errors import EngineRefusedError
from taketurns.ports.engine import EmbedAnswer, ScoreCall
from taketurns.testing.engine import fake_score, fake_vector
from taketurns.testing.http_engine import Fault

QUIET = {"interval": "0s"}
DOCUMENTS = ["one", "two words", "three words here", "four"]


def body(query="q", documents=DOCUMENTS, **more):
    return {"model": "rank", "query": query, "documents": documents, **more}


def rank(kind="vllm", **more):
    engine = {"url": "http://backend-0", "slots": 1, "kind": kind}
    return {"rank": {"endpoints": ["rerank"], "engines": [engine], "health": QUIET, **more}}


def scores_of(reply):
    assert reply.status == 200, reply.body
    results = reply.json["results"]
    return {item["document"]["text"]: item["relevance_score"] for item in results}


def expected(query, documents):
    return {document: fake_score(query, document) for document in documents}


@pytest.mark.parametrize(
    ("kind", "rerank", "path"),
    [
        ("vllm", None, "/v1/score"),
        ("tei", None, "/predict"),
        ("openai", None, "/v1/rerank"),
        ("llamacpp", None, "/v1/rerank"),
        ("infinity", "query", "/v1/rerank"),
        ("tei", "query", "/rerank"),
        ("openai", "pairs", "/v1/score"),
    ],
)
def test_documents_are_scored_in_the_way_of_the_engines_kind(play, kind, rerank, path):
    async def scenario(site):
        assert scores_of(await site.post("/v1/rerank", body())) == expected("q", DOCUMENTS)
        backend = site.backends[0]
        assert {request.target for request in backend.requests} == {path}
        assert len(backend.requests) == 2
        (record,) = site.records
        assert record.items == 4
        if kind != "infinity":
            # By the engine's count: each document comes with its query.
            assert record.input_tokens == record.cost == 7 + 4

    more = {} if rerank is None else {"rerank": rerank}
    play(scenario, backends=1, models=rank(kind, batch={"items_max": 3}, **more))


def fake_rank(rerank):
    engine = {"url": "http://fake:3", "name": "cpu-0", "slots": 1}
    return {"rank": {"endpoints": ["rerank"], "engines": [engine], "rerank": rerank}}


async def three_tenants(site):
    """Send a query of each of three tenants while the engine is held; return its calls."""
    engine = site.engines["cpu-0"]
    engine.hold()
    blocker = site.start(site.post("/v1/rerank", body("blocker", ["x"])))
    await engine.executed.reached(1)
    tasks = {
        tenant: site.start(
            site.post(
                "/v1/rerank", body(tenant, [f"{tenant} {n}" for n in range(3)]), tenant=tenant
            )
        )
        for tenant in ("acme", "globex", "pico")
    }
    await site.queued("rank", 9)
    engine.release()
    await blocker
    for tenant, task in tasks.items():
        documents = [f"{tenant} {number}" for number in range(3)]
        assert scores_of(await task) == expected(tenant, documents)
    calls = engine.calls[1:]
    assert all(isinstance(call, ScoreCall) for call in calls)
    return [sorted({pair.query for pair in call.pairs}) for call in calls]


def test_pairs_of_several_tenants_share_a_call(play):
    async def scenario(site):
        assert await three_tenants(site) == [["acme", "globex", "pico"]]

    play(scenario, models=fake_rank("pairs"))


def test_the_documents_of_one_query_go_alone_where_an_engine_takes_one(play):
    async def scenario(site):
        assert sorted(await three_tenants(site)) == [["acme"], ["globex"], ["pico"]]

    play(scenario, models=fake_rank("query"))


@pytest.mark.parametrize("way", ["missing", "repeated"])
def test_scores_that_do_not_fit_their_batch_fail_it(play, way):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(vectors=way)
        reply = await site.post("/v1/rerank", body())
        assert (reply.status, reply.error["code"]) == (502, "engine_broken_answer")
        assert scores_of(await site.post("/v1/rerank", body())) == expected("q", DOCUMENTS)

    play(scenario, backends=1, models=rank())


def test_a_pair_counts_both_its_texts(play):
    async def scenario(site):
        reply = await site.post("/v1/rerank", body("q " * 30, ["a", "b " * 30]))
        assert (reply.status, reply.error["param"]) == (400, "documents[1]")
        assert "has 30 tokens, and the most is 20" in reply.error["message"]

    play(scenario, models={"rank": fake_rank("pairs")["rank"] | {"input_tokens_max": 20}})


def test_a_refusal_in_teis_words_reaches_the_caller(play):
    async def scenario(site):
        text = b'{"error":"Input validation error: too long","error_type":"Validation"}'
        head = b"HTTP/1.1 413 X\r\nContent-Length: %d\r\n\r\n" % len(text)
        site.backends[0].faults[1] = Fault(raw=head + text)
        reply = await site.post("/v1/rerank", body())
        assert reply.status == 400
        assert "Input validation error: too long" in reply.error["message"]

    play(scenario, backends=1, models=rank("tei"))


def counts_by(count):
    class Engine:
        name = "cpu-0"

        async def embed(self, call):
            tokens = sum(count(text) for text in call.inputs)
            return EmbedAnswer([fake_vector(text) for text in call.inputs], tokens)

        async def aclose(self):
            pass

    return Engine()


def test_an_engine_that_counts_characters_is_found_out_and_not_believed(play, caplog):
    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = counts_by(len)
        text = "four letters each " * 8
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                reply = await site.embed([text])
                # The estimate stays: four characters a token.
                assert reply.json["usage"]["prompt_tokens"] == len(text) // 4
        assert caplog.text.count("reports characters as tokens") == 1
        metrics = (await site.admin("/metrics")).body.decode()
        assert 'taketurns_engine_usage_mistrusted_total{model="embed"} 3.0' in metrics

    play(scenario)


def test_the_estimate_follows_what_the_engine_counts(play):
    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = counts_by(lambda text: len(text) // 2)
        for _ in range(8):
            await site.embed(["x" * 400] * 8)
        inputs, sizes = ["x" * 400], []
        sizes = await site.pool("embed").counter._sizes(inputs)
        assert 195 <= sizes[0] <= 201

    play(scenario)


def test_vectors_of_two_lengths_in_one_request_fail_it(play, embed_model):
    class Growing:
        name = "cpu-0"

        def __init__(self):
            self.calls = 0

        async def embed(self, call):
            self.calls += 1
            length = 8 if self.calls == 1 else 16
            return EmbedAnswer([fake_vector(text, length) for text in call.inputs], None)

        async def aclose(self):
            pass

    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = Growing()
        reply = await site.embed(["one", "two", "three"])
        assert (reply.status, reply.error["code"]) == (502, "engine_broken_answer")

    play(scenario, models={"embed": embed_model(batch={"items_max": 2})})


def test_vectors_of_another_length_than_was_asked_fail_the_batch(play):
    class Fixed:
        name = "cpu-0"

        async def embed(self, call):
            return EmbedAnswer([fake_vector(text, 8) for text in call.inputs], None)

        async def aclose(self):
            pass

    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = Fixed()
        reply = await site.embed(["one"], fields={"dimensions": 4})
        assert (reply.status, reply.error["code"]) == (502, "engine_broken_answer")
        assert (await site.embed(["one"], fields={"dimensions": 8})).status == 200

    play(scenario)


@pytest.mark.embedded
def test_a_tokenizer_file_counts_for_an_engine_that_gets_texts(play, embed_model, tmp_path):
    words = "nineteen short words that are not many " * 2

    async def scenario(site):
        reply = await site.embed([words])
        assert reply.json["usage"]["prompt_tokens"] == len(MiniLmTokenizer().encode([words])[0])
        assert site.engines["cpu-0"].calls[0].inputs == [words]
        long = await site.embed(["word " * 30])
        assert (long.status, long.error["param"]) == (400, "input[0]")
        assert "has 32 tokens, and the most is 20" in long.error["message"]

    from taketurns.engines import weights

    path = str(weights.find(weights.MINILM_TOKENIZER))
    play(scenario, models={"embed": embed_model(tokenizer=path, input_tokens_max=20)})


def test_a_lingering_engine_gets_what_comes_in_the_meantime(play, embed_model):
    async def scenario(site):
        tasks = [site.start(site.embed([f"t{number}"])) for number in range(4)]
        for task in tasks:
            assert (await task).status == 200
        assert [len(call.inputs) for call in site.engines["cpu-0"].calls] == [4]

    play(scenario, models={"embed": embed_model(batch={"linger": "1s", "items_max": 4})})


def test_an_input_type_puts_its_prefix_before_each_text(play, embed_model):
    async def scenario(site):
        for kind in ("search_query", "search_document", "clustering"):
            body = {
                "model": "embed",
                "texts": ["a"],
                "input_type": kind,
                "embedding_types": ["float"],
            }
            assert (await site.post("/v2/embed", body)).status == 200
        assert vectors_sent(site) == ["query: a", "passage: a", "a"]

    prefixes = {"search_query": "query: ", "search_document": "passage: "}
    play(scenario, models={"embed": embed_model(input_types=prefixes)})


def vectors_sent(site):
    return [text for call in site.engines["cpu-0"].calls for text in call.inputs]


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_an_engine_that_can_cut_is_told_to_and_others_are_not(play, kind):
    async def scenario(site):
        for cut in ("END", "NONE"):
            body = {"model": "embed", "texts": ["a"], "truncate": cut, "input_type": "clustering"}
            body["embedding_types"] = ["float"]
            assert (await site.post("/v2/embed", body)).status == 200
        told = [b"truncate_prompt_tokens" in r.body for r in site.backends[0].requests]
        assert told == [kind == "vllm", False]

    engine = {"url": "http://backend-0", "slots": 1, "kind": kind}
    model = {"endpoints": ["embeddings"], "engines": [engine], "health": QUIET}
    play(scenario, backends=1, models={"embed": model})


def test_pairs_of_several_queries_go_one_query_a_call_where_an_engine_takes_one(play):
    async def scenario(site):
        queries, documents = ["q1", "q2", "q1"], ["a", "b", "c"]
        body = {"model": "rank", "text_1": queries, "text_2": documents}
        reply = await site.post("/score", body)
        scores = [item["score"] for item in reply.json["data"]]
        assert scores == [fake_score(*pair) for pair in zip(queries, documents, strict=True)]
        assert len(site.backends[0].requests) == 3

    play(scenario, backends=1, models=rank("llamacpp"))


@pytest.mark.parametrize(("times", "status"), [(2, 200), (3, 503)])
def test_a_batch_that_a_full_engine_turns_away_is_tried_again(play, times, status):
    async def scenario(site):
        full = EngineRefusedError("cpu-0", 429, b"")
        site.engines["cpu-0"]._script.extend([full] * times)
        reply = await site.embed(["one", "two"])
        assert reply.status == status
        assert len(site.engines["cpu-0"].calls) == 3
        if status == 503:
            assert reply.error["code"] == "engine_busy"
            assert reply.headers["x-request-executed"] == "no"

    play(scenario)
