# SPDX-License-Identifier: Apache-2.0
"""Engine models: how long what a scheduler starts takes, and how much fits at once."""
