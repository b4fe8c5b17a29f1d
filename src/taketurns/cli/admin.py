# SPDX-License-Identifier: Apache-2.0
"""Commands that need no running gateway: validate, schema, keys and models.

The heavier parts of the package are imported by the command that needs them,
so that ``taketurns --help`` answers at once.
"""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from taketurns.cli import output
from taketurns.errors import ConfigError, StoreError

ConfigFile = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="TAKETURNS_CONFIG", help="The configuration file."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

CONFIG_FILE = Path("taketurns.yaml")

keys = typer.Typer(
    help="Make, list and revoke API keys.", no_args_is_help=True, rich_markup_mode=None
)
models = typer.Typer(
    help="Care for the embedded models.", no_args_is_help=True, rich_markup_mode=None
)


def validate(
    file: Annotated[Path, typer.Argument(help="The configuration file.", metavar="FILE")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check a configuration file and report every fault of it."""
    from taketurns.config.load import load

    try:
        config = load(file)
    except ConfigError as error:
        if not as_json:
            raise
        output.result_json({"valid": False, "faults": output.faults_json(error.faults)})
        raise typer.Exit(output.EXIT_CONFIG) from None
    counts = {
        "tiers": len(config.tiers),
        "models": len(config.models),
        "tenants": len(config.tenants),
    }
    if as_json:
        output.result_json({"valid": True, "faults": [], **counts})
    else:
        listed = ", ".join(
            f"{count} {what if count != 1 else what[:-1]}" for what, count in counts.items()
        )
        output.result(f"{file}: valid ({listed})")


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    from taketurns.config.schema import json_schema

    output.result_json(json_schema())


@keys.command("create")
def keys_create(
    tenant: Annotated[str, typer.Option("--tenant", "-t", help="Whose key it is.")],
    *,
    config_file: ConfigFile = CONFIG_FILE,
    note: Annotated[str, typer.Option("--note", help="Kept beside the key, for you.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make an API key and print it: the only time that it can be seen."""
    from taketurns.config.faults import suggestion
    from taketurns.config.stored import load_stored
    from taketurns.gateway.auth import mint
    from taketurns.ports.stores import KeyRecord
    from taketurns.stores.choose import key_store
    from taketurns.system import wall_time_s

    config = load_stored(config_file)
    if tenant not in config.tenants:
        hint = suggestion(tenant, config.tenants.keys(), what="tenants")
        raise typer.BadParameter(f"there is no tenant {tenant!r}. {hint}", param_hint="--tenant")
    minted = mint()
    store = key_store(config.store)
    if store is not None:
        record = KeyRecord(minted.public_id, tenant, minted.hash, wall_time_s(), note=note)
        with closing(store):
            store.add(record)
    if as_json:
        output.result_json(
            {
                "key": minted.key,
                "public_id": minted.public_id,
                "tenant": tenant,
                "note": note,
                "stored": store is not None,
                "config_line": minted.line,
            }
        )
        return
    output.result(minted.key)
    if store is None:
        output.message(
            f"This key is not stored: with store: memory it would be lost. To put it in force, "
            f"add the next line\nto tenants.{tenant}.keys in {config_file}, "
            "and send the gateway a SIGHUP:"
        )
        output.result(f'- "{minted.line}"')
    output.message("Keep the key now: only its SHA-256 is on record, so it can't be shown again.")


@keys.command("list")
def keys_list(*, config_file: ConfigFile = CONFIG_FILE, as_json: AsJson = False) -> None:
    """List the keys: those in the file, and those in the store."""
    from taketurns.config.stored import load_stored
    from taketurns.gateway.auth import configured_keys
    from taketurns.stores.choose import key_store

    config = load_stored(config_file)
    found = [("file", record) for record in configured_keys(config)]
    store = key_store(config.store)
    if store is not None:
        with closing(store):
            found += [("store", record) for record in store.list()]
    if as_json:
        output.result_json(
            [
                {
                    "public_id": record.public_id,
                    "tenant": record.tenant,
                    "kept_in": kept_in,
                    "created_s": record.created_s if kept_in == "store" else None,
                    "revoked_s": record.revoked_s,
                    "note": record.note,
                }
                for kept_in, record in found
            ]
        )
        return
    output.table(
        ("PUBLIC ID", "TENANT", "KEPT IN", "CREATED", "REVOKED", "NOTE"),
        [
            (
                record.public_id,
                record.tenant,
                kept_in,
                output.when(record.created_s if kept_in == "store" else None),
                output.when(record.revoked_s),
                record.note,
            )
            for kept_in, record in found
        ],
    )


@keys.command("revoke")
def keys_revoke(
    public_id: Annotated[str, typer.Argument(help="As `taketurns keys list` shows it.")],
    *,
    config_file: ConfigFile = CONFIG_FILE,
    as_json: AsJson = False,
) -> None:
    """Revoke a key; running gateways refuse it within 5 seconds."""
    from taketurns.config.stored import load_stored
    from taketurns.gateway.auth import configured_keys
    from taketurns.stores.choose import key_store
    from taketurns.system import wall_time_s

    config = load_stored(config_file)
    for record in configured_keys(config):
        if record.public_id == public_id:
            raise StoreError(
                f"key {public_id} stands in {config_file}, not in a store",
                hint=f"Remove its line from tenants.{record.tenant}.keys, "
                "and send the gateway a SIGHUP.",
            )
    store = key_store(config.store)
    revoked = None
    if store is not None:
        with closing(store):
            revoked = store.revoke(public_id, revoked_s=wall_time_s())
    if revoked is None:
        # An argument that is no public id may be a whole key: it is not repeated.
        raise StoreError("no such key is on record", hint="`taketurns keys list` shows them.")
    if as_json:
        output.result_json(
            {
                "public_id": revoked.public_id,
                "tenant": revoked.tenant,
                "revoked_s": revoked.revoked_s,
            }
        )
    else:
        output.message(f"Revoked {revoked.public_id} of {revoked.tenant}.")


@models.command("fetch")
def models_fetch(*, as_json: AsJson = False) -> None:
    """Install the files of the embedded models that are missing, about 95 MB."""
    from taketurns.engines.weights import fetch

    fetched = fetch(run=_run_on_stderr)
    if as_json:
        output.result_json({"fetched": [weights.what for weights in fetched]})
        return
    for weights in fetched:
        output.result(f"fetched {weights.what}")
    if not fetched:
        output.message("Nothing to fetch: the embedded models are here.")


def _run_on_stderr(command: Sequence[str]) -> int:
    # The other program's words are messages; stdout is for the result.
    return subprocess.run(command, check=False, stdout=sys.stderr).returncode  # noqa: S603
