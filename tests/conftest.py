# SPDX-License-Identifier: Apache-2.0
"""How hypothesis runs: the same examples each time, or many with HYPOTHESIS_PROFILE=proof."""

import os

from hypothesis import HealthCheck, settings

# Time limits per example would fail on a slow machine; derandomize keeps runs alike.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile(
    "default", max_examples=150, stateful_step_count=40, derandomize=True, database=None, **_COMMON
)
settings.register_profile("proof", max_examples=1_000, stateful_step_count=80, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
