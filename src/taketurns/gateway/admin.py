# SPDX-License-Identifier: Apache-2.0
"""The admin side, on a port of its own: health, metrics, the pools' state, one ticket explained."""

import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from taketurns.errors import RequestError
from taketurns.gateway.exchange import Answer, ClientGoneError, Exchange
from taketurns.gateway.gateway import Gateway
from taketurns.gateway.outlook import outlook
from taketurns.gateway.problems import MethodError, problem_of

LOG = logging.getLogger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Admin:
    """Answers the admin port.

    Health and metrics are open to whoever reaches the port. The rest names
    tenants and tickets, and asks for the bearer token that ``server.admin_token`` sets.

    Args:
        gateway: What it tells of.
        token: The token, or None: what asks for it is off.
    """

    def __init__(self, gateway: Gateway, token: str | None) -> None:
        self._gateway = gateway
        self._token = token
        self._routes: dict[str, Callable[[Exchange], Awaitable[Answer]]] = {
            "/livez": gateway.health.answer_live,
            "/readyz": gateway.health.answer_ready,
            "/metrics": self._metrics,
            "/pools": self._pools,
            "/requests": self._requests,
            "/limits": self._limits,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever happens."""
        answer = await self._answer(exchange)
        with contextlib.suppress(ClientGoneError):
            await exchange.peer.send(answer)

    async def _answer(self, exchange: Exchange) -> Answer:
        try:
            return await self._route(exchange)
        except Exception as error:
            problem = problem_of(error)
            if problem.code == "internal_error":
                LOG.exception("admin request %s failed", exchange.record.request_id)
            return problem.answer()

    async def _route(self, exchange: Exchange) -> Answer:
        handle = self._routes.get(exchange.path)
        if handle is None:
            parts = exchange.path.split("/")
            if len(parts) == 5 and parts[1] == "pools" and parts[3] == "tickets":
                handle = self._ticket
            elif len(parts) == 6 and parts[1] == "pools" and parts[3] == "engines":
                if exchange.method != "POST":
                    raise MethodError(exchange.method, allowed="POST")
                return await self._engine(exchange)
            else:
                raise RequestError(404, "unknown_url", "There is nothing at this URL.")
        if exchange.method not in {"GET", "HEAD"}:
            raise MethodError(exchange.method, allowed="GET")
        return await handle(exchange)

    async def _metrics(self, exchange: Exchange) -> Answer:  # noqa: ARG002
        return Answer(200, self._gateway.metrics.exposition(), content_type=METRICS_TYPE)

    async def _pools(self, exchange: Exchange) -> Answer:
        self._authorize(exchange)
        pools = {name: _plain(pool) for name, pool in self._gateway.snapshots().items()}
        for name, states in self._gateway.engine_states().items():
            known = {state.name: state._asdict() for state in states}
            pools[name]["engines"] = [{**known[e["name"]], **e} for e in pools[name]["engines"]]
        return _json(pools)

    async def _engine(self, exchange: Exchange) -> Answer:
        """Answer ``POST /pools/MODEL/engines/NAME/drain``, or ``resume``."""
        self._authorize(exchange)
        _, _, model, _, name, verb = exchange.path.split("/")
        if verb not in {"drain", "resume"}:
            raise RequestError(404, "unknown_url", "There is nothing at this URL.")
        pool = self._gateway.pools.of(model)
        if pool is None or not pool.availability.drain(name, drained=verb == "drain"):
            raise RequestError(
                404,
                "engine_not_found",
                f"Model {model[:64]!r} has no engine {name[:64]!r}.",
                hint="GET /pools lists them.",
            )
        (state,) = (state for state in pool.availability.states() if state.name == name)
        return _json(state._asdict())

    async def _requests(self, exchange: Exchange) -> Answer:
        self._authorize(exchange)
        return _json(self._gateway.requests())

    async def _limits(self, exchange: Exchange) -> Answer:
        self._authorize(exchange)
        asked = {name: values[-1] for name, values in parse_qs(exchange.query).items()}
        return _json(outlook(self._gateway, asked, exchange.arrived_us))

    async def _ticket(self, exchange: Exchange) -> Answer:
        self._authorize(exchange)
        _, _, model, _, ticket_id = exchange.path.split("/")
        pool = self._gateway.pools.of(model)
        explanation = None
        if pool is not None:
            scheduler = pool.turns.scheduler
            texts = range(pool.model.section.inputs_max)
            # Each text of an embeddings request is a ticket: the first that waits tells.
            names = (ticket_id, *(f"{ticket_id}-{index}" for index in texts))
            waiting = next(filter(scheduler.is_waiting, names), ticket_id)
            explanation = scheduler.explain(waiting)
        if explanation is None:
            raise RequestError(
                404,
                "ticket_not_found",
                f"No ticket {ticket_id[:64]!r} waits for model {model[:64]!r}.",
                hint="It may have been dispatched: see its line in the log.",
            )
        return _json(_plain(explanation))

    def _authorize(self, exchange: Exchange) -> None:
        if self._token is None:
            raise RequestError(
                403,
                "admin_token_not_set",
                "This part of the admin side is off.",
                hint="Set server.admin_token to turn it on.",
            )
        scheme, _, given = exchange.headers.get("authorization", "").partition(" ")
        # Bytes of a header that aren't UTF-8 come as lone surrogates.
        matches = hmac.compare_digest(
            given.encode("utf-8", "surrogatepass"), self._token.encode("utf-8")
        )
        if scheme.lower() != "bearer" or not matches:
            raise RequestError(401, "invalid_admin_token", "Incorrect admin token.")


def _json(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value))


def _plain(value: Any) -> Any:
    """Return named tuples as mappings, all the way down."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is None:
            return [_plain(item) for item in value]
        return {name: _plain(item) for name, item in zip(names, value, strict=True)}
    return value
