# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory that the bodies of requests under way take: per tenant, per model, in all."""

from taketurns.errors import TaketurnsError


class TooManyBytesError(TaketurnsError):
    """The bodies under way take all the memory they may: the request was not queued.

    Attributes:
        own: True where the tenant's own bound is met, and others still have room.
        limit: The bound, in bytes.
    """

    code = "bytes_full"

    def __init__(self, *, own: bool, limit: int) -> None:
        super().__init__(f"bodies under way are at their bound of {limit} bytes")
        self.own = own
        self.limit = limit


class HeldBytes:
    """Counts the bodies of one gateway.

    Args:
        total_max: Most bytes in all, at least 1.
    """

    def __init__(self, total_max: int) -> None:
        self._total_max = total_max
        self._total = 0
        self._by_model: dict[str, int] = {}
        self._by_tenant: dict[tuple[str, str], int] = {}

    @property
    def total(self) -> int:
        """Bytes held."""
        return self._total

    def hold(
        self, size: int, *, tenant: str, model: str, tenant_max: int, model_max: int
    ) -> "Hold":
        """Count a body from here on; leaving what is returned counts it out.

        A single body is let in whatever its size.

        Args:
            size: Of the body, in bytes.
            tenant: Whose it is.
            model: What it's for.
            tenant_max: Most bytes of this tenant for this model.
            model_max: Most bytes for this model.

        Raises:
            TooManyBytesError: A bound is met; nothing was counted.
        """
        key = (tenant, model)
        own = self._by_tenant.get(key, 0)
        if own and own + size > tenant_max:
            raise TooManyBytesError(own=True, limit=tenant_max)
        held = self._by_model.get(model, 0)
        if held and held + size > model_max:
            raise TooManyBytesError(own=False, limit=model_max)
        if self._total and self._total + size > self._total_max:
            raise TooManyBytesError(own=False, limit=self._total_max)
        self._total += size
        self._by_model[model] = held + size
        if size:
            self._by_tenant[key] = own + size
        return Hold(self, key, size)

    def let_go(self, key: tuple[str, str], size: int) -> None:
        """Count out what :meth:`hold` has counted."""
        self._total -= size
        self._by_model[key[1]] -= size
        left = self._by_tenant.get(key, 0) - size
        if left:
            self._by_tenant[key] = left
        else:
            self._by_tenant.pop(key, None)


class Hold:
    """A body that is counted until the block ends that it's entered for."""

    __slots__ = ("_held", "_key", "_size")

    def __init__(self, held: HeldBytes, key: tuple[str, str], size: int) -> None:
        self._held = held
        self._key = key
        self._size = size

    def __enter__(self) -> None:
        """Do nothing: it's counted."""

    def __exit__(self, *exc_info: object) -> None:
        """Count it out."""
        self._held.let_go(self._key, self._size)
