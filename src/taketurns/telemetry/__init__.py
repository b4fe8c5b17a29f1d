# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a running gateway: metrics and records."""
