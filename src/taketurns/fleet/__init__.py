# SPDX-License-Identifier: Apache-2.0
"""Many gateways, one share: turns and limits that are kept in Redis or Valkey."""
