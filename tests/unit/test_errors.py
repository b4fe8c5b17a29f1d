# SPDX-License-Identifier: Apache-2.0
"""Each error has a code of its own, says whether work was done, and keeps its hint apart."""

import re

import pytest

from taketurns import errors
from taketurns.aio import TurnExpiredError, TurnRefusedError
from taketurns.core.decision import Refusal, Refused
from taketurns.core.model import Ticket
from taketurns.errors import (
    ConfigError,
    ConfigFault,
    EngineBrokenError,
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
    RequestError,
    StoreError,
    StoreUnavailableError,
    TaketurnsError,
)


def classes():
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, TaketurnsError)
    ]


def test_codes_are_names_for_machines_and_each_stands_for_one_error():
    own = [cls.code for cls in classes() if "code" in vars(cls)]
    assert len(own) == len(set(own))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in own)


def test_a_hint_is_kept_apart_from_the_message():
    error = TaketurnsError("what went wrong", hint="What to do.")
    assert (str(error), error.hint, error.code) == (
        "what went wrong",
        "What to do.",
        "internal_error",
    )
    assert TaketurnsError("x").hint == ""


def test_a_config_error_tells_every_fault():
    faults = [
        ConfigFault("tenants.acme.weight", "must be 1 to 1,000", hint="Write 1."),
        ConfigFault("", "is empty"),
    ]
    error = ConfigError(faults, source="a.yaml")
    assert str(error) == "tenants.acme.weight: must be 1 to 1,000. Write 1.\nis empty."
    assert (error.faults, error.source) == (faults, "a.yaml")


@pytest.mark.parametrize(
    ("cls", "executed"),
    [
        (EngineError, True),
        (EngineUnavailableError, False),
        (EngineTimeoutError, True),
        (EngineBrokenError, True),
    ],
)
def test_an_engines_error_says_whether_work_may_have_begun(cls, executed):
    error = cls("gpu-0", "what", hint="Do.")
    assert (error.engine, error.executed, str(error), error.hint) == (
        "gpu-0",
        executed,
        "what",
        "Do.",
    )
    assert isinstance(error, EngineError)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 502, 503, 504])
def test_an_engine_that_refuses_what_was_sent_or_is_full_has_done_no_work(status):
    error = EngineRefusedError("gpu-0", status, b"words")
    assert error.executed is (status not in {400, 404, 422, 429, 503})
    assert (error.status, error.body) == (status, b"words")
    assert str(status) in str(error)


def test_a_request_error_has_its_own_code_status_and_field():
    error = RequestError(413, "body_too_large", "too large", param="input", hint="Send less.")
    assert (error.status, error.code, error.param) == (413, "body_too_large", "input")
    assert RequestError.code == "internal_error"


def test_a_store_that_does_not_answer_is_a_store_error():
    assert issubclass(StoreUnavailableError, StoreError)


def test_a_refusal_and_an_expiry_say_which_ticket_and_bound():
    ticket = Ticket("t-1", "acme", "gold")
    refused = Refused(ticket, Refusal.TENANT_QUEUE_FULL, 5, 5)
    error = TurnRefusedError(refused)
    assert error.refused is refused
    assert "tenant_queue_full" in str(error)
    assert "5 of 5" in str(error)
    expired = TurnExpiredError(ticket)
    assert expired.ticket is ticket
    assert "t-1" in str(expired)
