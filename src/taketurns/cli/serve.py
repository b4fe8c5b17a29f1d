# SPDX-License-Identifier: Apache-2.0
"""``taketurns serve``: run the gateway, and tell how to reach it."""

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from taketurns.cli import output

if TYPE_CHECKING:
    from taketurns.config.model import Config
    from taketurns.gateway.run import Running

CHAT_BODY = (
    '{"model": "smollm2", "stream": true, "max_tokens": 64, "messages": '
    '[{"role": "user", "content": "What is fair queuing?"}]}'
)
EVERYWHERE = "0.0.0.0"  # noqa: S104 - where a container must listen
SAGEMAKER_PORT = 8080
QUICKSTART_TENANTS = ("acme", "initech")


def serve(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]", help="Configuration file, YAML.", envvar="TAKETURNS_CONFIG"
        ),
    ] = None,
    *,
    quickstart: Annotated[
        bool,
        typer.Option(
            "--quickstart", help="Serve two small models to two tenants; no file is needed."
        ),
    ] = False,
    sagemaker: Annotated[
        bool,
        typer.Option(
            "--sagemaker",
            help="Serve SageMaker's contract, on all interfaces and port 8080 unless told else.",
            envvar="TAKETURNS_SAGEMAKER",
        ),
    ] = False,
    host: Annotated[str | None, typer.Option(help="Instead of server.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Instead of server.port.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Instead of server.admin_port.")] = None,
    log: Annotated[
        str | None, typer.Option(help="Instead of server.log: '-', 'off' or a path.")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that share the port; more than one needs a coordinator.", min=1, max=256
        ),
    ] = 1,
) -> None:
    """Serve the models of a configuration to its tenants, until SIGTERM or Ctrl-C."""
    if (config_file is None) != quickstart:
        raise typer.BadParameter("give either a CONFIG file or --quickstart")
    if quickstart and workers > 1:
        raise typer.BadParameter("--quickstart is one process", param_hint="--workers")
    given: dict[str, object | None] = {
        "host": host,
        "port": port,
        "admin_port": admin_port,
        "log": log,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if sagemaker:
        changes = {"sagemaker": True, "host": EVERYWHERE, "port": SAGEMAKER_PORT, **changes}
    keys: dict[str, str] = {}
    reread: Callable[[], Config] | None = None
    if config_file is None:
        config, keys = quickstart_config()
        config = with_server(config, changes)
    else:
        reread = partial(_load_with, config_file, changes)
        config = reread()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    if config_file is not None:
        tell_without_keys(config, config_file)
    if workers > 1 and config_file is not None:
        run_workers(config, config_file, workers, changes)
    else:
        run_gateway(config, keys, reread)


def tell_without_keys(config: "Config", file: Path) -> None:
    """Tell who starts a gateway for the first time why it would refuse every request."""
    from taketurns.cli.workers import WORKER
    from taketurns.stores.choose import key_store

    mode = config.store.partition(":")[0]
    if config.server.sagemaker or mode not in {"memory", "sqlite"} or WORKER in os.environ:
        return
    if not config.tenants or any(tenant.keys for tenant in config.tenants.values()):
        return
    store = key_store(config.store)
    if store is not None:
        with closing(store):
            if store.list():
                return
    logging.getLogger(__name__).warning(
        "no tenant has a key, so every request will be refused. Make one: "
        "taketurns keys create --config %s --tenant %s",
        file,
        next(iter(config.tenants)),
    )


def _load_with(file: Path, changes: Mapping[str, object]) -> "Config":
    from taketurns.config.load import load

    return with_server(load(file), changes)


def quickstart_config() -> "tuple[Config, dict[str, str]]":
    """Return the quickstart's configuration and its tenants' new keys."""
    from taketurns.config.load import parse
    from taketurns.gateway.auth import mint

    minted = {tenant: mint() for tenant in QUICKSTART_TENANTS}
    text = files("taketurns.cli").joinpath("quickstart.yaml").read_text()
    env = {f"{tenant.upper()}_KEY": key.line for tenant, key in minted.items()}
    config = parse(text, "quickstart.yaml", env=env)
    return config, {tenant: key.key for tenant, key in minted.items()}


def with_server(config: "Config", changes: Mapping[str, object]) -> "Config":
    """Return a configuration with other settings under ``server``, checked like those of a file.

    Raises:
        ConfigError: A value can't be used.
    """
    from pydantic import ValidationError

    from taketurns.config.model import ServerConfig
    from taketurns.errors import ConfigError, ConfigFault

    if not changes:
        return config
    try:
        server = ServerConfig.model_validate({**config.server.model_dump(), **changes})
    except ValidationError as error:
        faults = [
            ConfigFault(f"--{str(fault['loc'][0]).replace('_', '-')}", fault["msg"])
            for fault in error.errors()
        ]
        raise ConfigError(faults, source="the command line") from None
    return config.model_copy(update={"server": server})


def tune_collector() -> None:
    """Let Python's garbage collector pause shortly, never long.

    What many waiting requests hold lives long. With the usual thresholds a
    collection comes seldom and walks all of it: up to 180 ms in which nothing
    is answered. What is loaded at the start is never walked again, and what
    requests hold for a moment not at all: dozens of them hold less than 5,000
    objects more at one moment than at another.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 4, 100)


def run_workers(config: "Config", file: Path, count: int, changes: Mapping[str, object]) -> None:
    """Run so many gateways on one port until told to stop, and exit.

    Raises:
        StartError: They could not work together, or the port can't be had.
    """
    from taketurns.cli.workers import reserved_port, supervise
    from taketurns.errors import StartError

    server = config.server
    if config.coordinator == "local":
        raise StartError(
            f"{count} workers would each count limits and take turns by themselves",
            hint='Let them share: coordinator: "redis://HOST:6379" in the configuration.',
        )
    with reserved_port(server.host, server.port) as port:
        commands = []
        for number in range(count):
            admin_port = server.admin_port and server.admin_port + number
            given = {**changes, "port": port, "admin_port": admin_port}
            options = [
                part
                for name, value in given.items()
                for part in (
                    ["--sagemaker"]
                    if name == "sagemaker"
                    else [f"--{name.replace('_', '-')}", str(value)]
                )
            ]
            commands.append([sys.executable, "-m", "taketurns", "serve", str(file), *options])
        code = asyncio.run(supervise(commands))
    if code:
        raise typer.Exit(code)


def run_gateway(
    config: "Config", keys: dict[str, str], reread: "Callable[[], Config] | None" = None
) -> None:
    """Run a gateway until it's told to stop."""
    from taketurns.cli.workers import WORKER
    from taketurns.gateway.run import run

    worker = os.environ.get(WORKER, "")

    def on_ready(running: "Running") -> None:
        tune_collector()
        if worker:
            where = [_url(*place) for place in _places(config, running)]
            # In one piece: workers write to the same place.
            sys.stdout.write(
                f"worker {worker}, process {os.getpid()}: {where[0]}, "
                f"metrics and health on {where[1]}\n"
            )
            sys.stdout.flush()
            return
        for line in greeting(config, keys, running.port, running.admin_port):
            output.result(line)
        sys.stdout.flush()

    try:
        import uvloop
    except ImportError:
        asyncio.run(run(config, on_ready, reread=reread, worker=bool(worker)))
    else:
        uvloop.run(run(config, on_ready, reread=reread, worker=bool(worker)))


def greeting(config: "Config", keys: dict[str, str], port: int, admin_port: int) -> list[str]:
    """Return what is printed once the gateway serves."""
    url = _url(config.server.host, port)
    lines = [
        f"taketurns serves {', '.join(config.models)} on {url}",
        f"metrics and health on {_url(config.server.admin_host, admin_port)}",
    ]
    if keys:
        lines += ["", "Keys, made for this start:"]
        lines += [f"  {tenant:8} {key}" for tenant, key in keys.items()]
        first, second = keys.values()
        lines += [
            "",
            "Try it:",
            f"  curl {url}/v1/embeddings -H 'Authorization: Bearer {first}' \\",
            "    -H 'Content-Type: application/json' \\",
            """    -d '{"model": "minilm", "input": ["fair", "unfair"]}'""",
            f"  curl -N {url}/v1/chat/completions -H 'Authorization: Bearer {second}' \\",
            "    -H 'Content-Type: application/json' \\",
            f"    -d '{CHAT_BODY}'",
            "",
            "Stop with Ctrl-C.",
            "",
        ]
    return lines


def _places(config: "Config", running: "Running") -> tuple[tuple[str, int], ...]:
    server = config.server
    return ((server.host, running.port), (server.admin_host, running.admin_port))


def _url(host: str, port: int) -> str:
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - nothing is bound here
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
