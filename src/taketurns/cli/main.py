# SPDX-License-Identifier: Apache-2.0
"""The command ``taketurns``: its subcommands, and how errors end it.

Exit codes: 0 done; 1 a store, an engine or the command failed; 2 the
configuration or the command line is wrong, or the gateway can't start here.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from taketurns.cli import admin, check, demo, explain, fleet, output, replay, serve, simulate, usage
from taketurns.errors import TaketurnsError

app = typer.Typer(
    help="Fair scheduling for many tenants that share one pool of LLM engines.",
    no_args_is_help=True,
    # Plain text starts faster, and reads the same in a pipe.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        output.result(f"taketurns {version('taketurns')}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda wanted: _print_version(wanted=wanted),
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Fair scheduling for many tenants that share one pool of LLM engines."""


# The subcommands, in the order in which --help lists them. Each lives in a
# module of cli/; a module imports what is heavy inside its commands.
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("validate")(admin.validate)
app.command("check")(check.check)
app.command("explain")(explain.explain)
app.command("simulate")(simulate.simulate)
app.command("replay")(replay.replay)
app.command("fit")(replay.fit)
app.command("fleet")(fleet.fleet)
app.command("schema")(admin.schema)
app.command("usage")(usage.usage)
app.add_typer(admin.keys, name="keys")
app.add_typer(admin.models, name="models")


def main() -> None:
    """Run the command line and exit."""
    try:
        app(prog_name="taketurns")
    except TaketurnsError as error:
        sys.exit(output.print_error(error))
