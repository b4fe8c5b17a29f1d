# SPDX-License-Identifier: Apache-2.0
"""The gateway: from a request on a socket to an engine and back."""
