# SPDX-License-Identifier: Apache-2.0
"""The demo: noisy and quiet tenants on real sockets and a real model, measured and drawn."""
