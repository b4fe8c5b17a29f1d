# SPDX-License-Identifier: Apache-2.0
"""Fair scheduling for many tenants that share one pool of LLM engines.

The names below are loaded when they are first used: importing this loads
nothing else, and none of them needs the gateway or a third-party package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "BatchRules",
    "Clock",
    "ConfigError",
    "Dispatcher",
    "Ended",
    "Expired",
    "Explanation",
    "Granted",
    "Outcome",
    "PoolRules",
    "PoolSnapshot",
    "Refusal",
    "Refused",
    "Scheduler",
    "SystemClock",
    "TaketurnsError",
    "Tenant",
    "Ticket",
    "Tier",
    "Turn",
    "TurnExpiredError",
    "TurnRefusedError",
    "Turns",
    "VirtualClock",
    "jain_index",
    "max_min_shares",
]

if TYPE_CHECKING:
    # What type checkers read in place of the function below: it would hide from them
    # which names there are and of which types.
    from taketurns.aio import Turn, TurnExpiredError, TurnRefusedError, Turns
    from taketurns.core.decision import Ended, Expired, Granted, Outcome, Refusal, Refused
    from taketurns.core.fairness import jain_index, max_min_shares
    from taketurns.core.model import BatchRules, PoolRules, Tenant, Ticket, Tier
    from taketurns.core.scheduler import Scheduler
    from taketurns.core.snapshot import Explanation, PoolSnapshot
    from taketurns.dispatch import Dispatcher
    from taketurns.errors import ConfigError, TaketurnsError
    from taketurns.ports.clock import Clock, VirtualClock
    from taketurns.system import SystemClock
else:
    _MODULE_BY_NAME = {
        "BatchRules": "taketurns.core.model",
        "Clock": "taketurns.ports.clock",
        "ConfigError": "taketurns.errors",
        "Dispatcher": "taketurns.dispatch",
        "Ended": "taketurns.core.decision",
        "Expired": "taketurns.core.decision",
        "Explanation": "taketurns.core.snapshot",
        "Granted": "taketurns.core.decision",
        "Outcome": "taketurns.core.decision",
        "PoolRules": "taketurns.core.model",
        "PoolSnapshot": "taketurns.core.snapshot",
        "Refusal": "taketurns.core.decision",
        "Refused": "taketurns.core.decision",
        "Scheduler": "taketurns.core.scheduler",
        "SystemClock": "taketurns.system",
        "TaketurnsError": "taketurns.errors",
        "Tenant": "taketurns.core.model",
        "Ticket": "taketurns.core.model",
        "Tier": "taketurns.core.model",
        "Turn": "taketurns.aio",
        "TurnExpiredError": "taketurns.aio",
        "TurnRefusedError": "taketurns.aio",
        "Turns": "taketurns.aio",
        "VirtualClock": "taketurns.ports.clock",
        "jain_index": "taketurns.core.fairness",
        "max_min_shares": "taketurns.core.fairness",
    }

    def __getattr__(name: str) -> object:
        """Load a public name on its first use."""
        module = _MODULE_BY_NAME.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """Name what can be had from here."""
        return sorted({*globals(), *__all__})
