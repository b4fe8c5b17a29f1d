# SPDX-License-Identifier: Apache-2.0
"""Wire formats without I/O: HTTP/1.1 and server-sent events."""
