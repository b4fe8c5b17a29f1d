# SPDX-License-Identifier: Apache-2.0
"""Errors that the package raises on purpose: what went wrong, and what to do about it.

Whose fault it was decides the branch: the operator's (`ConfigError`), a
store's, an engine's, or the caller's (`RequestError`). A refusal to queue is
no error but a value, see :mod:`taketurns.core.decision`.
"""

from typing import ClassVar


class TaketurnsError(Exception):
    """Base of every error that this package raises on purpose.

    Attributes:
        code: Stable name for machines, ``snake_case``. Appears in HTTP bodies,
            in logs and in ``docs/reference/errors.md``; never reused.
        hint: What the reader can do about it: one sentence, or empty.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TaketurnsError):
    """The configuration cannot be used as it stands; nothing has started yet.

    Attributes:
        faults: Every fault found, in the order of the file; never empty.
        source: The file, as the operator named it, or empty.
    """

    code = "config_invalid"

    def __init__(self, faults: "list[ConfigFault]", *, source: str = "") -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults
        self.source = source


class ConfigFault:
    """One fault of a configuration.

    Attributes:
        path: Where it is, as the operator wrote it: ``tenants.acme.weight``.
        problem: What is wrong with which value, without a full stop.
        hint: What to write instead: one sentence, or empty.
    """

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        self.path = path
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.problem}." + (f" {self.hint}" if self.hint else "")


class StartError(TaketurnsError):
    """The gateway can't start here: a port in use, a package or a file missing."""

    code = "cannot_start"


class StoreError(TaketurnsError):
    """A store failed in a way that asking again does not mend."""

    code = "store_error"


class StoreUnavailableError(StoreError):
    """A store did not answer; asking again may help."""

    code = "store_unavailable"


class EngineError(TaketurnsError):
    """An engine failed.

    Attributes:
        engine: Name of the engine.
        executed: True where the engine may have begun the work, so that
            sending it again could run it twice.
    """

    code = "engine_error"
    executed = True

    def __init__(self, engine: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.engine = engine


class EngineUnavailableError(EngineError):
    """Not one byte of the request was sent: it was certainly not executed."""

    code = "engine_unavailable"
    executed = False


class EngineTimeoutError(EngineError):
    """The engine took longer than a limit allows, after the request was sent."""

    code = "engine_timeout"


class EngineBrokenError(EngineError):
    """The engine's answer broke off or can't be read, after the request was sent."""

    code = "engine_broken_answer"


REFUSED_UNEXECUTED = frozenset({400, 404, 413, 422, 429, 503})
"""Statuses that an engine answers before it does any work."""


class EngineRefusedError(EngineError):
    """The engine answered with an error status of its own.

    Attributes:
        status: HTTP status of the engine's answer, 400 to 599.
        body: The engine's answer as it came, at most 64 KiB.
    """

    code = "engine_refused"

    def __init__(self, engine: str, status: int, body: bytes) -> None:
        hint = ""
        if status in {401, 403}:
            hint = "Does it want another key (engines[].key)?"
        elif status in {404, 405}:
            hint = (
                "Does it know the model by the name that is configured (engines[].model), and the "
                "path?"
            )
        super().__init__(engine, f"engine {engine} answered {status}", hint=hint)
        self.status = status
        self.body = body
        self.executed = status not in REFUSED_UNEXECUTED


class RequestError(TaketurnsError):
    """The caller's fault.

    Attributes:
        status: HTTP status, 400 to 499.
        code: Stable name of the fault.
        param: The field that is wrong, as the caller wrote it, or None.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code  # type: ignore[misc]
        self.param = param
