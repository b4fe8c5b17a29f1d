# SPDX-License-Identifier: Apache-2.0
"""What the parts need of each other, as protocols; and the virtual clock."""
