# SPDX-License-Identifier: Apache-2.0
"""From a coordinator's address to a client of it."""

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from taketurns.config.coordinator import Address, parse_address

__all__ = ["Address", "Client", "close_client", "make_client", "parse_address"]

Client = Redis | RedisCluster


def make_client(address: Address, *, timeout_s: float, connections_max: int) -> Client:
    """Return a client; it connects when it's used.

    It tries nothing twice: who calls it knows whether that is safe.

    Args:
        address: Where the server is.
        timeout_s: Longest wait for a connection, and for each answer.
        connections_max: Most connections at a time.
    """
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "username": address.username,
        "password": address.password,
        "max_connections": connections_max,
    }
    settings = dict(address.settings)
    sentinel = {
        name.removeprefix("sentinel_"): settings.pop(name)
        for name in list(settings)
        if name.startswith("sentinel_")
    }
    if "ssl_check_hostname" in settings:
        options["ssl_check_hostname"] = settings.pop("ssl_check_hostname") in {"true", "1"}
    if address.tls:
        options |= {"ssl": True} | settings
    if address.kind == "unix":
        return Redis(unix_socket_path=address.path, db=address.db, **options)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        return RedisCluster(startup_nodes=nodes, **options)
    if address.kind == "sentinel":
        watch = options | {"username": None, "password": None} | sentinel
        sentinels: Any = Sentinel  # untyped there
        found: Redis = sentinels(list(address.hosts), sentinel_kwargs=watch, **options).master_for(
            address.service, db=address.db
        )
        return found
    ((host, port),) = address.hosts[:1]
    return Redis(host=host, port=port, db=address.db, **options)


async def close_client(client: Client) -> None:
    """Close a client's connections, those to sentinels and to all nodes of a cluster included."""
    await client.aclose()
    if isinstance(client, RedisCluster):
        # A client that is about to learn the topology anew leaves its nodes' open.
        for nodes in ("nodes_cache", "startup_nodes"):
            await client.nodes_manager.aclose(nodes)
    elif isinstance(client.connection_pool, SentinelConnectionPool):
        for sentinel in client.connection_pool.sentinel_manager.sentinels:
            await sentinel.aclose()
