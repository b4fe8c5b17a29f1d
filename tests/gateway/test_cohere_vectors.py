# SPDX-License-Identifier: Apache-2.0
"""Cohere's own client embeds and reranks, in both versions; its errors are of the right class."""

import asyncio
import base64
import contextlib
from array import array

import cohere
import pytest
from cohere.core.request_options import RequestOptions

from taketurns.errors import EngineBrokenError, EngineRefusedError, EngineTimeoutError
from taketurns.system import wall_time_s
from taketurns.testing.engine import fake_vector

ONCE = RequestOptions(max_retries=0)
CLIENTS = {"1": cohere.AsyncClient, "2": cohere.AsyncClientV2}


@contextlib.asynccontextmanager
async def client(site, version, tenant="acme", key=None):
    made = CLIENTS[version](api_key=key or site.keys[tenant], base_url=site.url)
    async with made as opened:
        yield opened


@pytest.fixture
def vectors(embed_model):
    """A model for both endpoints, beside none for chat."""
    return {"embed": embed_model(endpoints=["embeddings", "rerank"])}


def numbers(text, length=8):
    return array("f", fake_vector(text, length)).tolist()


def test_version_2_embeds_in_every_type(play, vectors):
    async def scenario(site):
        async with client(site, "2") as co:
            told = await co.embed(
                model="embed",
                texts=["a", "b"],
                input_type="search_document",
                embedding_types=["float", "int8", "uint8", "binary", "ubinary", "base64"],
                priority=7,
            )
            made = told.embeddings
            assert made.float_ == [numbers("a"), numbers("b")]
            packed = [array("f", base64.b64decode(text)).tolist() for text in made.base64]
            assert packed == made.float_
            assert {len(row) for row in made.int8 + made.uint8} == {8}
            assert {len(row) for row in made.binary + made.ubinary} == {1}
            assert told.texts == ["a", "b"]
            assert told.response_type == "embeddings_by_type"
            assert told.meta.billed_units.input_tokens == 2
            assert told.id == site.records[-1].request_id
            short = await co.embed(
                model="embed", texts=["a"], input_type="search_query", output_dimension=4
            )
            assert short.embeddings.float_ == [numbers("a", 4)]

    play(scenario, models=vectors)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic, in the client
def test_version_1_embeds_many_texts_as_its_client_splits_them(play, vectors):
    texts = [f"text {number}" for number in range(200)]

    async def scenario(site):
        async with client(site, "1") as co:
            told = await co.embed(texts=texts, model="embed", input_type="clustering")
            assert told.embeddings == [numbers(text) for text in texts]
            typed = await co.embed(
                texts=texts, model="embed", input_type="clustering", embedding_types=["int8"]
            )
            assert len(typed.embeddings.int8) == 200
        assert sorted(record.items for record in site.records) == [8, 8, 96, 96, 96, 96]

    play(scenario, models=vectors)


@pytest.mark.parametrize("version", ["1", "2"])
def test_rerank_tells_the_best_first(play, vectors, version):
    async def scenario(site):
        async with client(site, version) as co:
            told = await co.rerank(model="embed", query="q", documents=["x", "q", "y"], top_n=2)
            assert told.results[0].index == 1
            assert told.results[0].relevance_score == pytest.approx(1)
            assert len(told.results) == 2
            assert told.meta.billed_units.search_units == 1

    play(scenario, models=vectors)


def test_version_1_may_ask_for_the_documents_back_and_leave_the_model_out(play, vectors):
    async def scenario(site):
        async with client(site, "1") as co:
            told = await co.rerank(
                query="q",
                documents=[{"title": "q"}, {"title": "z"}],
                rank_fields=["title"],
                return_documents=True,
            )
            assert {item.document.text for item in told.results} == {"title: q", "title: z"}
            assert site.records[-1].model == "embed"

    play(scenario, models=vectors)


async def fails(kind, call):
    with pytest.raises(kind) as caught:
        await call
    assert type(caught.value) is kind
    return caught.value


def test_errors_come_as_the_classes_that_its_users_catch(play, vectors):
    async def scenario(site):
        def embed(co, **more):
            asked = {"model": "embed", "texts": ["a"], "input_type": "search_query", **more}
            return co.embed(request_options=ONCE, **asked)

        async with client(site, "2", key="sk-tt-nobody") as co:
            await fails(cohere.UnauthorizedError, embed(co))
        async with client(site, "2") as co:
            error = await fails(cohere.BadRequestError, embed(co, texts=["x"] * 97))
            assert error.body["message"].startswith("`texts` has 97 entries")
            assert error.body["id"] == site.records[-1].request_id
            await fails(cohere.NotFoundError, embed(co, model="no-such"))
            error = await fails(cohere.UnprocessableEntityError, embed(co, images=["data:,"]))
            assert "`images`" in error.body["message"]
            engine = site.engines["cpu-0"]
            for raised, kind in [
                (EngineRefusedError("cpu-0", 429, b""), cohere.ServiceUnavailableError),
                (EngineTimeoutError("cpu-0", "late"), cohere.GatewayTimeoutError),
            ]:
                # More often than it's tried again.
                engine._script.extend([raised] * 9)
                await fails(kind, embed(co))
                engine._script.clear()
            engine._script.append(EngineBrokenError("cpu-0", "broken"))
            error = await fails(cohere.core.ApiError, embed(co))
            assert error.status_code == 502

    play(scenario, models=vectors)


LIMIT = {"endpoint": "embeddings", "unit": "inputs", "per": "minute", "max": 3, "name": "few"}


def test_a_limit_is_a_429_and_a_month_used_up_is_a_402_that_isnt_tried_again(play, vectors):
    month = {"tenant": "pico", "unit": "requests", "per": "month", "max": 1, "name": "m"}

    async def scenario(site):
        asked = {"model": "embed", "texts": ["a", "b"], "input_type": "search_query"}
        async with client(site, "2") as co:
            await co.embed(**asked)
            error = await fails(
                cohere.TooManyRequestsError, co.embed(request_options=ONCE, **asked)
            )
            assert error.body["limit"]["name"] == "few"
            assert int(error.headers["retry-after"]) >= 1
            assert error.headers["x-ratelimit-limit"] == "3"
            assert error.headers["x-ratelimit-remaining"] == "1"
            reset_s = int(error.headers["x-ratelimit-reset"])
            assert 0 < reset_s - wall_time_s() <= 61
            assert error.headers["ratelimit-policy"] == '"few";q=3;w=60;qu="inputs"'
            assert error.headers["ratelimit"].startswith('"few";r=1;t=')
            assert "x-ratelimit-limit-requests" not in error.headers
        async with client(site, "2", tenant="pico") as co:
            await co.rerank(model="embed", query="q", documents=["d"])
            before = len(site.records)
            error = await fails(
                cohere.core.ApiError, co.rerank(model="embed", query="q", documents=["d"])
            )
            assert error.status_code == 402
            assert len(site.records) == before + 1
            assert site.records[-1].code == "insufficient_quota"
        reply = await site.embed(["x"], tenant="pico")
        assert (reply.status, reply.error["code"]) == (429, "insufficient_quota")

    play(scenario, models=vectors, limits=[LIMIT, month])


def test_priority_is_first_by_default_and_clamped_by_the_tenants_ceiling(play, vectors):
    tenants = {"acme": {"tier": "production"}, "globex": {"tier": "production", "min_priority": 50}}

    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        first = site.start(site.embed(["held"], tenant="globex"))
        await engine.executed.reached(1)
        body = {"model": "embed", "texts": ["x"], "input_type": "search_query"}
        asked = [
            ("/v2/embed", {**body, "texts": ["late"], "priority": 999}, {}),
            ("/v1/embeddings", {"model": "embed", "input": "openai"}, {}),
            ("/v2/embed", {**body, "texts": ["default"]}, {}),
            ("/v2/embed", {**body, "texts": ["own"], "taketurns": {"priority": 400}}, {}),
            ("/v2/embed", {**body, "texts": ["header"]}, {"taketurns-priority": "450"}),
        ]
        tasks = []
        for number, (path, sent, headers) in enumerate(asked, 1):
            tasks.append(site.start(site.post(path, sent, tenant="globex", headers=headers)))
            await site.queued("embed", number)
        waiting = site.scheduler("embed").snapshot()
        assert waiting.queued == len(asked)
        engine.release()
        for task in [first, *tasks]:
            assert (await task).status == 200
        order = [text for call in engine.calls[1:] for text in call.inputs]
        assert order == ["default", "own", "header", "openai", "late"]

    play(
        scenario, models={"embed": vectors["embed"] | {"batch": {"items_max": 1}}}, tenants=tenants
    )


@pytest.mark.parametrize("wrong", [1000, -1, "high"])
def test_a_priority_that_cant_be_is_refused(play, vectors, wrong):
    async def scenario(site):
        body = {"model": "embed", "texts": ["x"], "input_type": "search_query", "priority": wrong}
        reply = await site.post("/v2/embed", body)
        assert reply.status == 400
        assert reply.json["message"].startswith("`priority` must be")

    play(scenario, models=vectors)


def test_a_deadline_may_stand_in_the_body(play, vectors):
    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        held = site.start(site.embed(["held"]))
        await engine.executed.reached(1)
        body = {"model": "embed", "texts": ["x"], "input_type": "search_query"}
        late = await site.post("/v2/embed", {**body, "taketurns": {"deadline_ms": 20}})
        assert (late.status, late.json["code"]) == (429, "queue_timeout")
        engine.release()
        await held

    play(scenario, models=vectors)


def test_the_synchronous_clients_do_as_well(play, vectors):
    async def scenario(site):
        def work():
            with cohere.ClientV2(api_key=site.keys["acme"], base_url=site.url) as two:
                embedded = two.embed(model="embed", texts=["a"], input_type="search_query")
            with cohere.Client(api_key=site.keys["acme"], base_url=site.url) as one:
                ranked = one.rerank(model="embed", query="a", documents=["a", "b"])
            return embedded.embeddings.float_, ranked.results[0].index

        assert await asyncio.to_thread(work) == ([numbers("a")], 0)

    play(scenario, models=vectors)
