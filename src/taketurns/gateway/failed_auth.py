# SPDX-License-Identifier: Apache-2.0
"""Counts wrong keys by the address that sent them, in bounded memory."""

import ipaddress

from taketurns.errors import TaketurnsError
from taketurns.units import US_PER_S

WINDOW_US = 60 * US_PER_S

ADDRESSES_MAX = 10_000
"""Most addresses that are told apart in a minute; the rest count as one."""


class TooManyWrongKeysError(TaketurnsError):
    """An address has sent too many wrong keys; a right one is still accepted from it.

    Attributes:
        retry_us: How long until they are counted anew.
    """

    code = "too_many_wrong_keys"

    def __init__(self, retry_us: int) -> None:
        super().__init__("too many wrong keys from this address")
        self.retry_us = retry_us


class FailedAuth:
    """The wrong keys of the minute.

    Args:
        failures_max: Most of one address; None: any number.
    """

    def __init__(self, failures_max: int | None) -> None:
        self._failures_max = failures_max
        self._counts: dict[str, int] = {}
        self._end_us = 0

    def count(self, address: str, now_us: int) -> None:
        """Count a wrong key.

        Raises:
            TooManyWrongKeysError: There were too many before.
        """
        if self._failures_max is None:
            return
        if now_us >= self._end_us:
            self._counts.clear()
            self._end_us = now_us + WINDOW_US
        place = _network(address)
        if place not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            place = ""
        count = self._counts.get(place, 0)
        if count >= self._failures_max:
            raise TooManyWrongKeysError(self._end_us - now_us)
        self._counts[place] = count + 1


def _network(address: str) -> str:
    """Return what one client has to itself: an address, or with IPv6 64 bits of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
