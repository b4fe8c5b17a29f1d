# SPDX-License-Identifier: Apache-2.0
"""Limits as the operator writes them become the core's rules, or faults with a remedy."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from taketurns.config.limits import PERIOD_US, per_of, unit_of
from taketurns.config.load import parse
from taketurns.config.model import Config
from taketurns.config.pools import pool
from taketurns.core.limits import LimitRule, Span, Unit
from taketurns.errors import ConfigError

FILE = """\
tiers: {production: {rank: 0}, trial: {rank: 1, queue_timeout: 20s}}
models:
  qwen: {endpoints: [chat], engines: [{url: "http://h:1"}]}
  private: {endpoints: [embeddings], engines: [{url: "http://h:2"}], tenants: [acme]}
tenants: {acme: {tier: production}, visitor: {tier: trial}}
"""


def limits(*rules, file=FILE):
    return file + "limits:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)


def rules_of(*rules):
    return parse(limits(*rules), "test.yaml", env={}).limit_rules()


def rule(fields="unit: requests, per: minute, max: 5"):
    (made,) = rules_of(fields)
    return made


def test_a_rule_selects_everything_unless_it_says_otherwise():
    assert rule() == LimitRule("requests/minute", Unit.REQUESTS, Span.SLIDING, 5, 60_000_000)


def test_every_key_reaches_the_core():
    assert rule(
        "tenant: acme, tier: production, model: qwen, endpoint: chat, unit: tokens, per: hour, "
        "max: 60k, scope: total, mode: shadow, name: acme-tokens"
    ) == LimitRule(
        name="acme-tokens",
        unit=Unit.TOKENS,
        span=Span.SLIDING,
        max=60_000,
        period_us=3_600_000_000,
        tenant="acme",
        tier="production",
        model="qwen",
        endpoint="chat",
        total=True,
        shadow=True,
    )


def test_a_star_is_the_same_as_no_selector():
    stars = ', tenant: "*", tier: "*", model: "*", endpoint: "*"'
    assert rule("unit: requests, per: minute, max: 5" + stars) == rule()


@pytest.mark.parametrize("unit", ["requests", "tokens", "input_tokens", "output_tokens", "inputs"])
def test_a_unit_is_the_cores_unit(unit):
    made = rule(f"unit: {unit}, per: day, max: 0")
    assert (made.unit, made.max, unit_of(made)) == (Unit(unit), 0, unit)


@pytest.mark.parametrize(
    ("per", "seconds"), [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)]
)
def test_a_sliding_window_is_as_long_as_its_name(per, seconds):
    made = rule(f"unit: requests, per: {per}, max: 1")
    assert (made.span, made.period_us) == (Span.SLIDING, seconds * 1_000_000)
    assert per_of(made) == per
    assert PERIOD_US[per] == made.period_us


def test_a_month_and_what_is_under_way_have_no_length():
    month = rule("unit: tokens, per: month, max: 2M")
    assert (month.span, month.period_us, month.unit) == (Span.MONTH, 0, Unit.TOKENS)
    assert (unit_of(month), per_of(month)) == ("tokens", "month")
    parallel = rule("unit: parallel, max: 0")
    assert (parallel.span, parallel.period_us, parallel.unit) == (Span.PARALLEL, 0, Unit.REQUESTS)
    assert (unit_of(parallel), per_of(parallel)) == ("parallel", None)


def test_rules_keep_the_order_of_the_file():
    made = rules_of("unit: parallel, max: 3", "unit: requests, per: day, max: 2")
    assert [each.max for each in made] == [3, 2]


def test_a_file_without_limits_has_no_rules():
    assert parse(FILE, "test.yaml", env={}).limit_rules() == ()


def test_a_name_tells_what_a_rule_is_and_stays_when_others_come_and_go():
    fields = "tenant: acme, endpoint: chat, unit: tokens, per: day, max: 1"
    assert rule(fields).name == "tokens/day[tenant=acme,endpoint=chat]"
    first, second = rules_of("unit: parallel, max: 1, scope: total", fields)
    assert (first.name, second.name) == ("parallel/total", rule(fields).name)


def test_rules_that_differ_in_what_they_count_or_select_stand_beside_each_other():
    made = rules_of(
        "unit: requests, per: minute, max: 1",
        "unit: requests, per: minute, max: 1, scope: total",
        "unit: requests, per: hour, max: 1",
        "unit: inputs, per: minute, max: 1",
        "unit: requests, per: minute, max: 1, tier: trial",
        "unit: requests, per: minute, max: 1, endpoint: chat",
        "unit: requests, per: month, max: 1",
        "unit: parallel, max: 1",
        "unit: parallel, max: 9, mode: shadow, name: tried",
    )
    assert len({each.name for each in made}) == len(made)


GOOD = "unit: requests, per: minute, max: 5"

BAD = {
    "nothing in it": (
        [""],
        [
            ("limits[0].unit", "is missing", "Add unit. What counts."),
            ("limits[0].max", "is missing", "Add max. How much"),
        ],
    ),
    "no per": (["unit: tokens, max: 5"], [("limits[0]", "has no `per`", "second, minute")]),
    "per with parallel": (
        ["unit: parallel, per: minute, max: 5"],
        [("limits[0]", "has `per`, which means nothing with unit: parallel", "Remove per.")],
    ),
    "unknown key": (
        [GOOD + ", tennant: acme"],
        [("limits[0].tennant", "is an unknown key", "Did you mean tenant? Known keys: tenant")],
    ),
    "unknown words": (
        ["unit: token, per: weak, max: 5, scope: all, mode: shade, endpoint: chats"],
        [
            ("limits[0].unit", 'inputs or parallel, got "token"', "Did you mean tokens?"),
            ("limits[0].per", 'day or month, got "weak"', ""),
            ("limits[0].scope", 'must be each or total, got "all"', ""),
            ("limits[0].mode", 'must be enforce or shadow, got "shade"', "Did you mean shadow?"),
            ("limits[0].endpoint", 'rerank or tokenize, got "chats"', "Did you mean chat?"),
        ],
    ),
    "below nothing": (
        ["unit: requests, per: minute, max: -1"],
        [("limits[0].max", "must be 0 to 1,000,000,000,000,000, got -1", "")],
    ),
    "no number": (
        ["unit: requests, per: minute, max: many"],
        [("limits[0].max", 'must be a count, got "many"', "60k")],
    ),
    "too large to count": (
        ["unit: requests, per: minute, max: 999999999999M"],
        [("limits[0].max", "must be 0 to 1,000,000,000,000,000", "")],
    ),
    "no names": (
        [GOOD + ', tenant: "a|b", name: "a b"'],
        [
            ("limits[0].tenant", 'is neither a name nor *, got "a|b"', '"*" for all'),
            ("limits[0].name", 'is not a name that can be used here, got "a b"', "1 to 64"),
        ],
    ),
    "unknown names": (
        [GOOD + ", tenant: acne, tier: trail, model: qwem"],
        [
            ("limits[0].tenant", 'is "acne", and there is no such tenant', "Did you mean acme?"),
            ("limits[0].tier", 'is "trail", and there is no such tier', "Did you mean trial?"),
            ("limits[0].model", 'is "qwem", and there is no such model', "Did you mean qwen?"),
        ],
    ),
    "unknown names beside other faults": (
        [GOOD + ", tenant: zzz", "unit: requests, max: 5"],
        [
            ("limits[0].tenant", "there is no such tenant", "Known tenants: acme, visitor."),
            ("limits[1]", "has no `per`", "Add per"),
        ],
    ),
    "a tier that is not the tenant's": (
        [GOOD + ", tenant: acme, tier: trial"],
        [
            (
                "limits[0].tier",
                "never applies: it is trial, and tenant acme is of tier production",
                "Leave tier or tenant out.",
            )
        ],
    ),
    "an endpoint that the model does not serve": (
        [GOOD + ", model: qwen, endpoint: rerank"],
        [
            (
                "limits[0].endpoint",
                "never applies: model qwen does not serve rerank",
                "Write one of models.qwen.endpoints",
            )
        ],
    ),
    "a tenant that may not use the model": (
        [GOOD + ", model: private, tenant: visitor"],
        [
            (
                "limits[0].tenant",
                "never applies: tenant visitor may not use model private",
                "Add it to models.private.tenants",
            )
        ],
    ),
    "two that are alike": (
        ["unit: parallel, max: 1", GOOD, "unit: requests, per: minute, max: 9, name: other"],
        [("limits[2]", "counts the same as limits[1], for the same requests", "Remove one")],
    ),
    "two that are alike but for their mode": (
        [GOOD, GOOD + ", mode: shadow"],
        [("limits[1]", "has the name requests/minute, and so has limits[0]", "of its own")],
    ),
    "two of one mode that are alike": (
        [GOOD, GOOD + ", mode: shadow, name: a", GOOD + ", mode: shadow, name: b"],
        [("limits[2]", "counts the same as limits[1]", "Remove one")],
    ),
    "one name for two": (
        [GOOD + ", name: a", "unit: parallel, max: 3, name: a"],
        [("limits[1]", "has the name a, and so has limits[0]", "a name of its own")],
    ),
    "a name that another rule has by default": (
        [GOOD + ", name: parallel", "unit: parallel, max: 3"],
        [("limits[1]", "has the name parallel, and so has limits[0]", "a name of its own")],
    ),
}


def faults_of(text):
    with pytest.raises(ConfigError) as caught:
        parse(text, "test.yaml", env={})
    return caught.value.faults


def check(text, expected):
    found = faults_of(text)
    assert [fault.path for fault in found] == [path for path, _, _ in expected]
    for fault, (_, problem, hint) in zip(found, expected, strict=True):
        assert problem in fault.problem
        assert hint in fault.hint
        assert not fault.problem.endswith(".")


@pytest.mark.parametrize(("rules", "expected"), BAD.values(), ids=BAD.keys())
def test_every_fault_of_a_limit_has_its_remedy(rules, expected):
    check(limits(*rules), expected)


@pytest.mark.parametrize("section", ["limits: 3\n", "limits: {}\n"])
def test_limits_are_a_list(section):
    check(FILE + section, [("limits", "must be a list", "[a, b]")])


def test_a_limit_is_a_mapping():
    check(FILE + "limits: [3]\n", [("limits[0]", "must be a mapping", "")])


def test_a_star_without_quotes_is_a_fault_that_says_to_quote_it():
    (fault,) = faults_of(limits(GOOD + ", tenant: *"))
    assert "begins with *" in fault.hint


def test_a_selector_may_come_from_the_environment():
    text = limits(GOOD + ', tenant: "${WHO}", max: "${MOST}"').replace("max: 5, ", "")
    (made,) = parse(text, "test.yaml", env={"WHO": "acme", "MOST": "7k"}).limit_rules()
    assert (made.tenant, made.max) == ("acme", 7_000)


# The time zone of months


def test_months_begin_in_utc_by_default():
    config = parse(FILE, "test.yaml", env={})
    assert (config.time_zone, config.zone) == ("UTC", UTC)


def test_a_zone_knows_its_summer_time():
    config = parse(FILE + "time_zone: Europe/Berlin\n", "test.yaml", env={})
    assert config.zone == ZoneInfo("Europe/Berlin")
    before, after = (datetime(2026, 3, day, 12, tzinfo=config.zone) for day in (28, 30))
    assert after.utcoffset() - before.utcoffset() == after.dst()


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("Europe/Berln", "Did you mean Europe/Berlin?"),
        ("utc", "Write a name such as UTC"),
        ("America", "Write a name such as UTC"),
        ("../../etc/passwd", "Write a name such as UTC"),
        ("/etc/localtime", "Write a name such as UTC"),
        ("zone.tab", "Write a name such as UTC"),
        ("x" * 5_000, "Write a name such as UTC"),
        ('"+02:00"', "Write a name such as UTC"),
    ],
)
def test_a_zone_that_is_not_known_here_is_a_fault(written, hint):
    check(FILE + f"time_zone: {written}\n", [("time_zone", "is not a time zone that is", hint)])


def test_without_a_database_of_zones_utc_stands_and_others_say_what_to_install(monkeypatch):
    def gone(_key):
        raise LookupError

    monkeypatch.setattr("zoneinfo.ZoneInfo", gone)
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    assert parse(FILE + "time_zone: UTC\n", "test.yaml", env={}).zone == UTC
    check(
        FILE + "time_zone: Europe/Berlin\n",
        [("time_zone", "is not a time zone that is known here", "install tzdata")],
    )


# Wait targets and bounds in bytes


def targets(config, model="qwen"):
    return pool(config, model).wait_target_us


def test_without_a_target_nobody_is_refused_for_the_wait():
    config = parse(FILE, "test.yaml", env={})
    assert targets(config) == {"production": None, "trial": None}


def test_a_models_target_goes_before_the_tiers_and_null_takes_it_away():
    text = FILE.replace("rank: 0", "rank: 0, wait_target: 2s").replace(
        "rank: 1", "rank: 1, wait_target: 10s"
    )
    assert targets(parse(text, "test.yaml", env={})) == {
        "production": 2_000_000,
        "trial": 10_000_000,
    }
    own = text.replace("qwen: {", "qwen: {wait_targets: {production: 500ms, trial: null}, ")
    config = parse(own, "test.yaml", env={})
    assert targets(config) == {"production": 500_000, "trial": None}
    assert targets(config, "private") == {"production": 2_000_000, "trial": 10_000_000}


@pytest.mark.parametrize(("throttle", "target"), [("enforce", 2), ("shadow", 2), ("off", None)])
def test_a_throttle_that_is_off_has_no_targets(small, throttle, target):
    small["tiers"]["production"]["wait_target"] = "2s"
    small["models"]["chat"]["throttle"] = throttle
    config = Config.model_validate(small)
    assert config.models["chat"].throttle == throttle
    assert targets(config, "chat") == {"production": target and target * 1_000_000}


def test_a_target_above_the_longest_wait_is_a_fault():
    check(
        FILE.replace("rank: 0", "rank: 0, wait_target: 61s"),
        [
            (
                "tiers.production.wait_target",
                'must be at most queue_timeout, 1m, got "61s"',
                "Lower it, or raise queue_timeout.",
            )
        ],
    )
    check(
        FILE.replace("qwen: {", "qwen: {wait_targets: {production: 1m, trial: 21s, tril: 1s}, "),
        [
            (
                "models.qwen.wait_targets.trial",
                'is "21s", and tiers.trial.queue_timeout is 20s',
                "Lower it, or raise queue_timeout.",
            ),
            (
                "models.qwen.wait_targets.tril",
                "is for a tier that there is not",
                "Did you mean trial?",
            ),
        ],
    )


def test_targets_of_the_wrong_type_have_one_fault_each():
    check(
        FILE.replace("qwen: {", "qwen: {wait_targets: {production: [1], trial: soon}, "),
        [
            ("models.qwen.wait_targets.production", "must be a duration", "500ms"),
            ("models.qwen.wait_targets.trial", 'must be a duration, got "soon"', "500ms"),
        ],
    )
    check(
        FILE.replace("qwen: {", "qwen: {wait_targets: 3, "),
        [("models.qwen.wait_targets", "must be a mapping, got 3", "")],
    )
    check(
        FILE.replace("queue_timeout: 20s", "queue_timeout: x").replace(
            "qwen: {", "qwen: {wait_targets: {trial: 1s}, "
        ),
        [("tiers.trial.queue_timeout", "must be a duration", "")],
    )


def test_queues_are_bounded_in_bytes(small):
    config = Config.model_validate(small)
    model = config.models["chat"]
    assert config.server.queued_bytes_max == 1024**3
    assert (model.queue_bytes_max, model.tenant_queue_bytes_max) == (256 * 1024**2, 64 * 1024**2)
    small["server"] = {"queued_bytes_max": "2G"}
    small["models"]["chat"] |= {"queue_bytes_max": "16M", "tenant_queue_bytes_max": "4M"}
    config = Config.model_validate(small)
    model = config.models["chat"]
    assert config.server.queued_bytes_max == 2 * 1024**3
    assert (model.queue_bytes_max, model.tenant_queue_bytes_max) == (16 * 1024**2, 4 * 1024**2)
