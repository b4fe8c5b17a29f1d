# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, as the client is told: status, code, words, when to come back.

The contract: 429 and 503 were certainly not executed, so that sending again is
safe; 502 and 504 may have been. ``x-request-executed`` says it.
"""

from dataclasses import dataclass

import msgspec

from taketurns.aio import TurnExpiredError, TurnRefusedError
from taketurns.core.decision import Outcome, Refusal
from taketurns.dialects import openai
from taketurns.errors import (
    EngineError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
    RequestError,
    StoreUnavailableError,
    TaketurnsError,
)
from taketurns.gateway.exchange import Answer

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
        retry_after_s: When to try again, in whole seconds; None: not by waiting.
        allowed: Methods that the URL takes, where another was used.
    """

    status: int
    code: str
    message: str
    outcome: str
    param: str | None = None
    executed: bool = False
    retry_after_s: int | None = None
    allowed: str | None = None

    def answer(self) -> Answer:
        """Return the answer in OpenAI's form."""
        headers = {"x-request-executed": "unknown" if self.executed else "no"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(self.retry_after_s)
            headers["retry-after-ms"] = str(self.retry_after_s * 1000)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.allowed is not None:
            headers["Allow"] = self.allowed
        body = openai.error_answer(self.status, self.code, self.message, self.param)
        return Answer(self.status, body, headers=headers)


def problem_of(error: Exception, *, retry_after_s: int = 1) -> Problem:
    """Return what a client is told of an error.

    Args:
        error: What was raised. What nobody foresaw becomes a bare 500.
        retry_after_s: When a queue that is full will have room.
    """
    match error:
        case RequestError():
            return Problem(
                error.status,
                error.code,
                _told(error),
                INVALID,
                param=error.param,
                allowed=error.allowed if isinstance(error, MethodError) else None,
            )
        case TurnRefusedError():
            return _refused(error, retry_after_s)
        case TurnExpiredError():
            return Problem(
                429,
                error.code,
                "The request waited in the queue until its time was up. Try again later, "
                "or send less at once.",
                Outcome.EXPIRED.value,
                retry_after_s=retry_after_s,
            )
        case DrainingError():
            return Problem(
                503,
                error.code,
                "The gateway is shutting down. Try again: another instance may answer.",
                Outcome.REFUSED.value,
                retry_after_s=1,
            )
        case EngineError():
            return _engine_problem(error)
        case StoreUnavailableError():
            return Problem(
                503,
                error.code,
                "The gateway can't reach its store of API keys. Try again later.",
                Outcome.REFUSED.value,
                retry_after_s=5,
            )
        case _:
            return Problem(
                500,
                "internal_error",
                "The gateway failed. Its log has the details under this request's id.",
                Outcome.FAILED.value,
                executed=True,
            )


def _told(error: TaketurnsError) -> str:
    return f"{error} {error.hint}".strip()


def _refused(error: TurnRefusedError, retry_after_s: int) -> Problem:
    refused = error.refused
    if refused.reason is Refusal.TENANT_QUEUE_FULL:
        return Problem(
            429,
            refused.reason.value,
            f"Your organisation's queue for this model is full: {refused.queued} of "
            f"{refused.limit}. Send fewer at once, or try again later.",
            Outcome.REFUSED.value,
            retry_after_s=retry_after_s,
        )
    return Problem(
        503,
        refused.reason.value,
        "The queue of this model is full. Try again later.",
        Outcome.REFUSED.value,
        retry_after_s=retry_after_s,
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
            retry_after_s=5,
        )
    if isinstance(error, EngineTimeoutError):
        message = "The engine took too long to answer."
        return Problem(504, error.code, message, failed, executed=True)
    message = "The engine's answer broke off or could not be read."
    return Problem(502, error.code, message, failed, executed=True)


CALLER_STATUSES = frozenset({400, 404, 413, 422})
"""Statuses with which an engine refuses what the caller sent."""


def _engine_refusal(error: EngineRefusedError) -> Problem:
    failed = Outcome.FAILED.value
    if error.status in {429, 503}:
        return Problem(
            503,
            "engine_busy",
            "The engine has no room for the request. Try again later.",
            failed,
            retry_after_s=5,
        )
    if error.status in CALLER_STATUSES - {404}:
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
    error: _EngineError


def _engine_words(body: bytes) -> _EngineError:
    """Return what an engine said of the caller's fault, at most 1,000 characters of it."""
    try:
        error = msgspec.json.decode(body, type=_EngineErrorBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _EngineError()
    return _EngineError(error.message[:1000], error.param)
