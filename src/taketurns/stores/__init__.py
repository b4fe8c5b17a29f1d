# SPDX-License-Identifier: Apache-2.0
"""Adapters of the store ports: memory for one process, SQLite for one node."""
