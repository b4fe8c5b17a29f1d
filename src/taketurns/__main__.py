# SPDX-License-Identifier: Apache-2.0
"""Lets ``python -m taketurns`` stand for the command ``taketurns``."""

from taketurns.cli.main import main

if __name__ == "__main__":
    main()
