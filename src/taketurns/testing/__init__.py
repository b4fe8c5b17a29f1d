# SPDX-License-Identifier: Apache-2.0
"""Fakes and contract suites for those who write an engine, a store or a test."""
