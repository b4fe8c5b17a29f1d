# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a script beside the pages that it writes, not a package
"""Writes the parts of the reference that the code itself tells: configuration keys and --help.

    python docs/generate.py

``configuration.md`` is written whole, from the configuration's own models.
In ``cli.md`` the block that follows each ``<!-- help: COMMAND -->`` is written anew.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator
from typer.testing import CliRunner

from taketurns.cli.main import app
from taketurns.config import engines, limits, quantities
from taketurns.config.faults import SECTIONS

REFERENCE = Path(__file__).parent / "reference"

KINDS: dict[Callable[..., object], str] = {
    quantities.whole: "whole number",
    quantities.count: "count",
    quantities.size_bytes: "size",
    quantities.duration_s: "duration",
    quantities.percent: "percentage",
    quantities.flag: "true or false",
    quantities.name: "name",
    engines.slots: "whole number or `auto`",
    limits.selector: '`"*"` or name',
    quantities.not_empty: "text",
}

HEAD = """\
<!-- Written by docs/generate.py from src/taketurns/config. Change the docstrings there. -->

# Configuration

One YAML file in UTF-8, at most 4 MiB. It is read when the gateway starts, and again on SIGHUP: see
[what a reload can change](../howto/drain-and-deploy.md#a-new-configuration).
`taketurns validate FILE` reports every fault of a file at once, and `taketurns schema` prints a
JSON Schema for editors. A key that is not listed here is a fault.

Commented examples are [examples/taketurns.yaml](../../examples/taketurns.yaml) and, with limits,
[examples/cohere-limits.yaml](../../examples/cohere-limits.yaml).

## How values are written

| kind | written as | examples |
|---|---|---|
| whole number | digits | `8` |
| count | digits; `k` is 1,000 and `M` is 1,000,000 | `500`, `60k`, `2M` |
| size | bytes; `k` is 1,024, and so on with `M` and `G` | `16k`, `8M`, `1G` |
| duration | a number with `ms`, `s`, `m` or `h`; without a unit: seconds | `500ms`, `30s`, `2h` |
| percentage | a whole number with the sign; a bare `0` is allowed | `5%`, `80%` |
| name | 1 to 64 of the characters `A-Z a-z 0-9 _ . -` | `acme`, `gpu-0` |

`${NAME}` in a value is replaced by the environment variable of that name, `${NAME:-default}` by
the default where the variable is unset or empty, and `$${` stands for `${` itself. A variable that
is not set and has no default is a fault. Keys of mappings are never replaced.

What must hold between the parts: each tier has a rank of its own; the floors of all tiers add up
to at most 50%; a tenant's tier and the tenants of a model exist; a public id of a key stands once;
a wait target is at most the tier's `queue_timeout`; what a limit names exists, and no two limits
of one mode count the same for the same requests.
"""


def configuration() -> str:
    """Return the page of the configuration's keys."""
    parts = [HEAD]
    for path, section in SECTIONS.items():
        title = _title(path)
        intro = inspect.cleandoc(section.__doc__ or "").split("\n\n")[0]
        parts += [f"## {title}\n", f"{_markdown(_capital(intro))}\n", "| key | kind | meaning |"]
        parts.append("|---|---|---|")
        hints = get_type_hints(section, include_extras=True)
        for key, field in section.model_fields.items():
            required = " **required**" if field.is_required() else ""
            meaning = _markdown(field.description or "")
            parts.append(f"| `{key}`{required} | {_kind(hints[key])} | {meaning} |")
        parts.append("")
    return "\n".join(parts)


def cli(page: str) -> str:
    """Return the command line's page with every help text as it is.

    Args:
        page: The page as it stands.
    """

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n```text\n{help_of(match[2].split())}```\n"

    return re.sub(r"(<!-- help:(.*?)-->)\n```text\n.*?```\n", block, page, flags=re.DOTALL)


def help_of(command: list[str]) -> str:
    """Return what ``taketurns COMMAND --help`` prints on a terminal of 80 columns."""
    # A terminal of 80 columns leaves 78 for text.
    arguments = [*command, "--help"]
    return CliRunner().invoke(app, arguments, prog_name="taketurns", terminal_width=78).stdout


def pages() -> dict[Path, str]:
    """Return every generated page by its path."""
    command_line = REFERENCE / "cli.md"
    return {
        REFERENCE / "configuration.md": configuration(),
        command_line: cli(command_line.read_text("utf-8")),
    }


def _title(path: tuple[str | int, ...]) -> str:
    if not path:
        return "The file"
    text = ".".join("NAME" if part == "*" else str(part) for part in path)
    text = text.replace("engines.NAME", "engines[]").replace("limits.NAME", "limits[]")
    return re.sub(r"`(.*?)\.<(.*?)>`", r"`\1` with `\2`", f"`{text}`")


def _capital(text: str) -> str:
    return re.sub(r"^(``.*?``(?: with ``.*?``)?): (\w)", lambda m: m[2].upper(), text)


def _markdown(text: str) -> str:
    return re.sub(r":\w+:`~?(.*?)`", r"`\1`", " ".join(text.split())).replace("``", "`")


def _kind(annotation: object) -> str:
    """Say in words what a key takes."""
    found = list(_validators(annotation))
    origin = get_origin(_bare(annotation))
    options = get_args(_bare(annotation))
    if origin in (Union, UnionType) and NoneType in options and not found:
        return _kind(next(option for option in options if option is not NoneType))
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in options)
    if origin is tuple:
        return f"list of: {_kind(options[0])}"
    if origin is dict:
        what = options[1]
        if inspect.isclass(what):
            return f"mapping: name to `{what.__name__.removesuffix('Config').lower()}`"
        return f"mapping: name to {_kind(what)}"
    if inspect.isclass(_bare(annotation)) and issubclass(_bare(annotation), BaseModel):
        return "mapping, see below"
    kind = next((KINDS[v] for v in found if v in KINDS), "text")
    limits = [
        bounds
        for v in found
        if (bounds := inspect.getclosurevars(v).nonlocals.get("limits")) is not None
    ]
    return ", ".join([kind, *limits])


def _bare(annotation: Any) -> Any:
    """Return a type without its metadata; of engines, which have two forms, the mapping."""
    while hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    options = [option for option in get_args(annotation) if option is not NoneType]
    if get_origin(annotation) in (Union, UnionType):
        inner = [_bare(option) for option in options]
        if inspect.isclass(inner[0]) and issubclass(inner[0], BaseModel):
            return inner[0]
    return annotation


def _validators(annotation: Any) -> Iterator[Callable[..., object]]:
    """Yield the functions that check a value, outermost last, through an optional type."""
    if get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from _validators(option)
        return
    for item in getattr(annotation, "__metadata__", ()):
        if isinstance(item, AfterValidator | BeforeValidator):
            yield item.func


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
