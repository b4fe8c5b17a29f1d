# SPDX-License-Identifier: Apache-2.0
"""Slots: how many grants each engine may run at once, and which engine takes the next one.

The count of what we have in flight is the only truth here; whatever an engine
says of itself reaches this module as a change of its slots.
"""

MASK = 2**64 - 1

OVERLOAD_PERCENT = 125
"""Load, against the pool's, from which on an engine isn't preferred any more."""


class EngineSlots:
    """One engine of a pool.

    Attributes:
        name: Unique in the pool.
        slots: Grants that may run at once; 0: none are started.
        in_flight: Grants that run. More than ``slots`` after these were lowered.
        order: Number in the order in which engines were added.
        key: Made of the name: the same in every process.
    """

    __slots__ = ("in_flight", "key", "name", "order", "slots")

    def __init__(self, name: str, slots: int, order: int) -> None:
        self.name = name
        self.slots = slots
        self.in_flight = 0
        self.order = order
        # FNV-1a, 64 bits.
        self.key = 0xCBF29CE484222325
        for byte in name.encode():
            self.key = (self.key ^ byte) * 0x100000001B3 & MASK


class Slots:
    """The engines of a pool.

    Attributes:
        total: Slots of all engines.
        available: Engines with a free slot, by name.
        kept: Slots that are kept for tenants that hold none.
        held: Slots on which something runs.
    """

    __slots__ = ("_engines", "_numbers", "available", "held", "kept", "total")

    def __init__(self) -> None:
        self._engines: dict[str, EngineSlots] = {}
        self.available: dict[str, EngineSlots] = {}
        self._numbers = 0
        self.total = 0
        self.kept = 0
        self.held = 0

    @property
    def free(self) -> int:
        """Slots on which nothing runs."""
        return self.total - self.held

    @property
    def full(self) -> bool:
        """True where nothing more can start but for tenants that hold no slot, if at all."""
        return not self.available or (self.kept > 0 and self.free <= self.kept)

    @property
    def engines(self) -> tuple[EngineSlots, ...]:
        """The engines, in the order in which they were added; removed ones are left out."""
        return tuple(self._engines.values())

    def set_engine(self, name: str, slots: int) -> None:
        """Add an engine, or change how many slots it has.

        Raises:
            ValueError: ``slots`` is negative.
        """
        if slots < 0:
            raise ValueError(f"slots must be at least 0, got {slots}")
        engine = self._engines.get(name)
        if engine is None:
            self._numbers += 1
            self._engines[name] = engine = EngineSlots(name, 0, self._numbers)
        self._resize(engine, slots)
        self._list(engine)

    def remove_engine(self, name: str) -> None:
        """Start nothing more on an engine and forget it; what runs there goes on."""
        engine = self._engines.pop(name, None)
        if engine is not None:
            self._resize(engine, 0)
            self.available.pop(name, None)

    def take(self, affinity: int = 0) -> EngineSlots:
        """Take a slot of the engine with the least share of its slots in use, of those available.

        With an affinity: of the same one each time, as long as it's available and not
        overloaded. Source: rendezvous hashing (D. Thaler and C. Ravishankar, IEEE/ACM ToN
        6(1), 1998) with bounded loads (V. Mirrokni et al., SODA 2018).

        O(engines with a free slot): when there is work for all, that is about one.

        Args:
            affinity: Tickets of the same number belong together; 0: with none.
        """
        available = self.available
        if len(available) == 1:
            (engine,) = available.values()
        elif affinity:
            engine = self._preferred(affinity)
        else:
            # The quotients are exact enough: two different fractions of integers
            # below 2**26 never round to one double.
            engine = min(
                available.values(),
                key=lambda engine: (engine.in_flight / engine.slots, engine.order),
            )
        self.held += 1
        engine.in_flight += 1
        if engine.in_flight >= engine.slots:
            del available[engine.name]
        return engine

    def release(self, engine: EngineSlots) -> None:
        """Count one grant less on an engine."""
        engine.in_flight -= 1
        if engine.in_flight < engine.slots:
            self.held -= 1
            self.available[engine.name] = engine

    def _preferred(self, affinity: int) -> EngineSlots:
        running = sum(engine.in_flight for engine in self._engines.values()) + 1
        # One is always within it: that with the least share of its slots in use.
        fit = [
            engine
            for engine in self.available.values()
            if engine.in_flight * self.total * 100 < OVERLOAD_PERCENT * running * engine.slots
        ]
        return max(fit, key=lambda engine: (_mixed(engine.key ^ affinity), -engine.order))

    def _resize(self, engine: EngineSlots, slots: int) -> None:
        in_flight = engine.in_flight
        self.held += min(in_flight, slots) - min(in_flight, engine.slots)
        self.total += slots - engine.slots
        engine.slots = slots

    def _list(self, engine: EngineSlots) -> None:
        if engine.in_flight < engine.slots:
            self.available[engine.name] = engine
        else:
            self.available.pop(engine.name, None)


def _mixed(number: int) -> int:
    """Scatter a number over 64 bits, as SplitMix64 does it (G. Steele et al., OOPSLA 2014)."""
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
    return number ^ number >> 31
