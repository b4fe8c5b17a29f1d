# SPDX-License-Identifier: Apache-2.0
"""The gateway without its HTTP server: starts, stops, and routes each request."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs

import msgspec

from taketurns.calendar_month import MonthClock
from taketurns.config.model import Config
from taketurns.core.limit_rules import Amounts
from taketurns.core.snapshot import PoolSnapshot
from taketurns.dialects.models import model_answer, models_answer
from taketurns.dialects.names import Dialect
from taketurns.dialects.own_fields import read_asked, with_model
from taketurns.errors import ConfigError, RequestError
from taketurns.gateway.admission import Admission
from taketurns.gateway.auth import KEY_TTL_US, Authenticator, active_tenants, key_stores
from taketurns.gateway.border import Border, Handle
from taketurns.gateway.build import Pools, build_pools
from taketurns.gateway.catalogue import listed, listed_model, pool_for
from taketurns.gateway.coordination import Coordination
from taketurns.gateway.engine_changes import engine_changes
from taketurns.gateway.exchange import Answer, Exchange
from taketurns.gateway.failed_auth import FailedAuth
from taketurns.gateway.health import Health
from taketurns.gateway.held_bytes import HeldBytes
from taketurns.gateway.key_directory import key_directory
from taketurns.gateway.probes import Probes
from taketurns.gateway.problems import DrainingError, MethodError
from taketurns.gateway.reload import apply_reload, check_reload
from taketurns.gateway.routes import TOKENIZE, Route, is_cohere, route_of
from taketurns.gateway.sagemaker import Invocation, read_invocation
from taketurns.gateway.shadow_log import ShadowLog
from taketurns.gateway.urgency import NO_URGENCY, caller_of, calm_callers, urgency_of
from taketurns.gateway.usage import usage_ledger
from taketurns.ports.clock import Clock
from taketurns.ports.engine import EngineState
from taketurns.stores import choose
from taketurns.stores.sqlite_lock import SqliteLock
from taketurns.system import wall_time, wall_time_s
from taketurns.telemetry.metrics import Metrics
from taketurns.telemetry.records import LogWriter
from taketurns.units import s_from_us
from taketurns.version import VERSION

LOG = logging.getLogger(__name__)

REQUESTS_LISTED_MAX = 1_000


class Gateway:
    """Everything between the HTTP server and the engines.

    Args:
        config: A configuration without faults.
        clock: The process's clock.

    Attributes:
        handle: Answers one request, whatever happens.
        active: Exchanges under way, by the task that handles each.
        health: Answers probes.
        ready: False once it's to get nothing new.
        draining: True once it takes nothing new.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        self.config = config
        self.coordination = Coordination(config, clock)
        self.admission = Admission(
            config.limit_rules(),
            clock,
            month=MonthClock(config.zone, wall_time),
            wall=wall_time,
            store=choose.quota_store(config.store),
            on_refusal=self._count_limit,
            sharing=self.coordination.limits,
        )
        self.pools: Pools = build_pools(
            config,
            clock,
            self.admission,
            self.coordination.turns,
            on_batch=self._count_batch,
            on_late=self._count_late,
            on_mistrust=self._count_mistrust,
        )
        self.metrics = Metrics(config.tenants, self.snapshots, VERSION)
        self.metrics.watch_engines(self.engine_states)
        self._probes = Probes(clock)
        self._tasks: asyncio.TaskGroup | None = None
        self.metrics.quotas_failing.set_function(lambda: self.admission.failing)
        self._shadow_log = ShadowLog(clock)
        self.ready = True
        self.draining = False
        self._held = HeldBytes(config.server.queued_bytes_max)
        self._clock = clock
        self._directory = key_directory(config, clock)
        path = config.store_path
        self._lock = None if path is None else SqliteLock(path)
        self._usage = usage_ledger(config, clock)
        self.metrics.usage_failing.set_function(lambda: bool(self._usage and self._usage.failing))
        self.metrics.keys_failing.set_function(
            lambda: bool(self._directory and self._directory.failing)
        )
        self.metrics.alone.set_function(lambda: self.coordination.alone)
        self._auth = self._authenticator(config)
        self._calm = calm_callers(config.tenants)
        self._failed_auth = FailedAuth(config.server.auth_failures_max)
        self._created_s = wall_time_s()
        self._border = Border(self._answer_any, self.pools, clock, self.metrics, self._usage)
        self.handle = self._border.handle
        self.active = self._border.active
        self.health = health = Health(self.pools, self.coordination, lambda: self.ready)
        self._routes: dict[str, dict[str, Handle]] = {
            "/v1/models": {"GET": self._models},
            "/v1/check-api-key": {"POST": self._check_key},
            "/livez": {"GET": health.answer_live, "HEAD": health.answer_live},
            "/readyz": {"GET": health.answer_ready, "HEAD": health.answer_ready},
        }
        if config.server.sagemaker:
            self._routes |= {
                "/ping": {"GET": health.answer_ping},
                "/invocations": {"POST": self._invoke},
            }

    async def start(self, tasks: asyncio.TaskGroup, log: LogWriter) -> None:
        """Start the engines, then serve.

        Raises:
            StartError: An engine can't start.
        """
        self._border.log = log
        if self._lock is not None:
            self._lock.take()
        if self._directory is not None:
            await self._directory.start()
        await self.admission.start()
        for pool in self.pools.all().values():
            for engine in pool.engines.values():
                await engine.start()
        await self.coordination.start(tasks)
        for generation in self.pools.generation.values():
            generation.serve()
        for embeddings in self.pools.embeddings.values():
            embeddings.serve(tasks)
        self._tasks = tasks
        self._ask_engines()

    def _ask_engines(self) -> None:
        assert self._tasks is not None, "engines are asked once the gateway has started"
        pools = self.pools.all().values()
        self._probes.follow(
            self._tasks, [(pool.model.section, pool.availability) for pool in pools]
        )

    async def aclose(self) -> None:
        """Stop the engines with whatever still runs there."""
        await self._probes.aclose()
        for pool in self.pools.all().values():
            await pool.aclose()
        await self.coordination.aclose()
        await self.admission.aclose()
        self._auth.close()
        if self._usage is not None:
            await self._usage.aclose()
        if self._directory is not None:
            await self._directory.aclose()
        if self._lock is not None:
            self._lock.release()

    def reload(self, read: Callable[[], Config]) -> None:
        """Change the configuration if that can be done as a whole; else say why and keep it.

        Args:
            read: Reads the new configuration.
        """
        try:
            config = read()
            check_reload(self.config, config)
            changes = engine_changes(self.pools, self.config, config)
        except ConfigError as error:
            self.metrics.reloaded.set(0)
            for fault in error.faults:
                LOG.error("reload refused: %s", fault)  # noqa: TRY400 - the fault says it all
            return
        self.config = config
        self._auth.close()
        self._auth = self._authenticator(config)
        self._calm = calm_callers(config.tenants)
        self.metrics.know(config.tenants)
        closed = apply_reload(self.pools, self.admission, config, changes)
        assert self._tasks is not None, "signals are taken once the gateway has started"
        for engine in closed:
            self._tasks.create_task(engine.aclose())
        self._ask_engines()
        self.metrics.reloaded.set(1)
        LOG.info("reloaded the configuration")

    def _authenticator(self, config: Config) -> Authenticator:
        # What is looked up in memory needs no cache, and a revocation would take longer by one.
        ttl_us = KEY_TTL_US if self._directory is None else 0
        stores = key_stores(config, self._directory)
        return Authenticator(stores, active_tenants(config), ttl_us=ttl_us)

    def announce_stop(self) -> None:
        """Say that it's not ready; what comes all the same is taken."""
        self.ready = False
        self.metrics.draining.set(1)

    def stop_taking(self) -> None:
        """Refuse what comes from here on; what was taken goes on."""
        self.announce_stop()
        self.draining = True

    def break_off(self) -> None:
        """End what is still under way: who waits is told so, what runs is cut off."""
        self._border.break_off()

    def requests(self) -> list[dict[str, object]]:
        """Return the requests under way, the oldest first, at most ``REQUESTS_LISTED_MAX``."""
        now_us = self._clock.now_us()
        exchanges = sorted(self.active.values(), key=lambda exchange: exchange.arrived_us)
        return [
            {
                "request_id": exchange.record.request_id,
                "tenant": exchange.record.tenant,
                "endpoint": exchange.record.endpoint,
                "model": exchange.record.model,
                "engine": exchange.record.engine,
                "items": exchange.record.items,
                "age_s": s_from_us(now_us - exchange.arrived_us),
            }
            for exchange in exchanges[:REQUESTS_LISTED_MAX]
        ]

    def engine_states(self) -> dict[str, tuple[EngineState, ...]]:
        """Return how each pool's engines fare, by its model."""
        return {name: pool.availability.states() for name, pool in self.pools.all().items()}

    def snapshots(self) -> dict[str, PoolSnapshot]:
        """Return each pool's state by its model."""
        return {name: pool.turns.scheduler.snapshot() for name, pool in self.pools.all().items()}

    def _answer_any(self, exchange: Exchange) -> Awaitable[Answer | None]:
        route = route_of(exchange.path, exchange.headers)
        if route is not None:
            exchange.dialect = route.dialect
            exchange.record.endpoint = route.endpoint
            if exchange.method == "POST":
                return self._serve(route, exchange)
            raise MethodError(exchange.method, allowed="POST")
        if is_cohere(exchange.headers):
            exchange.dialect = Dialect.COHERE
        prefix, _, model = exchange.path.rpartition("/")
        one_model = prefix == "/v1/models" and model
        methods: Mapping[str, Handle] = (
            {"GET": self._model} if one_model else self._routes.get(exchange.path, {})
        )
        if not methods:
            raise RequestError(
                404,
                "unknown_url",
                "There is nothing at this URL.",
                hint="The base URL ends in /v1 for OpenAI's clients, and has no path for others.",
            )
        handle = methods.get(exchange.method)
        if handle is None:
            raise MethodError(exchange.method, allowed=", ".join(methods))
        return handle(exchange)

    def _tenant(self, exchange: Exchange) -> str:
        """Return who sends a request: by its key alone."""
        authorization = exchange.headers.get("authorization")
        if authorization is None and exchange.dialect is Dialect.ANTHROPIC:
            key = exchange.headers.get("x-api-key")
            authorization = None if key is None else f"Bearer {key}"
        try:
            tenant = self._auth.tenant_of(authorization, now_us=exchange.arrived_us)
        except RequestError:
            self._failed_auth.count(exchange.address, exchange.arrived_us)
            raise
        exchange.record.tenant = tenant
        exchange.record.tier = self._calm[tenant].tier
        return tenant

    async def _serve(self, route: Route, exchange: Exchange) -> Answer | None:
        tenant = self._tenant(exchange)
        urgency = urgency_of(exchange.headers)
        if self.draining:
            raise DrainingError("draining")
        body = await exchange.peer.read_body(self.config.server.body_bytes_max)
        asked, body = read_asked(body)
        if asked.taketurns is not None:
            asked.taketurns.check_no_tenant()
            urgency = urgency.else_by(asked.taketurns)
        if route.instead is not None:
            route = route.for_body(asked.fields)
        return await self._answer(
            exchange, Invocation(route, tenant, urgency, asked.model, body, asked.fields)
        )

    async def _invoke(self, exchange: Exchange) -> Answer | None:
        """Answer SageMaker's ``POST /invocations``."""
        if self.draining:
            raise DrainingError("draining")
        body = await exchange.peer.read_body(self.config.server.body_bytes_max)
        return await self._answer(
            exchange, read_invocation(exchange, body, active_tenants(self.config))
        )

    async def _answer(self, exchange: Exchange, asked: Invocation) -> Answer | None:
        route, tenant, body = asked.route, asked.tenant, asked.body
        record = exchange.record
        exchange.dialect = route.dialect
        record.endpoint = route.endpoint
        record.tenant = tenant
        if asked.urgency is NO_URGENCY and route.dialect is not Dialect.COHERE:
            caller = self._calm[tenant]
        else:
            config = self.config.tenants[tenant]
            caller = caller_of(tenant, config, asked.urgency, route.dialect, body)
        record.tier = caller.tier
        pool = pool_for(self.pools, asked.model, route.endpoint, tenant)
        record.model = pool.model.name
        if asked.model is None and route.dialect in {Dialect.OPENAI, Dialect.ANTHROPIC}:
            body = with_model(asked.fields, pool.model.name)
        exchange.fields = asked.fields
        section = pool.model.section
        with self._held.hold(
            len(body),
            tenant=tenant,
            model=pool.model.name,
            tenant_max=section.tenant_queue_bytes_max,
            model_max=section.queue_bytes_max,
        ):
            if route.endpoint != TOKENIZE:
                return await route.answer(pool, exchange, body, caller)
            # No pool has a part in it: limits count it all the same.
            await self.admission.let_in(exchange, caller, pool.model.name, Amounts(1, 0))
            answer = await route.answer(pool, exchange, body, caller)
            exchange.executed = True
            return answer

    async def _check_key(self, exchange: Exchange) -> Answer:
        """Answer Cohere's ``POST /v1/check-api-key``: a key that isn't in force is a 401."""
        exchange.dialect = Dialect.COHERE
        exchange.record.endpoint = "models"
        tenant = self._tenant(exchange)
        told = {"valid": True, "organization_id": tenant, "owner_id": tenant}
        return Answer(200, msgspec.json.encode(told))

    async def _models(self, exchange: Exchange) -> Answer:
        exchange.record.endpoint = "models"
        tenant = self._tenant(exchange)
        models = listed(self.pools, tenant)
        endpoint = parse_qs(exchange.query).get("endpoint", [None])[0]
        return Answer(200, models_answer(models, self._created_s, endpoint=endpoint))

    async def _model(self, exchange: Exchange) -> Answer:
        exchange.record.endpoint = "models"
        tenant = self._tenant(exchange)
        model = listed_model(self.pools, exchange.path.rpartition("/")[2], tenant)
        return Answer(200, model_answer(model, self._created_s))

    def _count_late(self, model: str, mode: str, reason: str) -> None:
        self.metrics.count_late(model, mode, reason)

    def _count_limit(self, rule: str, mode: str) -> None:
        self.metrics.count_limit(rule, mode)
        if mode == "shadow":
            self._shadow_log.count(rule)

    def log_failed(self, error: OSError) -> None:
        """Say that the request log can't be written; requests are served all the same."""
        self.metrics.log_broken.set(1)
        LOG.error("the request log can't be written, and stops here: %s", error)

    def _count_mistrust(self, model: str) -> None:
        self.metrics.count_mistrust(model)

    def _count_batch(self, model: str, items: int) -> None:
        self.metrics.count_batch(model, items)
