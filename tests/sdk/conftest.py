# SPDX-License-Identifier: Apache-2.0
"""A gateway with the embedded models, as ``make serve`` starts it, for all clients' tests."""

import pytest
from e2e.process import Process

from taketurns.engines.weights import missing


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    if missing():
        pytest.skip("the embedded models are not installed")
    directory = tmp_path_factory.mktemp("served")
    process = Process(["--quickstart", "--port", "0", "--admin-port", "0"], directory)
    yield process
    process.end()
