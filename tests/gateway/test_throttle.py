# SPDX-License-Identifier: Apache-2.0
"""What can't start within its wait target is refused at once, with figures, and costs nothing."""

import pytest

from taketurns.core.throttle import RATE_ONE, Prediction

TIERS = {"production": {"rank": 0, "wait_target": "2s"}, "trial": {"rank": 1}}


class Predicts:
    """Stands in for the scheduler's prediction, and keeps what it was asked."""

    def __init__(self, prediction):
        self.prediction = prediction
        self.asked = []

    def predict(self, ticket, now_us, *, target_us, ahead=0, counts=True):
        self.asked.append((ticket, ahead))
        return self.prediction


def predict(site, model, **parts):
    predicts = Predicts(Prediction(**{"rate": RATE_ONE, **parts}))
    site.pool(model)._throttle._scheduler = predicts
    return predicts


LATE_BY_SHARE = {"wait_us": 5_000_000, "newcomer_us": 1_000, "own": 700, "slot_us": 10}
LATE_BY_CAPACITY = {"wait_us": 5_000_000, "newcomer_us": 4_000_000, "own": 700}


@pytest.mark.parametrize(
    ("parts", "status", "code", "reason"),
    [
        (LATE_BY_SHARE, 429, "would_wait_too_long", "share"),
        (LATE_BY_CAPACITY, 503, "overloaded", "capacity"),
    ],
)
@pytest.mark.parametrize("endpoint", ["chat", "embed"])
def test_a_late_request_is_refused_with_the_reason_and_costs_nothing(
    play, endpoint, parts, status, code, reason
):
    async def scenario(site):
        predict(site, endpoint, **parts)
        reply = await (site.chat() if endpoint == "chat" else site.embed(["a", "b"]))
        assert (reply.status, reply.error["code"]) == (status, code)
        assert "5 s" in reply.error["message"]
        assert "2 s" in reply.error["message"]
        assert reply.headers["x-request-executed"] == "no"
        assert int(reply.headers["retry-after-ms"]) >= 1
        figures = reply.json["throttle"]
        assert (figures["reason"], figures["predicted_wait_s"], figures["target_s"]) == (
            reason,
            5.0,
            2.0,
        )
        assert ("own_cost_in_front" in figures) is (reason == "share")
        (record,) = site.records
        assert (record.outcome, record.cost, record.wait_s) == ("refused", 0, None)
        metrics = (await site.admin("/metrics")).body.decode()
        labels = f'mode="enforce",model="{endpoint}",reason="{reason}"'
        assert f"taketurns_throttle_refusals_total{{{labels}}} 1.0" in metrics

    play(scenario, tiers=TIERS)


@pytest.mark.parametrize("parts", [LATE_BY_SHARE, LATE_BY_CAPACITY])
def test_those_refused_together_are_told_moments_apart(play, parts):
    async def scenario(site):
        predict(site, "embed", **parts, rate=RATE_ONE // 50_000)
        replies = [await site.embed(["a", "b"]) for _ in range(30)]
        waits_ms = [int(reply.headers["retry-after-ms"]) for reply in replies]
        # None of them beyond the first by more than the target.
        assert max(waits_ms) <= waits_ms[0] + 2_000
        assert len(set(waits_ms)) > 10
        assert waits_ms[0] < waits_ms[1] < waits_ms[2]

    play(scenario, tiers=TIERS)


def test_a_refusal_by_the_throttle_leaves_nothing_in_the_limits(play):
    async def scenario(site):
        predict(site, "chat", **LATE_BY_SHARE)
        assert (await site.chat()).status == 429
        site.pool("chat")._throttle._scheduler = site.scheduler("chat")
        reply = await site.chat()
        assert reply.status == 200
        assert reply.headers["x-ratelimit-remaining-requests"] == "4"

    play(scenario, tiers=TIERS, limits=[{"unit": "requests", "per": "hour", "max": 5}])


def test_what_starts_in_time_and_what_nothing_is_known_of_is_let_in(play):
    async def scenario(site):
        for wait_us in (None, 0, 1_999_999):
            predict(site, "chat", wait_us=wait_us)
            assert (await site.chat()).status == 200

    play(scenario, tiers=TIERS)


def test_a_clients_own_deadline_shortens_the_target_and_never_lengthens_it(play):
    async def scenario(site):
        predict(site, "chat", wait_us=1_000_000)
        assert (await site.chat()).status == 200
        reply = await site.chat(headers={"taketurns-deadline-ms": "500"})
        assert (reply.status, reply.json["throttle"]["target_s"]) == (429, 0.5)
        predict(site, "chat", wait_us=5_000_000)
        reply = await site.chat(headers={"taketurns-deadline-ms": "60000"})
        assert (reply.status, reply.json["throttle"]["target_s"]) == (429, 2.0)

    play(scenario, tiers=TIERS)


def test_in_shadow_mode_it_counts_and_refuses_nothing(play, chat_model):
    async def scenario(site):
        predict(site, "chat", **LATE_BY_SHARE)
        assert (await site.chat()).status == 200
        metrics = (await site.admin("/metrics")).body.decode()
        labels = 'mode="shadow",model="chat",reason="share"'
        assert f"taketurns_throttle_refusals_total{{{labels}}} 1.0" in metrics

    play(scenario, tiers=TIERS, models={"chat": chat_model(throttle="shadow")})


def test_a_tier_without_a_target_and_a_model_that_is_off_ask_for_no_prediction(play, chat_model):
    async def scenario(site):
        for model in ("chat", "quiet"):
            predicts = predict(site, model, **LATE_BY_SHARE)
            tenant = "pico" if model == "chat" else "acme"
            assert (await site.chat(tenant=tenant, model=model)).status == 200
            assert predicts.asked == []

    models = {"chat": chat_model(), "quiet": chat_model(throttle="off")}
    play(scenario, tiers=TIERS, models=models)


def test_a_request_of_many_texts_is_judged_by_its_last(play):
    async def scenario(site):
        predicts = predict(site, "embed", wait_us=0)
        assert (await site.embed(["one", "two words", "three words here"])).status == 200
        ((ticket, ahead),) = predicts.asked
        assert ticket.id.endswith("-2")
        # Estimated at four bytes a token: 1 and 3 go before the last one's 4.
        assert (ahead, ticket.cost) == (1 + 3, 4)

    play(scenario, tiers=TIERS)


def test_a_pool_predicts_for_itself_and_lets_in_what_it_can_serve(play):
    async def scenario(site):
        replies = [await site.chat() for _ in range(20)]
        assert {reply.status for reply in replies} == {200}
        together = [site.start(site.chat()) for _ in range(20)]
        assert {(await task).status for task in together} == {200}

    play(scenario, tiers=TIERS)


TOKEN = "admin-token"


async def outlook(site, endpoint="chat", **more):
    query = {"tenant": "acme", "endpoint": endpoint, "input_tokens": 90, **more}
    query = {"model": "embed" if endpoint in {"embeddings", "rerank"} else "chat", **query}
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return (await site.admin(f"/limits?{text}", TOKEN)).json


def test_the_admin_side_tells_how_long_a_request_would_wait(play):
    async def scenario(site):
        told = await outlook(site)
        assert told["throttle"]["predicted_wait_s"] == 0
        assert (told["throttle"]["would"], told["would"]) == ("admitted", "admitted")
        assert (await outlook(site, tenant="pico"))["throttle"] is None
        assert (await outlook(site, model="nothing"))["throttle"] is None
        for _ in range(20):
            assert (await site.chat()).status == 200
        held = await site.fill(tenant="acme")
        waiting = site.start(site.chat(tenant="acme"))
        await site.queued("chat", 1)
        throttle = (await outlook(site))["throttle"]
        assert throttle["predicted_wait_s"] > 0
        assert (throttle["own_cost"], throttle["better_tiers_cost"]) == (1_000, 0)
        assert throttle["cost_per_s"] > 0
        assert throttle["target_s"] == 60.0
        site.engines["gpu-0"].release()
        for task in (*held, waiting):
            assert (await task).status == 200

    tiers = {"production": {"rank": 0, "wait_target": "60s"}, "trial": {"rank": 1}}
    play(scenario, tiers=tiers, server={"admin_token": TOKEN})


@pytest.mark.parametrize(
    ("mode", "would", "by"), [("enforce", "refused", ["throttle"]), ("shadow", "admitted", [])]
)
def test_the_admin_side_tells_whom_the_throttle_would_refuse(play, chat_model, mode, would, by):
    async def scenario(site):
        predicts = Predicts(Prediction(**{"rate": RATE_ONE, **LATE_BY_SHARE}))
        site.pool("chat").turns._scheduler = predicts
        told = await outlook(site)
        assert (told["would"], told["by"]) == (would, by)
        throttle = told["throttle"]
        assert (throttle["would"], throttle["reason"], throttle["mode"]) == (
            "refused",
            "share",
            mode,
        )
        assert (throttle["predicted_wait_s"], throttle["own_cost"]) == (5.0, 700)
        assert throttle["retry_after_s"] > 0

    play(
        scenario,
        settles=False,
        tiers=TIERS,
        server={"admin_token": TOKEN},
        models={"chat": chat_model(throttle=mode)},
    )


@pytest.mark.parametrize(
    ("endpoint", "inputs", "ticket", "ahead"),
    [("embeddings", 3, 30, 60), ("rerank", 2, 30, 60)],
)
def test_each_text_is_a_ticket_and_the_last_waits_for_the_others(
    play, endpoint, inputs, ticket, ahead
):
    async def scenario(site):
        predicts = Predicts(Prediction(wait_us=1))
        site.pool("embed").turns._scheduler = predicts
        assert (await outlook(site, endpoint, inputs=inputs))["would"] == "admitted"
        ((asked, before),) = predicts.asked
        assert (asked.cost, before) == (ticket, ahead)

    play(scenario, settles=False, tiers=TIERS, server={"admin_token": TOKEN})
