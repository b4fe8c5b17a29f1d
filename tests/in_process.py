# SPDX-License-Identifier: Apache-2.0
"""A whole gateway without sockets: bodies go in, answers come out."""

import asyncio
import contextlib

import msgspec

from taketurns.config.load import parse
from taketurns.gateway.auth import mint
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.gateway import Gateway
from taketurns.system import new_id
from taketurns.telemetry.records import NoLog, RequestRecord


class Client:
    """The client's side of one exchange: has one body and keeps the answer."""

    def __init__(self, body):
        self.body = body
        self.answers = []

    async def read_body(self, bytes_max):
        return self.body

    async def send(self, answer):
        self.answers.append(answer)

    def abort(self):
        pass


class InProcess:
    """A gateway with engines that the test makes.

    Args:
        models: The ``models`` section.
        tenants: Names of tenants.
        clock: The gateway's.
    """

    def __init__(self, models, tenants, clock):
        keys = {tenant: mint() for tenant in tenants}
        config = {
            "server": {"log": "off"},
            "tiers": {"only": {"rank": 0, "queue_timeout": "1h"}},
            "models": models,
            "tenants": {
                tenant: {"tier": "only", "keys": [key.line]} for tenant, key in keys.items()
            },
        }
        self.keys = {tenant: key.key for tenant, key in keys.items()}
        self.clock = clock
        self.gateway = Gateway(parse(msgspec.yaml.encode(config).decode(), "test", env={}), clock)

    @contextlib.asynccontextmanager
    async def serving(self):
        async with asyncio.TaskGroup() as tasks:
            await self.gateway.start(tasks, NoLog())
            yield self
            await self.gateway.aclose()

    def pool(self, model):
        return self.gateway.pools.of(model)

    async def post(self, path, body, tenant):
        """Send one request; return all that was answered to it, and its record."""
        client = Client(body if isinstance(body, bytes) else msgspec.json.encode(body))
        record = RequestRecord(time="", request_id=new_id("req_"))
        await self.gateway.handle(
            Exchange(
                method="POST",
                path=path,
                headers={"authorization": f"Bearer {self.keys[tenant]}"},
                peer=client,
                record=record,
                arrived_us=self.clock.now_us(),
            )
        )
        return client.answers, record
