# SPDX-License-Identifier: Apache-2.0
"""The simulator: traffic and engine models around the production scheduler, on a virtual clock."""
