# SPDX-License-Identifier: Apache-2.0
"""Embeddings come in order and to the right caller, whatever batches they went through."""

import asyncio
import base64
from array import array

import pytest

from taketurns.errors import EngineRefusedError, EngineUnavailableError
from taketurns.gateway.counting import divide
from taketurns.ports.engine import EmbedAnswer
from taketurns.testing.engine import fake_tokens, fake_vector
from taketurns.testing.http_engine import Fault


def vectors_of(reply):
    assert reply.status == 200, reply.body
    data = reply.json["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [base64.b64decode(item["embedding"]) for item in data]


def own(texts, length=8):
    return [fake_vector(text, length) for text in texts]


def http_model(embed_model, count=1, **more):
    engines = [{"url": f"http://backend-{number}", "slots": 1} for number in range(count)]
    return {"embed": embed_model(engines=engines, **more)}


@pytest.mark.parametrize("backends", [1, 3])
def test_many_texts_come_back_in_order_over_several_batches_and_engines(
    play, embed_model, backends
):
    texts = [f"text number {number}" for number in range(157)]

    async def scenario(site):
        assert vectors_of(await site.embed(texts)) == own(texts)
        (record,) = site.records
        assert (record.items, record.outcome, record.status) == (157, "completed", 200)
        assert record.input_tokens == record.cost == sum(map(fake_tokens, texts))
        sent = [len(backend.requests) for backend in site.backends]
        assert sum(sent) >= 157 / 10
        assert all(sent)

    play(
        scenario,
        backends=backends,
        models=http_model(embed_model, backends, batch={"items_max": 10}),
    )


def test_the_official_client_gets_the_same_numbers_in_both_encodings(play):
    texts = ["one", "two words", "three words here"]

    async def scenario(site):
        client = await site.openai()
        expected = [list(memoryview(vector).cast("f")) for vector in own(texts)]
        by_default = await client.embeddings.create(model="embed", input=texts)
        as_numbers = await client.embeddings.create(
            model="embed", input=texts, encoding_format="float"
        )
        assert [item.embedding for item in by_default.data] == expected
        assert [item.embedding for item in as_numbers.data] == expected
        assert by_default.model == "embed"
        assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == 6
        one = await client.embeddings.create(model="embed", input="alone")
        assert [item.embedding for item in one.data] == [
            list(memoryview(fake_vector("alone")).cast("f"))
        ]

    play(scenario)


def test_token_ids_are_embedded_as_they_came(play):
    async def scenario(site):
        assert vectors_of(await site.embed([5, 6, 7])) == own([[5, 6, 7]])
        assert vectors_of(await site.embed([[1, 2], [3]])) == own([[1, 2], [3]])
        assert site.engines["cpu-0"].calls[0].inputs == [[5, 6, 7]]

    play(scenario)


def test_a_batch_mixes_tenants_and_nobody_sees_anothers_vector(play, embed_model):
    tenants = ["acme", "globex"]

    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        blocker = site.start(site.embed(["blocker"]))
        await engine.executed.reached(1)
        sent = {}
        for number in range(20):
            tenant = tenants[number % 2]
            texts = [f"{tenant} secret {number} part {part}" for part in range(1 + number % 5)]
            sent[number] = (texts, site.start(site.embed(texts, tenant=tenant)))
        await site.queued("embed", sum(len(texts) for texts, _ in sent.values()))
        engine.release()
        await blocker
        for texts, task in sent.values():
            assert vectors_of(await task) == own(texts)
        mixed = [
            call for call in engine.calls if len({text.split()[0] for text in call.inputs}) > 1
        ]
        assert mixed

    play(scenario, models={"embed": embed_model(batch={"items_max": 7})})


class Picky:
    """Embeds all but texts with a certain word, for which it refuses the whole call."""

    name = "cpu-0"

    def __init__(self, status=400):
        self.status = status
        self.calls = []

    async def start(self):
        pass

    async def aclose(self):
        pass

    async def embed(self, call):
        self.calls.append(call)
        if any("bad" in text for text in call.inputs):
            body = b'{"error":{"message":"input is bad","param":"input"}}'
            raise EngineRefusedError(self.name, self.status, body)
        return EmbedAnswer([fake_vector(text) for text in call.inputs], None)


async def blocked(site):
    """Take the engine's one slot with a call that is held; return the fake and the call's task."""
    engine = site.engines["cpu-0"]
    engine.hold()
    task = site.start(site.embed(["blocker"]))
    await engine.executed.reached(1)
    return engine, task


@pytest.mark.parametrize("engine_status", [400, 413, 422])
def test_a_refused_text_fails_only_its_own_request(play, engine_status):
    async def scenario(site):
        engine, blocker = await blocked(site)
        picky = site.pool("embed").engines["cpu-0"] = Picky(engine_status)
        good = [site.start(site.embed([f"fine {n}", "fine too"])) for n in range(3)]
        bad = site.start(site.embed(["fine", "bad"], tenant="globex"))
        await site.queued("embed", 8)
        engine.release()
        await blocker
        for number, task in enumerate(good):
            assert vectors_of(await task) == own([f"fine {number}", "fine too"])
        reply = await bad
        assert reply.status == 400
        assert reply.error["message"].startswith("input is bad")
        assert reply.error["param"] == "input"
        assert len(picky.calls[0].inputs) == 8
        assert len(picky.calls) == 1 + 4

    play(scenario)


def test_an_engine_that_does_not_know_the_model_is_nobody_elses_fault(play, caplog):
    async def scenario(site):
        engine, blocker = await blocked(site)
        picky = site.pool("embed").engines["cpu-0"] = Picky(404)
        tasks = [site.start(site.embed(["bad", f"text {n}"])) for n in range(3)]
        await site.queued("embed", 6)
        engine.release()
        await blocker
        for task in tasks:
            reply = await task
            assert (reply.status, reply.error["code"]) == (502, "engine_failed")
        # No search for a bad text: all would be refused.
        assert len(picky.calls) == 1
        assert "answered 404. Does it know the model by the name that is configured" in caplog.text

    play(scenario)


@pytest.mark.parametrize(("most", "status"), [(4, 200), (3, 400), (None, 200)])
def test_a_request_has_so_many_tokens_in_all(play, embed_model, most, status):
    async def scenario(site):
        reply = await site.embed([[1, 2], [3, 4]])
        assert reply.status == status
        if status == 400:
            assert reply.error["param"] == "input"
            assert "has 4 tokens in all, and the most is 3" in reply.error["message"]
            assert not site.engines["cpu-0"].calls

    play(scenario, models={"embed": embed_model(request_tokens_max=most)})


def test_openai_s_own_limit_is_the_default(play):
    async def scenario(site):
        section = site.pool("embed").model.section
        assert section.request_tokens_max == 300_000

    play(scenario)


def test_a_batch_of_one_request_is_not_sent_twice_when_it_is_refused(play):
    async def scenario(site):
        picky = site.pool("embed").engines["cpu-0"] = Picky()
        assert (await site.embed(["bad", "worse bad"])).status == 400
        assert len(picky.calls) == 1

    play(scenario)


@pytest.mark.parametrize("vectors", ["missing", "repeated"])
def test_an_answer_that_does_not_fit_its_batch_fails_that_batch_alone(play, embed_model, vectors):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(vectors=vectors)
        reply = await site.embed(["one", "two"])
        assert reply.status == 502
        assert reply.error["code"] == "engine_broken_answer"
        assert reply.headers["x-request-executed"] == "unknown"
        assert vectors_of(await site.embed(["three"])) == own(["three"])

    play(scenario, backends=1, models=http_model(embed_model))


class Miscounting(Picky):
    """Breaks its contract: gives one vector too few, or fails in a way nobody foresaw."""

    async def embed(self, call):
        self.calls.append(call)
        if len(self.calls) == 1:
            return EmbedAnswer([fake_vector(text) for text in call.inputs[1:]], None)
        if len(self.calls) == 2:
            raise ZeroDivisionError("secret prompt")
        return EmbedAnswer([fake_vector(text) for text in call.inputs], None)


def test_an_engine_that_breaks_its_contract_fails_its_batch_and_not_the_gateway(play):
    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = Miscounting()
        for _ in range(2):
            reply = await site.embed(["one", "two"])
            assert reply.status == 502
            assert reply.error["code"] == "engine_broken_answer"
        assert vectors_of(await site.embed(["three"])) == own(["three"])

    play(scenario)


def test_vectors_out_of_order_are_put_in_order(play, embed_model):
    async def scenario(site):
        site.backends[0].faults[1] = Fault(vectors="reversed")
        assert vectors_of(await site.embed(["one", "two", "three"])) == own(["one", "two", "three"])

    play(scenario, backends=1, models=http_model(embed_model))


def test_a_client_that_hangs_up_takes_its_waiting_texts_out(play, embed_model):
    async def scenario(site):
        engine, blocker = await blocked(site)
        wire = await site.wire()
        texts = [f"left {number}" for number in range(30)]
        await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": texts}))
        await site.queued("embed", 30)
        stays = site.start(site.embed(["stays"], tenant="globex"))
        await site.queued("embed", 31)
        wire.cut()
        await site.queued("embed", 1)
        assert site.pool("embed").items == 2
        engine.release()
        await blocker
        assert vectors_of(await stays) == own(["stays"])
        assert not any("left" in text for call in engine.calls for text in call.inputs)
        gone = next(record for record in site.records if record.items == 30)
        assert (gone.outcome, gone.status, gone.cost) == ("cancelled", 499, 0)
        assert gone.wait_s is None

    play(scenario, models={"embed": embed_model(batch={"items_max": 8})})


def test_a_client_that_hangs_up_mid_batch_leaves_the_rest_of_the_batch_alone(play, embed_model):
    async def scenario(site):
        engine, blocker = await blocked(site)
        wire = await site.wire()
        texts = [f"left {number}" for number in range(6)]
        await wire.send(site.raw_post("/v1/embeddings", {"model": "embed", "input": texts}))
        await site.queued("embed", 6)
        stays = site.start(site.embed(["stays"], tenant="globex"))
        await site.queued("embed", 7)
        engine.release()
        engine.hold()
        await blocker
        await engine.executed.reached(2)
        assert "stays" in engine.calls[1].inputs
        wire.cut()
        await site.queued("embed", 0)
        engine.release()
        assert vectors_of(await stays) == own(["stays"])
        assert len(engine.calls) == 2
        gone = next(record for record in site.records if record.items == 6)
        assert (gone.outcome, gone.status) == ("cancelled", 499)
        assert gone.wait_s is not None

    play(scenario, models={"embed": embed_model(batch={"items_max": 4, "tokens_max": 16})})


def test_dimensions_are_asked_of_the_engine_and_never_mixed_in_one_call(play):
    async def scenario(site):
        engine, blocker = await blocked(site)
        lengths = [None, 4, 16, 4, None, 16]
        tasks = []
        for number, length in enumerate(lengths):
            fields = {} if length is None else {"dimensions": length}
            tasks.append(site.start(site.embed([f"t{number}"], fields=fields)))
        await site.queued("embed", 6)
        engine.release()
        await blocker
        for number, (length, task) in enumerate(zip(lengths, tasks, strict=True)):
            assert vectors_of(await task) == own([f"t{number}"], length or 8)
        seen = {call.dimensions: sorted(call.inputs) for call in engine.calls[1:]}
        assert seen == {None: ["t0", "t4"], 4: ["t1", "t3"], 16: ["t2", "t5"]}

    play(scenario)


def test_a_model_of_one_length_refuses_dimensions(play, embed_model):
    async def scenario(site):
        reply = await site.embed(["x"], fields={"dimensions": 4})
        assert (reply.status, reply.error["param"]) == (400, "dimensions")
        assert not site.engines["cpu-0"].calls

    play(scenario, models={"embed": embed_model(dimensions=False)})


def test_a_full_queue_of_a_tenant_is_429_and_a_full_pool_503_both_with_a_time_to_return(
    play, embed_model
):
    async def scenario(site):
        engine, blocker = await blocked(site)
        waiting = [site.start(site.embed([f"a{n}"])) for n in range(4)]
        await site.queued("embed", 4)
        reply = await site.embed(["a", "b"])
        assert (reply.status, reply.error["code"]) == (429, "tenant_queue_full")
        assert reply.error["type"] == "rate_limit_error"
        assert site.scheduler("embed").queued == 4
        waiting += [site.start(site.embed([f"b{n}"], tenant="globex")) for n in range(4)]
        await site.queued("embed", 8)
        full = await site.embed(["x"], tenant="pico")
        assert (full.status, full.error["code"]) == (503, "pool_queue_full")
        for refused in (reply, full):
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
            assert int(refused.headers["retry-after-ms"]) >= 1000
            assert refused.headers["x-request-executed"] == "no"
        engine.release()
        for task in [blocker, *waiting]:
            assert (await task).status == 200
        refusals = [record for record in site.records if record.outcome == "refused"]
        assert [(record.status, record.cost) for record in refusals] == [(429, 0), (503, 0)]

    play(scenario, models={"embed": embed_model(tenant_queue_max=5, queue_max=8)})


def test_a_request_with_more_texts_than_its_tenants_queue_holds_is_refused_whole(play, embed_model):
    async def scenario(site):
        reply = await site.embed([f"t{n}" for n in range(9)])
        assert (reply.status, reply.error["code"]) == (429, "tenant_queue_full")
        assert not site.engines["cpu-0"].calls

    play(scenario, models={"embed": embed_model(tenant_queue_max=5)})


def test_a_request_that_waits_past_its_tiers_limit_is_429_queue_timeout(play):
    async def scenario(site):
        engine, blocker = await blocked(site)
        reply = await site.embed(["late", "later"], tenant="pico")
        assert (reply.status, reply.error["code"]) == (429, "queue_timeout")
        assert reply.headers["x-request-executed"] == "no"
        assert reply.headers["Retry-After"]
        assert site.scheduler("embed").queued == 0
        engine.release()
        await blocker
        late = next(record for record in site.records if record.tenant == "pico")
        assert (late.outcome, late.status, late.cost) == ("expired", 429, 0)

    tiers = {"production": {"rank": 0}, "trial": {"rank": 1, "queue_timeout": "0.05s"}}
    play(scenario, tiers=tiers)


def test_a_request_of_which_a_part_ran_before_it_expired_does_not_say_not_executed(
    play, embed_model
):
    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine.hold()
        reply = await site.embed(["one", "two", "three"], tenant="pico")
        assert (reply.status, reply.error["code"]) == (429, "queue_timeout")
        assert reply.headers["x-request-executed"] == "unknown"
        engine.release()
        await site.settle()
        assert len(engine.calls) == 1

    tiers = {"production": {"rank": 0}, "trial": {"rank": 1, "queue_timeout": "0.05s"}}
    play(scenario, tiers=tiers, models={"embed": embed_model(batch={"items_max": 1})})


def test_texts_are_settled_by_the_engines_count(play, embed_model):
    async def scenario(site):
        # 40 characters are estimated at 10 tokens; the engine counts words.
        texts = ["a " * 20, "b" * 40]
        reply = await site.embed(texts)
        assert reply.json["usage"] == {"prompt_tokens": 21, "total_tokens": 21}
        (record,) = site.records
        assert record.cost == record.input_tokens == 21

    play(scenario, backends=1, models=http_model(embed_model))


def test_an_engine_that_can_not_be_reached_costs_nothing_and_says_so(play, embed_model):
    async def scenario(site):
        await site.backends[0].refuse()
        reply = await site.embed(["one"])
        assert (reply.status, reply.error["code"]) == (503, "no_capacity")
        assert reply.headers["x-request-executed"] == "no"
        assert site.records[0].cost == 0
        # For a moment nobody waits for an engine that isn't there.
        assert (await site.embed(["meanwhile"])).error["code"] == "no_capacity"
        await site.backends[0].listen()
        await site.until(lambda: site.pool("embed").availability.any)
        assert vectors_of(await site.embed(["two"])) == own(["two"])

    play(scenario, backends=1, models=http_model(embed_model))


def test_a_part_that_ran_before_the_engine_was_lost_is_charged_and_told(play, embed_model):
    async def scenario(site):
        engine = site.engines["cpu-0"]
        engine._script.extend([None, EngineUnavailableError("cpu-0", "staged")])
        reply = await site.embed(["first text", "second", "third"])
        assert (reply.status, reply.headers["x-request-executed"]) == (503, "unknown")
        assert site.records[0].cost == fake_tokens("first text")

    play(scenario, models={"embed": embed_model(batch={"items_max": 1})})


def test_texts_over_the_limit_are_refused_by_their_index(play, embed_model):
    async def scenario(site):
        reply = await site.embed(["fine", "x" * 41])
        assert (reply.status, reply.error["param"]) == (400, "input[1]")
        reply = await site.embed([[1] * 10, [1] * 11])
        assert (reply.status, reply.error["param"]) == (400, "input[1]")
        reply = await site.embed(["t"] * 4)
        assert (reply.status, reply.error["param"]) == (400, "input")
        assert vectors_of(await site.embed(["x" * 40])) == own(["x" * 40])

    play(scenario, models={"embed": embed_model(input_tokens_max=10, inputs_max=3)})


def test_hundreds_of_requests_at_once_all_get_their_own_vectors(play, embed_model):
    async def ask(site, number):
        texts = [f"canary {number} {part}" for part in range(1 + number % 7)]
        tenant = ("acme", "globex", "pico")[number % 3]
        assert vectors_of(await site.embed(texts, tenant=tenant)) == own(texts)

    async def scenario(site):
        await asyncio.gather(*(ask(site, number) for number in range(300)))
        assert len(site.records) == 300

    models = http_model(embed_model, 2, batch={"items_max": 16, "tokens_max": 64})
    play(scenario, backends=2, models=models)


def test_a_count_is_divided_in_proportion_and_whole():
    assert divide(10, [1, 1, 3]) == [2, 2, 6]
    assert divide(2, [5, 5, 5]) == [1, 1, 1]
    assert divide(7, [7]) == [7]
    for total in range(3, 40):
        assert sum(divide(total, [1, 20, 3])) == total


class Letters:
    """A tokenizer whose tokens are a text's letters, and one at each end."""

    vocabulary_size = 200

    def __init__(self):
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return [[1, *(ord(letter) % 100 + 2 for letter in text), 2] for text in texts]


def counted_by_letters(site):
    counter = site.pool("embed").counter
    counter.tokenizer, counter.as_ids = Letters(), True
    return counter.tokenizer


def test_with_a_tokenizer_the_engine_gets_ids_and_the_count_is_exact(play, embed_model):
    async def scenario(site):
        letters = counted_by_letters(site)
        long = "x" * 20_000
        reply = await site.embed(["ab", long])
        ids = letters.encode(["ab", long])
        assert vectors_of(reply) == own(ids)
        # Not what the engine counts, which is one for each id here too.
        assert reply.json["usage"]["prompt_tokens"] == 4 + 20_002
        assert site.records[0].cost == site.records[0].input_tokens == 4 + 20_002
        assert vectors_of(await site.embed([[1, 5, 2]])) == own([[1, 5, 2]])

    play(scenario, models={"embed": embed_model(input_tokens_max=None)})


def test_with_a_tokenizer_limits_are_in_tokens_and_ids_in_its_vocabulary(play, embed_model):
    async def scenario(site):
        counted_by_letters(site)
        reply = await site.embed(["abc", "abcdefgh"])
        assert (reply.status, reply.error["param"]) == (400, "input[1]")
        assert "has 10 tokens, and the most is 8" in reply.error["message"]
        reply = await site.embed([[1, 199], [200]])
        assert (reply.status, reply.error["param"]) == (400, "input[1]")
        assert "go up to 199" in reply.error["message"]
        assert not site.engines["cpu-0"].calls

    play(scenario, models={"embed": embed_model(input_tokens_max=8)})


def test_many_numbers_are_written_as_right_as_few(play):
    texts = [f"t{number}" for number in range(600)]

    async def scenario(site):
        reply = await site.embed(texts, fields={"encoding_format": "float", "dimensions": 32})
        data = reply.json["data"]
        assert [item["index"] for item in data] == list(range(600))
        assert [array("f", item["embedding"]).tobytes() for item in data] == own(texts, 32)

    play(scenario)


def test_a_count_that_can_not_be_true_is_not_believed(play):
    class Boastful(Picky):
        async def embed(self, call):
            return EmbedAnswer([fake_vector(text) for text in call.inputs], 10**400)

    async def scenario(site):
        site.pool("embed").engines["cpu-0"] = Boastful()
        reply = await site.embed(["x" * 40])
        assert reply.json["usage"]["prompt_tokens"] == site.records[0].cost == 10

    play(scenario)
