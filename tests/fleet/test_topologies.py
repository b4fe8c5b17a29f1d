# SPDX-License-Identifier: Apache-2.0
"""Clusters, failover, TLS and access lists: the same pool on every kind of Redis."""

import asyncio
import contextlib
import subprocess

import pytest
import redis as redis_client
from fleet.conftest import linked, run, until
from fleet.test_turns import gateways, hold

from taketurns.core.model import BatchRules, PoolRules, Ticket
from taketurns.testing.redis_server import RedisServer, free_port

ACL = (
    "~tt:* ~{tt}* resetchannels -@all +evalsha +eval +script|load +get +set +del +incr +incrby "
    "+hget +hset +hdel +hlen +hkeys +hexists +hgetall +hmget +zadd +zrem +zrange +zcard +zscore "
    "+zlexcount +zremrangebyscore +rpush +lpop +llen +blpop +pexpire +time +ping +info +hello "
    "+client|setname +cluster|slots +cluster|shards +cluster|info +select"
)
"""What a gateway's user needs; docs/howto/fleet.md has the same line."""


@contextlib.contextmanager
def cluster():
    """Three nodes that share the slots."""
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(
                RedisServer(
                    settings={
                        "cluster-enabled": "yes",
                        "cluster-port": str(free_port()),
                        "cluster-node-timeout": "2000",
                        "cluster-require-full-coverage": "no",
                    }
                )
            )
            for _ in range(3)
        ]
        for number, node in enumerate(nodes):
            first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            assert node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(last)) == b"+OK\r\n"
        meet(nodes)
        yield nodes


def meet(nodes):
    """Let the nodes get to know each other."""
    for node in nodes[1:]:
        bus = node._config.read_text().split("cluster-port ")[1].split()[0]
        nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), bus)


async def formed(nodes):
    asked = 0

    def is_formed():
        nonlocal asked
        asked += 1
        if asked % 500 == 0:
            # On a busy machine a handshake may have taken too long, and was given up.
            meet(nodes)
        return all(
            b"cluster_state:ok" in node.ask("CLUSTER", "INFO")
            and b"cluster_known_nodes:3" in node.ask("CLUSTER", "INFO")
            and b"cluster_slots_assigned:16384" in node.ask("CLUSTER", "INFO")
            for node in nodes
        )

    await until(is_formed)


async def story(url, *, rules=PoolRules(quantum=10)):  # noqa: B008 - it's frozen
    """Two gateways share two slots; six requests of two tenants pass, and nothing is left."""
    async with gateways(url, 2, slots=2, rules=rules) as (one, two), asyncio.TaskGroup() as tasks:
        running, release = [], asyncio.Event()
        for turns in (one, two):
            for tenant in ("a", "b", "a"):
                tasks.create_task(hold(turns, tenant, running, release))
        await until(lambda: len(running) == 2 and one.holdings.queued + two.holdings.queued == 4)
        release.set()
        await until(lambda: len(running) == 6)
        await until(lambda: one.forecast.running == 0 and one.forecast.waiting == 0)
        for turns in (one, two):
            assert turns.driver.joins == 1
            assert not turns.link.failures


def test_a_cluster_of_three_nodes():
    async def scenario(nodes):
        await formed(nodes)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        async with linked(f"redis+cluster://{hosts}") as link:
            assert (await link.check()).name == "redis"
        await story(f"redis+cluster://{hosts}")

    with cluster() as nodes:
        run(scenario(nodes))


def test_a_failover_by_sentinel():
    async def scenario(primary, replica, sentinel):
        url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
        replica_client = redis_client.Redis(port=replica.port)
        await until(lambda: replica_client.info("replication")["master_link_status"] == "up")
        await until(lambda: b"num-slaves\r\n$1\r\n1" in sentinel.ask("SENTINEL", "MASTERS"))
        async with gateways(url, 2, slots=2) as (one, two), asyncio.TaskGroup() as tasks:
            running, release = [], asyncio.Event()
            for turns in (one, two):
                for _ in range(3):
                    tasks.create_task(hold(turns, "a", running, release))
            await until(lambda: len(running) == 2)
            primary.kill()
            # Its share is one slot each, and both are in use.
            await until(lambda: one.alone and two.alone)
            await until(lambda: one.driver.talking and two.driver.talking)
            await until(lambda: not one.alone and not two.alone)
            await until(lambda: one.forecast.running + one.forecast.waiting == 6)
            release.set()
            await until(lambda: len(running) == 6)
        replica_client.close()

    with RedisServer() as primary:
        follow = {"replicaof": f"127.0.0.1 {primary.port}"}
        with RedisServer(settings=follow) as replica:
            watch = {
                "sentinel monitor main": f"127.0.0.1 {primary.port} 1",
                "sentinel down-after-milliseconds main": "500",
                "sentinel failover-timeout main": "3000",
            }
            with RedisServer(sentinel=True, settings=watch) as sentinel:
                run(scenario(primary, replica, sentinel))


def test_an_access_list_of_the_least():
    with RedisServer() as server:
        answer = server.ask("ACL", "SETUSER", "gateway", "on", ">secret", *ACL.split())
        assert answer == b"+OK\r\n", answer
        server.ask("ACL", "SETUSER", "default", "off")

        async def scenario():
            url = server.url.replace("//", "//gateway:secret@")
            async with linked(url) as link:
                await link.check()
            await story(url)
            batches = PoolRules(quantum=10, batch=BatchRules(size_max=8, items_max=4))
            assert batches.batch is not None

        run(scenario())


def test_tls(tmp_path):
    def openssl(*parts):
        subprocess.run(["openssl", *parts], check=True, capture_output=True, cwd=tmp_path)

    openssl(
        *[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
            "-days",
            "2",
        ],
        *["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
    )
    port = free_port()
    settings = {
        "tls-port": str(port),
        "tls-cert-file": str(tmp_path / "cert.pem"),
        "tls-key-file": str(tmp_path / "key.pem"),
        "tls-ca-cert-file": str(tmp_path / "cert.pem"),
        "tls-auth-clients": "no",
    }
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(RedisServer(settings=settings))
        except RuntimeError as error:
            if "Failed finding TLS support" in str(error):
                pytest.skip("this server is built without TLS")
            raise
        run(story(f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path / 'cert.pem'}"))


def test_no_key_is_left_without_a_time_to_live(redis):
    client = redis_client.Redis(port=redis.port)
    rules = PoolRules(quantum=10, batch=BatchRules(size_max=8, items_max=4))

    async def scenario():
        await story(redis.url)
        assert keys_for_ever() == []
        redis.ask("FLUSHALL")
        granted = []
        async with gateways(
            redis.url,
            1,
            rules=rules,
            on_decision=granted.append,
        ) as (turns,):
            tickets = [
                Ticket(f"t{n}", "a", "only", deadline_us=turns.clock.now_us() + 10**8)
                for n in range(6)
            ]
            turns.submit(tickets)
            await until(lambda: len(granted) == 2)
            assert sum(len(grant.tickets) for grant in granted) == 6
            await until(lambda: turns.forecast.running == 6)
            assert keys_for_ever() == []
            for ticket in tickets:
                turns.finish(ticket.id)
            await until(lambda: turns.forecast.running == 0)
        assert keys_for_ever() == []

    def keys_for_ever():
        return [key for key in client.keys("*") if client.pttl(key) == -1]

    run(scenario())
    client.close()


@pytest.mark.parametrize("name", ["a|b", "x" * 3 + "|"])
def test_a_tenant_that_would_break_a_key_is_refused(redis, name):
    async def scenario():
        async with gateways(redis.url, 1) as (turns,):
            with pytest.raises(ValueError, match=r"'\|'"):
                async with turns.turn(name, tier="only"):
                    pass
            assert len(turns.holdings) == 0

    run(scenario())
