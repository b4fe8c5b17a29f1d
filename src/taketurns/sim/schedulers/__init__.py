# SPDX-License-Identifier: Apache-2.0
"""Schedulers to compare, each in a file of its own; ours is the production core."""
