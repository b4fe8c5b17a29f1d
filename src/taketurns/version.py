# SPDX-License-Identifier: Apache-2.0
"""The package's version, as it was installed."""

from importlib.metadata import version

VERSION = version("taketurns")
