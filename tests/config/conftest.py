# SPDX-License-Identifier: Apache-2.0
"""A small valid configuration that the tests of this folder change in one place."""

import copy

import pytest

SMALL = {
    "tiers": {"production": {"rank": 0}},
    "models": {"chat": {"endpoints": ["chat"], "engines": [{"url": "http://127.0.0.1:1"}]}},
    "tenants": {"acme": {"tier": "production"}},
}


@pytest.fixture
def small():
    """Return a valid configuration's data, to be changed at will."""
    return copy.deepcopy(SMALL)
