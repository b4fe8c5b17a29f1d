# SPDX-License-Identifier: Apache-2.0
"""An engine as a process that can be killed: it writes down what it begins, before it answers.

    python -m taketurns.testing.writing_engine PORT FILE

Each line of the file is the text of a request's last message. A request whose text
begins with ``stay`` is never answered. The process ends when it's killed.
"""

import asyncio
import os
import sys

import msgspec

from taketurns.testing.http_engine import FakeHttpEngine, Request, _Peer

RUNS_S = 0.02
"""How long a request runs."""


class _Message(msgspec.Struct):
    content: str


class _Body(msgspec.Struct):
    messages: list[_Message]


class WritingEngine(FakeHttpEngine):
    """Writes a request down when it comes, and answers a moment later.

    Args:
        port: Where it listens.
        path: Of the file, to which several engines may write.
    """

    def __init__(self, port: int, path: str) -> None:
        super().__init__(text=" ".join(["word"] * 50))
        self._port = port
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.hold()

    def receive(self, peer: _Peer, request: Request) -> None:
        """Take a request."""
        text = ""
        if request.method == "POST":
            text = msgspec.json.decode(request.body, type=_Body).messages[-1].content
            os.write(self._file, f"{text}\n".encode())
        super().receive(peer, request)
        if not text.startswith("stay"):
            asyncio.get_running_loop().call_later(RUNS_S, peer.go_on)


async def main(port: str, path: str) -> None:
    """Serve until killed."""
    async with WritingEngine(int(port), path):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
