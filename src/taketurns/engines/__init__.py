# SPDX-License-Identifier: Apache-2.0
"""What computes: embedded models, and clients of inference servers."""
