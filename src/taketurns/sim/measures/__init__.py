# SPDX-License-Identifier: Apache-2.0
"""Measures of a run: each looks at what passes and keeps what it needs, never the requests."""
