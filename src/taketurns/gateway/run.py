# SPDX-License-Identifier: Apache-2.0
"""Runs a gateway from start to drain: engines, two listeners, signals."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from taketurns.config.model import Config, ServerConfig
from taketurns.gateway.admin import Admin
from taketurns.gateway.gateway import Gateway
from taketurns.gateway.inbound import Receiving
from taketurns.gateway.server import HttpServer
from taketurns.system import SystemClock
from taketurns.telemetry.records import open_log

LOG = logging.getLogger(__name__)

STDIN = 0


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that serves.

    Attributes:
        gateway: It.
        port: Where clients reach it.
        admin_port: Where operators do.
        stop: Set to stop it gently; what SIGTERM does.
        server: What listens to clients.
    """

    gateway: Gateway
    port: int
    admin_port: int
    stop: asyncio.Event
    server: HttpServer


async def run(
    config: Config,
    on_ready: Callable[[Running], None],
    *,
    handle_signals: bool = True,
    reread: Callable[[], Config] | None = None,
    worker: bool = False,
) -> None:
    """Serve until told to stop, then drain.

    Draining: not ready, keep taking requests for ``server.drain_delay``, then
    refuse new ones, serve what was taken within ``server.drain``, and break the
    rest off. A second signal skips the waiting.

    Args:
        config: A configuration without faults.
        on_ready: Called once it serves.
        handle_signals: Stop on SIGTERM and SIGINT, and reload on SIGHUP.
        reread: Reads the configuration anew; None: SIGHUP is ignored.
        worker: Share the port with others, and stop once standard input ends: whoever started
            this process is gone then.

    Raises:
        StartError: It can't start: a port, a package, a file.
    """
    loop = asyncio.get_running_loop()
    clock = SystemClock(loop)
    stop, now = asyncio.Event(), asyncio.Event()
    gateway = Gateway(config, clock)
    log = open_log(config.server.log, loop.call_later, gateway.log_failed)
    server = config.server
    public = HttpServer(
        gateway.handle,
        clock,
        _receiving(server),
        closing=lambda: gateway.draining,
    )
    admin = HttpServer(
        Admin(gateway, server.admin_token).handle,
        clock,
        Receiving(connections_max=100),
        closing=lambda: gateway.draining,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            try:
                await gateway.start(tasks, log)
                port = await public.listen(
                    server.host, server.port, setting="server.port", shared=worker
                )
                admin_port = await admin.listen(
                    server.admin_host, server.admin_port, setting="server.admin_port"
                )
                if handle_signals:
                    _watch_signals(loop, stop, now)
                    _watch_reload(loop, gateway, reread)
                if worker:
                    _watch_supervisor(loop, stop)
                on_ready(Running(gateway, port, admin_port, stop, public))
                await stop.wait()
                await _drain(gateway, tasks, now, server)
            finally:
                # The engines last: what they still run is told that it ends.
                await public.aclose()
                await admin.aclose()
                await gateway.aclose()
    except ExceptionGroup as group:
        # One fault is told as itself: a group of one says nothing more.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    finally:
        log.close()


def _receiving(server: ServerConfig) -> Receiving:
    return Receiving(
        connections_max=server.connections_max,
        address_connections_max=server.address_connections_max,
        head_timeout_s=server.head_timeout,
        body_timeout_s=server.body_timeout,
        idle_timeout_s=server.idle_timeout,
        head_bytes_max=server.head_bytes_max,
        headers_max=server.headers_max,
        target_bytes_max=server.target_bytes_max,
    )


def _watch_signals(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, now: asyncio.Event
) -> None:
    def on_signal() -> None:
        if stop.is_set():
            now.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


def _watch_reload(
    loop: asyncio.AbstractEventLoop, gateway: Gateway, reread: Callable[[], Config] | None
) -> None:
    def on_signal() -> None:
        if reread is None:
            LOG.warning("there is no configuration file to reload")
        else:
            gateway.reload(reread)

    loop.add_signal_handler(signal.SIGHUP, on_signal)


def _watch_supervisor(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def on_input() -> None:
        if not os.read(STDIN, 4096):
            loop.remove_reader(STDIN)
            stop.set()

    loop.add_reader(STDIN, on_input)


async def _drain(
    gateway: Gateway, tasks: asyncio.TaskGroup, now: asyncio.Event, server: ServerConfig
) -> None:
    gateway.announce_stop()
    await _wait(now, server.drain_delay)
    gateway.stop_taking()
    LOG.info("draining: %d requests under way", len(gateway.active))
    loop = asyncio.get_running_loop()
    end_s = loop.time() + server.drain
    skip = tasks.create_task(now.wait())
    while gateway.active and not now.is_set() and loop.time() < end_s:
        await asyncio.wait(
            {*gateway.active, skip},
            timeout=end_s - loop.time(),
            return_when=asyncio.FIRST_COMPLETED,
        )
    skip.cancel()
    if gateway.active:
        LOG.warning("breaking off %d requests", len(gateway.active))
        gateway.break_off()
        await asyncio.wait(set(gateway.active), timeout=1.0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than this."""
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)
