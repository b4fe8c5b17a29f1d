# SPDX-License-Identifier: Apache-2.0
"""What the operator writes: the YAML file, checked whole, and the core's values made from it."""
