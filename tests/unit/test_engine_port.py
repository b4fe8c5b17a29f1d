# SPDX-License-Identifier: Apache-2.0
"""An engine whose answers only come in chunks is read to its end, or given up."""

import asyncio

import pytest

from taketurns.ports.engine import read


class Answer:
    """An answer in pieces that tells whether it was given up."""

    def __init__(self, *pieces):
        self.pieces = pieces
        self.left = []

    async def chunks(self):
        try:
            for piece in self.pieces:
                yield piece
        finally:
            self.left.append("left")

    async def aclose(self):
        self.left.append("closed")


@pytest.mark.parametrize(
    ("pieces", "found"),
    [((), b""), ((b"abc",), b"abc"), ((b"ab", b"cd"), b"abcd"), ((b"ab", b"cde"), None)],
)
def test_a_body_is_read_whole_up_to_a_size(pieces, found):
    answer = Answer(*pieces)
    assert asyncio.run(read(answer, 4)) == found
    assert answer.left == ["left"]
