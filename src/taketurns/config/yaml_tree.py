# SPDX-License-Identifier: Apache-2.0
"""YAML as a tree that knows where each value stands, read without trusting the file.

Only plain data is built: mappings, lists, text, numbers, true, false and null.
Departures from YAML 1.1, each because a configuration goes wrong silently
otherwise: a key that is written twice is a fault; keys are always text; only
``true`` and ``false`` are booleans (a tenant may be called ``no``, a log
``off``); ``12:30`` is text. ``<<`` merges as usual.

Depth, nodes and expanded aliases are bounded, so a small file can't grow large
here. The tree is made of the parser's events, which need no recursion.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from taketurns.errors import ConfigError, ConfigFault

Path = tuple[str | int, ...]
"""Keys and indexes from the top of the file to a value."""

Scalar = str | int | float | bool | None
Data = Scalar | list["Data"] | dict[str, "Data"]

DEPTH_MAX = 32
"""Deepest nesting; beyond it the file is refused."""

NODES_MAX = 500_000
"""Most values after aliases are expanded; beyond it the file is refused."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS: dict[str, Scalar] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INT = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]{1,18}\.[0-9]{0,18}|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,3})?")
_QUOTED = re.compile(r"'([^']*)'")

SYNTAX_HINT = (
    "Quote text that holds ': ', ' #' or ${...}, or begins with *; "
    "indent with blanks, never with tabs."
)


@dataclass(slots=True)
class Node:
    """One value of the file.

    Attributes:
        line: Line on which it begins, 1 first.
        column: Column at which it begins, 1 first.
        text: Of a scalar: its text. None for the others.
        plain: Of a scalar: written without quotes.
        items: Of a list: its values in order. None for the others.
        pairs: Of a mapping: keys and values in order. None for the others.
    """

    line: int
    column: int
    text: str | None = None
    plain: bool = False
    items: "list[Node] | None" = None
    pairs: "list[tuple[Node, Node]] | None" = None

    @property
    def where(self) -> str:
        """Position for people."""
        return f"line {self.line}, column {self.column}"


def _fault(where: str, problem: str, hint: str = "") -> ConfigError:
    return ConfigError([ConfigFault(where, problem, hint=hint)])


def scalar(node: Node) -> Scalar:
    """Return the value of a scalar as YAML 1.2 reads it."""
    text = node.text or ""
    if not node.plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def compose(text: str) -> Node | None:
    """Read a document; None where it is empty.

    Raises:
        ConfigError: It is not YAML, or uses what is not read here.
    """
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            composer.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        # What the parser quotes may be part of a secret; single characters are its own.
        problem = _QUOTED.sub(
            lambda quoted: quoted[0] if len(quoted[1]) == 1 else "…",
            error.problem or error.context or "can't be read",
        )
        raise _fault(where, f"is not YAML: {problem}", SYNTAX_HINT) from None
    except yaml.YAMLError:
        raise _fault("", "is not YAML: it holds a control character") from None
    return composer.root


def _at(event: yaml.Event) -> tuple[int, int]:
    """Return line and column of an event, 1 first."""
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


class _Composer:
    """Makes nodes of events."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[tuple[Node, str | None]] = []
        # Keys of open mappings that wait for their value, one place a level.
        self._keys: list[Node | None] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                where = f"line {_at(event)[0]}"
                raise _fault(where, "begins a second document", "Keep one document in the file.")
        elif isinstance(event, yaml.CollectionEndEvent):
            node, anchor = self._open.pop()
            self._keys.pop()
            # An anchor counts from its end on, so that nothing can hold itself.
            self._finish(node, anchor)
        elif isinstance(event, yaml.NodeEvent):
            self._begin(event)

    def _begin(self, event: yaml.NodeEvent) -> None:
        node = Node(*_at(event))
        if isinstance(event, yaml.AliasEvent):
            known = self._anchors.get(event.anchor or "")
            if known is None:
                raise _fault(node.where, "is an alias of nothing that ends above it", SYNTAX_HINT)
            self._finish(known, None)
            return
        self._refuse_tag(event, node)
        if isinstance(event, yaml.ScalarEvent):
            node.text = event.value
            node.plain = event.implicit[0]
            self._finish(node, event.anchor)
            return
        if len(self._open) >= DEPTH_MAX:
            raise _fault(node.where, f"is nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.MappingStartEvent):
            node.pairs = []
        else:
            node.items = []
        self._open.append((node, event.anchor))
        self._keys.append(None)

    def _refuse_tag(self, event: yaml.NodeEvent, node: Node) -> None:
        if getattr(event, "tag", None) not in {None, "!", "tag:yaml.org,2002:str"}:
            raise _fault(node.where, "has a tag, and tags are not read here", "Remove the !tag.")

    def _finish(self, node: Node, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._open:
            self.root = node
            return
        parent, _ = self._open[-1]
        if parent.items is not None:
            parent.items.append(node)
        elif parent.pairs is not None:
            key = self._keys[-1]
            if key is None:
                self._keys[-1] = node
            else:
                parent.pairs.append((key, node))
                self._keys[-1] = None


@dataclass(slots=True)
class Tree:
    """What a file says.

    Attributes:
        data: The values; text as written, with ``${VAR}`` in place.
        marks: Line and column of each path.
        faults: Keys that can't stand.
    """

    data: Data = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    faults: list[tuple[Path, str, str]] = field(default_factory=list)


def build(root: Node) -> Tree:
    """Turn nodes into values.

    Raises:
        ConfigError: Aliases expand to too much.
    """
    tree = Tree()
    tree.data = _Builder(tree).value(root, ())
    return tree


class _Builder:
    """Turns nodes into values, counting."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._nodes = 0

    def value(self, node: Node, path: Path) -> Data:
        self._count(node, len(path))
        self._tree.marks.setdefault(path, (node.line, node.column))
        if node.pairs is not None:
            return self._mapping(node, path)
        if node.items is not None:
            return [self.value(item, (*path, at)) for at, item in enumerate(node.items)]
        return scalar(node)

    def _count(self, node: Node, depth: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX:
            raise _fault(node.where, "is too large once its aliases are expanded")

    def _mapping(self, node: Node, path: Path) -> Data:
        values: dict[str, Data] = {}
        for key, key_node, value_node in self._pairs(node, path, len(path)):
            here = (*path, key)
            self._tree.marks[here] = (key_node.line, key_node.column)
            values[key] = self.value(value_node, here)
        return values

    def _pairs(self, node: Node, path: Path, depth: int) -> Iterator[tuple[str, Node, Node]]:
        """Yield the mapping's own pairs, each key once, then those merged into it."""
        first: dict[str, Node] = {}
        merged: list[Node] = []
        for key_node, value_node in node.pairs or []:
            self._count(key_node, depth)
            key = key_node.text
            if key is None:
                self._report((*path, "?"), f"has a key that is no text, on line {key_node.line}")
            elif key == "<<" and key_node.plain:
                merged += value_node.items if value_node.items is not None else [value_node]
            elif key in first:
                lines = f"on lines {first[key].line} and {key_node.line}"
                self._report((*path, key), f"is written twice, {lines}", "Remove one of them.")
            else:
                first[key] = key_node
                yield key, key_node, value_node
        known = set(first)
        for source in merged:
            if source.pairs is None:
                self._report((*path, "<<"), "merges what is no mapping")
                continue
            for key, key_node, value_node in self._pairs(source, path, depth + 1):
                if key not in known:
                    known.add(key)
                    yield key, key_node, value_node

    def _report(self, path: Path, problem: str, hint: str = "") -> None:
        self._tree.faults.append((path, problem, hint))
