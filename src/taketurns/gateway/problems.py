# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as the client is told: status, code, words, when to come back.

The contract: 429 and 503 were certainly not executed, so that sending again is
safe; 502 and 504 may have been. ``x-request-executed`` says it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from taketurns.aio import TurnExpiredError, TurnRefusedError
from taketurns.config.limits import per_of, unit_of
from taketurns.core.decision import Outcome, Refusal
from taketurns.core.limit_rules import Span
from taketurns.core.throttle import Why
from taketurns.dialects.names import Dialect, error_body
from taketurns.errors import (
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
    RequestError,
    StoreUnavailableError,
    TaketurnsError,
)
from taketurns.gateway.admission import LimitedError, QuotaUnavailableError, limit_in_words
from taketurns.gateway.exchange import Answer
from taketurns.gateway.failed_auth import TooManyWrongKeysError
from taketurns.gateway.held_bytes import TooManyBytesError
from taketurns.gateway.throttling import WouldBeLateError
from taketurns.ports.coordinator import CoordinatorDownError
from taketurns.units import US_PER_MS, US_PER_S, ceil_s_from_us, s_from_us

INVALID = "invalid"
"""Outcome of what never reached a queue through the caller's fault."""


class DrainingError(TaketurnsError):
    """The gateway is stopping and takes nothing new."""

    code = "draining"


class MethodError(RequestError):
    """A URL doesn't take this method.

    Attributes:
        allowed: The methods that it takes, as the ``Allow`` header has them.
    """

    def __init__(self, method: str, *, allowed: str) -> None:
        super().__init__(405, "method_not_allowed", f"Use {allowed} here, not {method:.20}.")
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as the client is told of it.

    Attributes:
        status: HTTP status.
        code: Stable name, as in docs/reference/errors.md.
        message: What was wrong and what to do.
        outcome: For the log and the metrics.
        param: The field that is wrong, or None.
        executed: True where an engine may have begun the work.
        retry_after_us: When to try again; None: not by waiting.
        headers: Further headers.
        details: The reason in figures, for programs.
        allowed: Methods that the URL takes, where another was used.
    """

    status: int
    code: str
    message: str
    outcome: str
    param: str | None = None
    executed: bool = False
    retry_after_us: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    allowed: str | None = None

    def answer(self, dialect: Dialect = Dialect.OPENAI, request_id: str = "") -> Answer:
        """Return the answer as a dialect has it."""
        headers = {"x-request-executed": "unknown" if self.executed else "no"}
        headers.update(self.headers)
        if self.retry_after_us is not None:
            # Rounded up: who comes back a moment too early is refused again.
            headers["Retry-After"] = str(max(1, ceil_s_from_us(self.retry_after_us)))
            headers["retry-after-ms"] = str(max(1, -(-self.retry_after_us // US_PER_MS)))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allowed is not None:
            headers["Allow"] = self.allowed
        body = error_body(
            dialect,
            self.status,
            self.code,
            self.message,
            param=self.param,
            details=self.details,
            request_id=request_id,
        )
        return Answer(self.status, body, headers=headers)


def problem_of(error: Exception, *, retry_after_us: int = US_PER_S) -> Problem:
    """Return what a client is told of an error.

    Args:
        error: What was raised. What nobody foresaw becomes a bare 500.
        retry_after_us: When a queue that is full will have room.
    """
    if isinstance(error, RequestError):
        return Problem(
            error.status,
            error.code,
            _told(error),
            INVALID,
            param=error.param,
            allowed=error.allowed if isinstance(error, MethodError) else None,
        )
    if isinstance(error, EngineError):
        return _engine_problem(error)
    return _refusal(error, retry_after_us) or Problem(
        500,
        "internal_error",
        "The gateway failed. Its log has the details under this request's id.",
        Outcome.FAILED.value,
        executed=True,
    )


UNAVAILABLE: Mapping[type[TaketurnsError], tuple[str, int]] = {
    DrainingError: ("The gateway is shutting down. Try again: another instance may answer.", 1),
    StoreUnavailableError: ("The gateway can't reach its store of API keys. Try again later.", 5),
    CoordinatorDownError: ("The gateway can't reach its fleet's coordinator. Try again later.", 1),
    QuotaUnavailableError: (
        "The gateway can't keep count of your organisation's quota at the moment. Try again later.",
        5,
    ),
}
"""What is told, and after how many seconds to try again, where the gateway itself is the reason."""


def _refusal(error: Exception, retry_after_us: int) -> Problem | None:
    """Return what is told of a refusal to take a request on; None where it's no such thing."""
    match error:
        case TurnRefusedError():
            return _queue_full(error, retry_after_us)
        case LimitedError():
            return _limited(error)
        case WouldBeLateError():
            return _late(error)
        case TooManyWrongKeysError():
            return Problem(
                429,
                error.code,
                f"Too many wrong API keys came from your address. Try again in "
                f"{_seconds(error.retry_us)} s, or send a right one.",
                Outcome.REFUSED.value,
                retry_after_us=error.retry_us,
            )
        case TooManyBytesError():
            return _too_many_bytes(error, retry_after_us)
        case TurnExpiredError():
            return Problem(
                429,
                error.code,
                "The request waited in the queue until its time was up. Try again later, "
                "or send less at once.",
                Outcome.EXPIRED.value,
                retry_after_us=retry_after_us,
            )
        case DrainingError() | StoreUnavailableError() | QuotaUnavailableError():
            message, seconds = UNAVAILABLE[type(error)]
            return Problem(
                503,
                error.code,
                message,
                Outcome.REFUSED.value,
                retry_after_us=seconds * US_PER_S,
            )
        case _:
            return None


def _limited(error: LimitedError) -> Problem:
    rule, used = error.status.rule, error.status.used
    told = (
        f"Limit {rule.name} allows {limit_in_words(rule)}; {used} are used, and the request "
        f"takes {error.asked}."
    )
    refused = Outcome.REFUSED.value
    details = {
        "limit": {
            "name": rule.name,
            "unit": unit_of(rule),
            "per": per_of(rule),
            "max": rule.max,
            "used": used,
            "asked": error.asked,
            "retry_after_s": None if error.retry_us is None else s_from_us(error.retry_us),
        }
    }
    if rule.span is Span.MONTH:
        # To this client a quota that is used up for weeks is nothing to wait for.
        message = f"{told} The next month begins in {_days(error.retry_us or 0)}."
        never = {"x-should-retry": "false"}
        return Problem(
            429,
            "insufficient_quota",
            message,
            refused,
            retry_after_us=error.retry_us,
            headers=never,
            details=details,
        )
    if rule.span is Span.PARALLEL:
        message = f"{told} Wait until one of them has ended."
        return Problem(429, error.code, message, refused, retry_after_us=US_PER_S, details=details)
    retry_us = error.retry_us or US_PER_S
    message = f"{told} Try again in {_seconds(retry_us)} s."
    return Problem(429, error.code, message, refused, retry_after_us=retry_us, details=details)


def _late(error: WouldBeLateError) -> Problem:
    late, prediction = error.late, error.prediction
    told = (
        f"The request would wait about {_seconds(late.wait_us)} s, and its target is "
        f"{_seconds(late.target_us)} s. "
    )
    figures = {
        "reason": late.reason.value,
        "predicted_wait_s": s_from_us(late.wait_us),
        "target_s": s_from_us(late.target_us),
        "cost_per_s": prediction.cost_per_s,
    }
    again = f"Try again in {_seconds(late.retry_after_us)} s."
    refused = Outcome.REFUSED.value
    if late.reason is Why.SHARE:
        # What all others have queued together is nobody else's business.
        figures["own_cost_in_front"] = prediction.own
        return Problem(
            429,
            error.code,
            f"{told}What your organisation has queued already is the reason. {again}",
            refused,
            retry_after_us=late.retry_after_us,
            details={"throttle": figures},
        )
    return Problem(
        503,
        "overloaded",
        f"{told}The model has no capacity left at the moment. {again}",
        refused,
        retry_after_us=late.retry_after_us,
        details={"throttle": figures},
    )


def _seconds(microseconds: int) -> str:
    return f"{max(1, -(-microseconds // US_PER_MS)) / 1000:g}"


def _days(microseconds: int) -> str:
    hours = -(-microseconds // (3600 * US_PER_S))
    return f"{hours} h" if hours < 48 else f"{hours // 24} days"


def _too_many_bytes(error: TooManyBytesError, retry_after_us: int) -> Problem:
    refused = Outcome.REFUSED.value
    if error.own:
        return Problem(
            429,
            "tenant_bytes_full",
            "Your organisation's requests under way hold as many bytes as they may, "
            f"{error.limit}. Send less at once, or try again later.",
            refused,
            retry_after_us=retry_after_us,
        )
    return Problem(
        503,
        error.code,
        "The requests under way hold as many bytes as they may. Try again later.",
        refused,
        retry_after_us=retry_after_us,
    )


def _told(error: TaketurnsError) -> str:
    return f"{error} {error.hint}".strip()


def _queue_full(error: TurnRefusedError, retry_after_us: int) -> Problem:
    refused = error.refused
    if refused.reason is Refusal.TENANT_QUEUE_FULL:
        return Problem(
            429,
            refused.reason.value,
            f"Your organisation's queue for this model is full: {refused.queued} of "
            f"{refused.limit}. Send fewer at once, or try again later.",
            Outcome.REFUSED.value,
            retry_after_us=retry_after_us,
        )
    return Problem(
        503,
        refused.reason.value,
        "The queue of this model is full. Try again later.",
        Outcome.REFUSED.value,
        retry_after_us=retry_after_us,
    )


def _engine_problem(error: EngineError) -> Problem:
    failed = Outcome.FAILED.value
    if isinstance(error, EngineRefusedError):
        return _engine_refusal(error)
    if isinstance(error, EngineUnavailableError):
        return Problem(
            503,
            "no_capacity",
            "No engine of this model can be reached. Try again later.",
            failed,
            retry_after_us=5 * US_PER_S,
        )
    if isinstance(error, EngineTimeoutError):
        message = "The engine took too long to answer."
        return Problem(504, error.code, message, failed, executed=True)
    message = "The engine's answer broke off or could not be read."
    return Problem(502, error.code, message, failed, executed=True)


CALLER_STATUSES = frozenset({400, 413, 422})
"""Statuses with which an engine refuses what the caller sent."""


def _engine_refusal(error: EngineRefusedError) -> Problem:
    failed = Outcome.FAILED.value
    if error.status in {429, 503}:
        return Problem(
            503,
            "engine_busy",
            "The engine has no room for the request. Try again later.",
            failed,
            retry_after_us=5 * US_PER_S,
        )
    if error.status in CALLER_STATUSES:
        told = _engine_words(error.body)
        message = told.message or "The engine refuses the request."
        return Problem(400, "engine_rejected", message, failed, param=told.param)
    return Problem(
        502,
        "engine_failed",
        f"The engine failed with status {error.status}.",
        failed,
        executed=True,
    )


class _EngineError(msgspec.Struct):
    message: str = ""
    param: str | None = None


class _EngineErrorBody(msgspec.Struct):
    """As OpenAI has it; TEI: a text under ``error``; others: a bare ``message``."""

    error: _EngineError | str = ""
    message: str = ""


def _engine_words(body: bytes) -> _EngineError:
    """Return what an engine said of the caller's fault, at most 1,000 characters of it."""
    try:
        told = msgspec.json.decode(body, type=_EngineErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _EngineError()
    error = told.error
    if isinstance(error, str):
        error = _EngineError(error or told.message)
    return _EngineError(error.message[:1000], error.param)
