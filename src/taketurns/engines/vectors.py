# SPDX-License-Identifier: Apache-2.0
"""Reads vectors and scores from engines' answers, one by one, so that the event loop isn't held.

A JSON decoder keeps Python's lock for as long as it runs, so a thread would
hold the loop up just the same. So an answer is first cut into its items, which
is fast, and then each is decoded by itself with pauses in between.
"""

import binascii
import math
import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from taketurns.system import give_way

T = TypeVar("T")

BYTES_AT_ONCE = 64 * 1024
"""So much JSON is decoded before others get their turn: about a millisecond in numbers."""

_VECTOR = msgspec.json.Decoder(str | list[float])


def float32(embedding: str | list[float]) -> bytes:
    """Return a vector as little-endian float32 bytes.

    Raises:
        ValueError: It can't be: it's empty, not base64, or not finite.
    """
    if isinstance(embedding, str):
        try:
            data = binascii.a2b_base64(embedding, strict_mode=True)
        except ValueError as error:
            raise ValueError("a vector is not valid base64") from error
        if len(data) % 4:
            raise ValueError("the length of a vector in base64 is no multiple of 4 bytes")
        numbers = array("f", data)
        if sys.byteorder == "big":
            numbers.byteswap()
    else:
        numbers = array("f", embedding)
    if not numbers:
        raise ValueError("a vector is empty")
    # Doubles can't overflow on a sum of float32, so only what isn't finite spoils it.
    if not math.isfinite(sum(numbers)):
        raise ValueError("a vector holds a number that isn't finite")
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def shortened(vector: bytes, dimensions: int) -> bytes:
    """Return the first numbers of a longer vector, brought to length 1; a shorter one as it is.

    That is what `dimensions` asks of a model that was trained for it (A. Kusupati
    et al., "Matryoshka Representation Learning", NeurIPS 2022); some servers
    leave the field unread.

    Args:
        vector: Little-endian float32 bytes.
        dimensions: How many numbers, at least 1.
    """
    if len(vector) <= 4 * dimensions:
        return vector
    numbers = array("f", vector[: 4 * dimensions])
    if sys.byteorder == "big":
        numbers.byteswap()
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    numbers = array("f", [number / length for number in numbers])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


async def vectors(parts: Sequence[msgspec.Raw]) -> list[bytes]:
    """Decode vectors, each in base64 or as numbers; all must be of one length.

    Raises:
        ValueError: One can't be used; the text quotes nothing of it.
    """
    found = []
    size = 0
    for part in parts:
        found.append(float32(_VECTOR.decode(part)))
        size += len(part)
        if size > BYTES_AT_ONCE:
            size = 0
            await give_way()
    if len({len(vector) for vector in found}) > 1:
        raise ValueError("the vectors are of different lengths")
    return found


def in_order(items: Sequence[tuple[int, T]], count: int) -> list[T]:
    """Put items in the order of their indices.

    Raises:
        ValueError: There are not ``count`` of them, or an index is out of range or there twice.
    """
    if len(items) != count:
        raise ValueError(f"{len(items)} results came for {count} items")
    by_index = dict(items)
    if len(by_index) != count or not all(0 <= index < count for index in by_index):
        raise ValueError("an index is out of range or there twice")
    return [by_index[index] for index in range(count)]


def finite(scores: Sequence[float]) -> Sequence[float]:
    """Return scores that are all finite.

    Raises:
        ValueError: One isn't.
    """
    if not all(map(math.isfinite, scores)):
        raise ValueError("a score isn't finite")
    return scores
