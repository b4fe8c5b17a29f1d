# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server for the tests of stores."""

import pytest

from taketurns.testing.postgres_server import PostgresServer


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
