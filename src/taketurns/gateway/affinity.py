# SPDX-License-Identifier: Apache-2.0
"""Which requests should meet the same engine, as its prefix cache may know their beginning."""

import re
from hashlib import blake2b

PREFIX_BYTES = 1024
"""How much of a prompt's beginning tells requests apart: about 256 tokens."""

_PROMPT = re.compile(rb'"(?:messages|prompt|input)"\s*:')


def affinity_of(sticky: str, tenant: str, body: bytes) -> int:
    """Return a number that requests share which should go to the same engine; 0: to any.

    Args:
        sticky: As the setting has it: ``off``, ``tenant`` or ``prefix``.
        tenant: The tenant: different ones share no number, but for chance.
        body: The request as it came, JSON. A prompt that begins in another place of it,
            or is written in another way, counts as another.

    Returns:
        0, or 1 to 2**48.
    """
    if sticky == "off":
        return 0
    told = blake2b(tenant.encode(), digest_size=6)
    if sticky == "prefix" and (found := _PROMPT.search(body)):
        told.update(body[found.end() : found.end() + PREFIX_BYTES])
    return int.from_bytes(told.digest()) + 1
