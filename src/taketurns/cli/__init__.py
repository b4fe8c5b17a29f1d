# SPDX-License-Identifier: Apache-2.0
"""The command line: results on stdout, messages on stderr, exit codes 0, 1 and 2."""
