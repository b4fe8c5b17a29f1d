# SPDX-License-Identifier: Apache-2.0
"""Headers tell how limits stand in OpenAI's words and in IETF's, and never too little time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taketurns.dialects.rate_headers import Limit, RateHeaders, duration, reset_texts
from taketurns.units import US_PER_S

MINUTE_US = 60 * US_PER_S
SF_INTEGER_MAX = 999_999_999_999_999
"""Largest integer of structured fields, RFC 9651, section 3.3.1."""


def standing(name="a", unit="requests", limit=10, remaining=4, **more):
    told = Limit(name, unit, limit, more.get("window_us", MINUTE_US), more.get("reset_us", 0))
    return told, remaining


def headers(standings, month_left_us=0):
    """Return all headers of limits and what each leaves."""
    limits = [limit for limit, _ in standings]
    left = [left for _, left in standings]
    lines = RateHeaders(limits).lines(left, reset_texts(month_left_us)).split("\r\n")
    assert lines.pop() == ""
    return dict(line.split(": ", 1) for line in lines)


def openai_headers(standings, month_left_us=0):
    told = headers(standings, month_left_us)
    return {name: text for name, text in told.items() if name.startswith("x-ratelimit-")}


def ietf_headers(standings, month_left_us=0):
    told = headers(standings, month_left_us)
    return {name: text for name, text in told.items() if name.startswith("RateLimit")}


def members(text):
    """Return the members of a list of structured fields: a name and its parameters."""
    found = []
    for member in text.split(", "):
        name, *parameters = member.split(";")
        assert re.fullmatch(r'"[ !#-\[\]-~]*"', name), name
        values = {}
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            assert re.fullmatch("[a-z*][a-z0-9_.*-]*", key)
            if value.startswith('"'):
                assert re.fullmatch(r'"[ !#-\[\]-~]*"', value)
                values[key] = value[1:-1]
            else:
                assert re.fullmatch("-?[0-9]{1,15}", value), value
                values[key] = int(value)
        found.append((name[1:-1], values))
    return found


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (999, "1ms"),
        (120_000, "120ms"),
        (999_000, "999ms"),
        (999_001, "1s"),
        (1_000_000, "1s"),
        (7_500_000, "7.5s"),
        (7_500_001, "7.501s"),
        (59_999_000, "59.999s"),
        (59_999_001, "1m0s"),
        (60_000_000, "1m0s"),
        (60_000_001, "1m1s"),
        (360_000_000, "6m0s"),
        (7_380_000_000, "2h3m0s"),
        (31 * 86_400 * US_PER_S, "744h0m0s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(us, text):
    assert duration(us) == text


def microseconds(text):
    parts = re.fullmatch(r"(?:(\d+)ms)|(?:(\d+)h)?(?:(\d+)m)?(\d+(?:\.\d{1,3})?)s", text)
    assert parts, text
    ms, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
    return round((ms / 1000 + hours * 3600 + minutes * 60 + seconds) * US_PER_S)


@given(st.one_of(st.integers(0, 3 * MINUTE_US), st.integers(0, 31 * 86_400 * US_PER_S)))
def test_a_duration_is_rounded_up_by_less_than_its_last_place(us):
    told = microseconds(duration(us))
    assert us <= told < us + (1_000 if us < MINUTE_US - 1_000 else US_PER_S)


def test_no_limit_no_headers():
    assert openai_headers([]) == {}
    assert ietf_headers([]) == {}


def test_openais_headers_tell_of_requests_and_tokens_what_leaves_least():
    told = openai_headers(
        [
            standing("day", limit=1000, remaining=3, reset_us=86_400 * US_PER_S),
            standing("minute", limit=10, remaining=4, reset_us=MINUTE_US),
            standing("tokens", "tokens", 5000, 4988, reset_us=1_500_000),
            standing("texts", "inputs", 5, 0),
            standing("in", "input_tokens", 5, 0),
        ]
    )
    assert told == {
        "x-ratelimit-limit-requests": "1000",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "24h0m0s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "4988",
        "x-ratelimit-reset-tokens": "1.5s",
    }


def test_units_that_openai_has_no_headers_for_get_none():
    assert openai_headers([standing(unit="inputs"), standing(unit="output_tokens")]) == {}


def test_ietfs_policy_names_every_limit_and_its_state_the_tightest():
    told = ietf_headers(
        [
            standing("minute", limit=10, remaining=4, reset_us=MINUTE_US),
            standing("tokens/day[tier=trial,model=m]", "tokens", 5000, 1999, reset_us=1_500_001),
            standing("second", limit=2, remaining=1, window_us=US_PER_S, reset_us=US_PER_S),
        ]
    )
    assert members(told["RateLimit-Policy"]) == [
        ("minute", {"q": 10, "w": 60, "qu": "requests"}),
        ("tokens/day[tier=trial,model=m]", {"q": 5000, "w": 60, "qu": "tokens"}),
        ("second", {"q": 2, "w": 1, "qu": "requests"}),
    ]
    assert members(told["RateLimit"]) == [("tokens/day[tier=trial,model=m]", {"r": 1999, "t": 2})]


@pytest.mark.parametrize("order", [1, -1])
def test_a_limit_of_nothing_is_tighter_than_one_that_has_something_left(order):
    told = ietf_headers(
        [standing("some", remaining=1), standing("none", limit=0, remaining=0)][::order]
    )
    assert members(told["RateLimit"]) == [("none", {"r": 0, "t": 0})]


def test_the_largest_limit_fits_the_header():
    most = 10**15
    told = ietf_headers([standing(limit=most, remaining=most)])
    ((_, policy),) = members(told["RateLimit-Policy"])
    ((_, state),) = members(told["RateLimit"])
    assert policy["q"] == state["r"] == SF_INTEGER_MAX


def test_a_month_resets_when_it_ends():
    month = standing("month", remaining=0, reset_us=None)
    left_us = 90 * US_PER_S + 1
    assert openai_headers([month], left_us)["x-ratelimit-reset-requests"] == "1m31s"
    assert ietf_headers([month], left_us)["RateLimit"].endswith(";t=91")
