# SPDX-License-Identifier: Apache-2.0
"""The scheduling core: pure, deterministic, told the time; no I/O, no clock, no randomness."""
