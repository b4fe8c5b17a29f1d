# SPDX-License-Identifier: Apache-2.0
"""How long answers are: a moving average per tenant, seeded from that of all together.

Averages are kept in 1,024ths of a token, so that an integer follows small
changes too.
"""

SHIFT = 10
"""Averages are kept in units of 2**-10 tokens."""

WEIGHT_SHIFT = 3
"""An answer moves its tenant's average by an eighth of the difference."""

POOL_WEIGHT_SHIFT = 6
"""An answer moves the average of all by a 64th: it should follow no single tenant."""

OUTPUT_TOKENS_DEFAULT = 256
"""Output tokens that a request is thought to have before any has been seen."""


class OutputLengths:
    """Foresees the output of a tenant's next request from those before it.

    The predictor is that of VTC with length prediction (Y. Sheng et al.,
    "Fairness in Serving Large Language Models", OSDI 2024), seeded for a
    tenant not seen before with what the whole pool's answers are long.
    Bounded by the number of tenants.

    Args:
        default: What to expect before any answer has been seen, at least 1 token.
    """

    __slots__ = ("_all", "_by_tenant")

    def __init__(self, default: int = OUTPUT_TOKENS_DEFAULT) -> None:
        self._all = default << SHIFT
        self._by_tenant: dict[str, int] = {}

    def expected(self, tenant: str) -> int:
        """Return how many output tokens the next request of a tenant will have; at least 1."""
        average = self._by_tenant.get(tenant, self._all)
        return max(1, (average + (1 << SHIFT - 1)) >> SHIFT)

    def seen(self, tenant: str, tokens: int) -> None:
        """Learn from an answer that came to its end.

        Args:
            tenant: Whose answer it was.
            tokens: Output tokens it had, at least 0.
        """
        scaled = tokens << SHIFT
        known = self._by_tenant.get(tenant, self._all)
        self._by_tenant[tenant] = known + ((scaled - known) >> WEIGHT_SHIFT)
        self._all += (scaled - self._all) >> POOL_WEIGHT_SHIFT
