# SPDX-License-Identifier: Apache-2.0
"""How hypothesis runs: the same examples each time, or many with HYPOTHESIS_PROFILE=proof."""

import os

import pytest
from hypothesis import HealthCheck, settings

from taketurns.testing.postgres_server import PostgresServer

# Time limits per example would fail on a slow machine; derandomize keeps runs alike.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile(
    "default", max_examples=150, stateful_step_count=40, derandomize=True, database=None, **_COMMON
)
settings.register_profile("proof", max_examples=1_000, stateful_step_count=80, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def shared_postgres():
    """One server for all tests that don't hurt it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres(shared_postgres):
    """The URL of an empty database."""
    return shared_postgres.new_database()


@pytest.fixture
def own_postgres():
    """A server that the test may kill and stop."""
    with PostgresServer() as server:
        yield server
