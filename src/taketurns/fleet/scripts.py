# SPDX-License-Identifier: Apache-2.0
"""Lua functions as files: what they share is put in front of each when it's loaded."""

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

SHEBANG = "#!lua\n"
"""Lets a full, read-only or replica server refuse a script before its first command."""


class Script(NamedTuple):
    """A Lua function of the server.

    Attributes:
        name: For messages and metrics.
        text: Its source.
        sha: By which the server knows it.
    """

    name: str
    text: str
    sha: str


@cache
def load_script(name: str, *shared: str) -> Script:
    """Return the script of ``lua/NAME.lua``.

    Args:
        name: Of the file, without its ending.
        shared: Files whose text stands before it, in this order.
    """
    folder = files("taketurns.fleet") / "lua"
    parts = [(folder / f"{part}.lua").read_text("utf-8") for part in (*shared, name)]
    text = SHEBANG + "\n".join(parts)
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
