# SPDX-License-Identifier: Apache-2.0
"""The gateway's callers' languages: reading requests, writing answers and errors."""
