# SPDX-License-Identifier: Apache-2.0
"""Decides how many slots each engine of a pool has at present.

Two things say so: how much of the engine can be used at all
(:mod:`taketurns.gateway.breaker`), and how many requests it should run
(:mod:`taketurns.core.auto_slots`). Both learn from the requests sent to it: each
is made inside :meth:`Availability.call`.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from taketurns.config.engines import AUTO, EngineConfig, UrlEngineConfig
from taketurns.config.pools import engines
from taketurns.config.served import ModelConfig
from taketurns.errors import (
    EngineBrokenError,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from taketurns.gateway.breaker import Breaker, HealthRules
from taketurns.gateway.fit import MISFITS, Fit
from taketurns.ports.clock import Clock, Timer
from taketurns.ports.coordinator import Finder, MakeFinder
from taketurns.ports.engine import EngineState
from taketurns.units import us_from_s

LOG = logging.getLogger(__name__)

ATTEMPTS = 3
"""Engines that a request is sent to, as long as none of them began to work on it."""

NO_ROOM = frozenset({429, 503})
"""Statuses with which an engine says that it's full: it did nothing."""

REASONS = ("unreachable", "status", "timeout", "broken", "full", "misfit")
"""Why a request failed by its engine's fault."""

AUTO_START = 8
"""Slots that ``auto`` begins with, within its bounds."""


class _Engine:
    """One engine.

    Attributes:
        known: It was looked at before; of its first slots there is nothing to tell.
        slots: Given to the scheduler at present.
        timer: Wakes it at ``due_us``, or None.
        failures: Requests that failed by its fault, by reason.
    """

    __slots__ = (
        "breaker",
        "due_us",
        "failures",
        "finder",
        "fit",
        "known",
        "name",
        "slots",
        "timer",
    )

    def __init__(self, name: str, breaker: Breaker, finder: Finder) -> None:
        self.name = name
        self.breaker = breaker
        self.finder = finder
        self.fit = Fit()
        self.slots = 0
        self.known = False
        self.timer: Timer | None = None
        self.due_us = 0
        self.failures = dict.fromkeys(REASONS, 0)


class Availability:
    """The engines of one pool.

    Args:
        set_engine: Gives an engine of the pool so many slots.
        clock: Calls back when something changes with time.
        model: What the operator wrote of the model.
        make_finder: Makes what finds the slots of an engine.
        on_hopeless: Called when no engine could be used for as long as requests wait for one.
    """

    def __init__(
        self,
        set_engine: Callable[[str, int], None],
        clock: Clock,
        model: ModelConfig,
        make_finder: MakeFinder,
        on_hopeless: Callable[[], None] = lambda: None,
    ) -> None:
        self._set_engine = set_engine
        self._clock = clock
        self._make_finder = make_finder
        self._on_hopeless = on_hopeless
        self._engines: dict[str, _Engine] = {}
        self._wait_us = 0
        self._down_since_us: int | None = None
        self._hope: Timer | None = None
        self._model = model
        self._closed = False

    def configure(self, model: ModelConfig) -> None:
        """Give the engines what the operator wrote; those that are left out get nothing more."""
        self._model = model
        self._wait_us = us_from_s(model.health.no_engine_wait)
        parts = engines(model)
        for name in self._engines.keys() - parts.keys():
            self._engines[name].finder.bound(0, 0, grows=False)
            self._apply(self._engines[name])
        for name, part in parts.items():
            self._configure(name, part)

    def idle(self, name: str) -> bool:
        """Tell whether nothing runs on an engine."""
        return self._engines[name].finder.load.in_flight == 0

    def forget(self, name: str) -> None:
        """Leave out an engine on which nothing runs and nothing can start any more."""
        engine = self._engines.pop(name)
        if engine.timer is not None:
            engine.timer.cancel()

    def call(self, name: str, *, stream: bool) -> "EngineCall":
        """Return a context in which one request is sent to an engine.

        How the block ends says how the engine fares: an :class:`EngineError`
        that leaves it is noted, and must leave it unchanged.

        Args:
            name: The engine.
            stream: The answer comes piece by piece.
        """
        return EngineCall(self, self._engines[name], stream=stream)

    @property
    def any(self) -> bool:
        """True unless no engine can be used, and couldn't for as long as requests wait for one."""
        down_since_us = self._down_since_us
        if down_since_us is None or self.usable:
            return True
        return self._clock.now_us() < down_since_us + self._wait_us

    @property
    def usable(self) -> bool:
        """True where at least one engine is in service, or is tried."""
        now_us = self._clock.now_us()
        return any(e.finder.slots and e.breaker.usable(now_us) for e in self._engines.values())

    @property
    def misfit(self) -> bool:
        """True where an engine refuses request after request (401, 403, 404 or 405)."""
        engines = self._engines.values()
        return any(e.fit.misfits >= e.breaker.rules.broken_after for e in engines)

    def states(self) -> tuple[EngineState, ...]:
        """Return how each engine fares."""
        now_us = self._clock.now_us()
        return tuple(
            EngineState(
                engine.name,
                engine.breaker.state(now_us),
                engine.slots,
                engine.finder.slots,
                engine.finder.grows,
                engine.finder.load.in_flight,
                engine.finder.queue,
                dict(engine.failures),
                engine.fit.misfits,
            )
            for engine in self._engines.values()
        )

    def drain(self, name: str, *, drained: bool) -> bool:
        """Start nothing more on an engine, or use it again; False where there is no such one."""
        engine = self._engines.get(name)
        if engine is None:
            return False
        engine.breaker.drained = drained
        LOG.info("engine %s is %s", name, "drained" if drained else "used again")
        self._apply(engine)
        return True

    def checked(self, name: str, *, well: bool) -> None:
        """Note the result of a health check."""
        engine = self._engines[name]
        now_us = self._clock.now_us()
        if engine.breaker.checked(well, now_us):
            engine.finder.restart(now_us)
        self._apply(engine)

    def gauged(self, name: str, waiting: int) -> None:
        """Note how many requests wait inside an engine by its own account."""
        self._engines[name].finder.load.gauge(waiting, self._clock.now_us())

    def close(self) -> None:
        """Change nothing any more."""
        self._closed = True
        for engine in self._engines.values():
            if engine.timer is not None:
                engine.timer.cancel()
        if self._hope is not None:
            self._hope.cancel()

    # What follows is for EngineCall.

    def begun(self, engine: _Engine, *, stream: bool) -> int:
        """Count a request that is sent, and return when."""
        now_us = self._clock.now_us()
        engine.finder.started(now_us, stream=stream)
        # Slots that are set change by themselves after a refusal only, which arms it too.
        if engine.timer is None and engine.finder.grows:
            self._arm(engine, now_us)
        return now_us

    def first_byte(self, engine: _Engine, begun_us: int) -> None:
        """Note a stream's first byte."""
        now_us = self._clock.now_us()
        engine.finder.load.first_byte(now_us - begun_us, now_us)

    def answered(self, engine: _Engine) -> None:
        """Note that an engine answers."""
        now_us = self._clock.now_us()
        if engine.breaker.answered(now_us):
            LOG.info("engine %s is back", engine.name)
            engine.finder.restart(now_us)
            self._apply(engine)

    def ended(self, engine: _Engine, error: BaseException | None, *, pending: bool) -> None:
        """Count a request that runs no longer, and note what that says of its engine."""
        now_us = self._clock.now_us()
        engine.finder.load.ended(now_us, pending=pending)
        if error is None:
            engine.fit.answered(well=True)
            if engine.breaker.calm:
                return
        self._learn(engine, error, now_us)

    def _learn(self, engine: _Engine, error: BaseException | None, now_us: int) -> None:
        breaker = engine.breaker
        if error is None:
            if breaker.answered(now_us):
                engine.finder.restart(now_us)
            breaker.succeeded()
        elif isinstance(error, EngineUnavailableError):
            engine.failures["unreachable"] += 1
            breaker.unreachable(now_us)
        elif isinstance(error, EngineRefusedError):
            if error.status in NO_ROOM:
                engine.failures["full"] += 1
                engine.finder.refused(now_us)
                if engine.finder.load.in_flight == 0:
                    breaker.pause(now_us)
            elif error.status >= 500:
                engine.failures["status"] += 1
                breaker.failed(now_us)
            elif error.status in MISFITS:
                self._misfit(engine, error, now_us)
            else:
                breaker.succeeded()
                engine.fit.answered(well=False)
        elif isinstance(error, EngineTimeoutError | EngineBrokenError):
            slow = isinstance(error, EngineTimeoutError)
            engine.failures["timeout" if slow else "broken"] += 1
            breaker.failed(now_us)
        else:
            # The client went, or we stopped: nothing is learned.
            return
        self._apply(engine)

    def _misfit(self, engine: _Engine, error: EngineRefusedError, now_us: int) -> None:
        """Note an answer that says that engine and configuration don't fit."""
        engine.failures["misfit"] += 1
        limit = engine.breaker.rules.broken_after
        out = engine.fit.misfit(now_us, limit)
        if engine.fit.misfits == limit:
            LOG.warning("%s to %d requests in a row. %s", error, limit, error.hint)
        others = (e for e in self._engines.values() if e.breaker.usable(now_us))
        if out and any(other.fit.misfits == 0 and other.finder.slots for other in others):
            engine.breaker.unreachable(now_us)

    def _configure(self, name: str, part: EngineConfig) -> None:
        section, slots = self._model.health, part.slots
        rules = HealthRules(
            broken_after=section.broken_after,
            unhealthy_after=section.unhealthy_after,
            healthy_after=section.healthy_after,
            # One whose slots are found begins with few by itself.
            slow_start_us=0 if slots == AUTO else us_from_s(section.slow_start),
        )
        if isinstance(slots, int):
            auto, least, most = False, min(1, slots), slots
        else:
            assert isinstance(part, UrlEngineConfig), "an embedded engine's slots are set"
            auto, least, most = True, part.slots_min, part.slots_max
        engine = self._engines.get(name)
        if engine is None:
            finder = self._make_finder(
                name,
                least,
                most,
                start=AUTO_START if auto else most,
                on_change=lambda: self._found(name),
            )
            self._engines[name] = engine = _Engine(name, Breaker(rules), finder)
        engine.breaker.rules = rules
        usable_percent = 100 - self._model.headroom
        engine.finder.bound(least, most, grows=auto, usable_percent=usable_percent)
        self._apply(engine)

    def _found(self, name: str) -> None:
        """Use a limit that others have found."""
        if name in self._engines:
            self._apply(self._engines[name])

    def _apply(self, engine: _Engine) -> None:
        """Let the scheduler know of an engine's slots, and wake when they change by themselves."""
        now_us = self._clock.now_us()
        slots = engine.breaker.slots(engine.finder.slots, now_us)
        if slots != engine.slots:
            if engine.known and (slots == 0 or engine.slots == 0):
                state = engine.breaker.state(now_us)
                LOG.log(
                    logging.WARNING if slots == 0 else logging.INFO,
                    "engine %s is %s: %d slots",
                    engine.name,
                    state,
                    slots,
                )
            engine.slots = slots
            self._set_engine(engine.name, slots)
            self._look(now_us)
        engine.known = True
        self._arm(engine, now_us)

    def _arm(self, engine: _Engine, now_us: int) -> None:
        both = (engine.breaker.next_wake_us(now_us), engine.finder.next_wake_us())
        wakes = [wake_us for wake_us in both if wake_us is not None]
        if not wakes or self._closed:
            return
        due_us = min(wakes)
        if engine.timer is not None:
            # To be woken too early does no harm.
            if engine.due_us <= due_us:
                return
            engine.timer.cancel()
        engine.due_us = due_us
        engine.timer = self._clock.call_at(due_us, lambda: self._wake(engine))

    def _wake(self, engine: _Engine) -> None:
        engine.timer = None
        engine.finder.advance(self._clock.now_us())
        self._apply(engine)

    def _look(self, now_us: int) -> None:
        """See whether any engine is left, and who waits must be told that none is."""
        if self.usable:
            if not any(e.breaker.state(now_us) == "trying" for e in self._engines.values()):
                self._down_since_us = None
            if self._hope is not None:
                self._hope.cancel()
                self._hope = None
            return
        if self._down_since_us is None:
            self._down_since_us = now_us
        if self._hope is None and not self._closed:
            end_us = max(now_us, self._down_since_us + self._wait_us)
            self._hope = self._clock.call_at(end_us, self._lose_hope)

    def _lose_hope(self) -> None:
        self._hope = None
        self._on_hopeless()


class EngineCall:
    """One request that is sent to an engine: a context around it.

    Attributes:
        begun_us: When it was sent.
    """

    __slots__ = ("_availability", "_engine", "_pending", "_stream", "begun_us")

    def __init__(self, availability: Availability, engine: _Engine, *, stream: bool) -> None:
        self._availability = availability
        self._engine = engine
        self._stream = stream
        self._pending = stream
        self.begun_us = 0

    def __enter__(self) -> Self:
        self.begun_us = self._availability.begun(self._engine, stream=self._stream)
        return self

    def answered(self) -> None:
        """Say that a head came which is no error."""
        if not self._engine.breaker.calm:
            self._availability.answered(self._engine)

    def streamed(self, tokens: int) -> None:
        """Count what a stream brings, as soon as it comes."""
        if self._pending:
            self._pending = False
            self._availability.first_byte(self._engine, self.begun_us)
        self._engine.finder.load.produced(tokens)

    def produced(self, tokens: int) -> None:
        """Count what the engine has produced for an answer that came whole."""
        self._engine.finder.load.produced(tokens)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._availability.ended(self._engine, error, pending=self._pending)
