# SPDX-License-Identifier: Apache-2.0
"""SageMaker's ``/invocations``: who sends it, how urgent it is, and where it goes.

The platform is trusted: it has checked who calls, and strips all headers but one. So tenant,
priority and deadline come from that header, or from the body. Only in this mode, and only here.
"""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from taketurns.dialects import sagemaker
from taketurns.dialects.own_fields import OwnFields, read_asked
from taketurns.errors import RequestError
from taketurns.gateway.exchange import Exchange
from taketurns.gateway.routes import COHERE_V1_RERANK, ROUTES, Route
from taketurns.gateway.urgency import Urgency, urgency_of


class Invocation(NamedTuple):
    """A request, as it's served.

    Attributes:
        route: What it's meant for.
        tenant: Who sends it.
        urgency: How urgent it is.
        model: Name of the model, or None.
        body: Without fields of our own.
        fields: Its fields, by name.
    """

    route: Route
    tenant: str
    urgency: Urgency
    model: str | None
    body: bytes
    fields: dict[str, msgspec.Raw]


def read_invocation(exchange: Exchange, body: bytes, tenants: Collection[str]) -> Invocation:
    """Read ``POST /invocations``.

    Args:
        exchange: The request.
        body: Its body.
        tenants: Those who may send one.

    Raises:
        RequestError: 400, naming what is wrong.
    """
    attributes = sagemaker.attributes_of(exchange.headers.get(sagemaker.ATTRIBUTES.lower()))
    urgency = urgency_of(attributes, "priority", "deadline-ms")
    asked, body = read_asked(body)
    own = asked.taketurns or OwnFields()
    fields = asked.fields
    # Cohere's client says so in rerank requests, where the path is lost.
    version = bytes(fields.pop("api_version", msgspec.Raw(b"")))
    dialect = "cohere" if version else attributes.get("dialect") or own.dialect
    path = sagemaker.path_of(fields, dialect=dialect)
    route = ROUTES[path].for_body(fields)
    if path == "/v2/rerank" and version == b"1":
        route = COHERE_V1_RERANK
    if attributes.get("stream") == "true":
        # That a stream is wanted stands in the platform's own URL, which doesn't come through.
        fields.setdefault("stream", msgspec.Raw(b"true"))
    if version or "stream" in attributes:
        body = msgspec.json.encode(fields)
    tenant = _tenant(attributes.get("tenant") or own.tenant, tenants)
    urgency = urgency.else_by(asked.taketurns)
    return Invocation(route, tenant, urgency, asked.model, body, fields)


def _tenant(named: str | None, tenants: Collection[str]) -> str:
    if named is None and len(tenants) == 1:
        return next(iter(tenants))
    if named is None or named not in tenants:
        problem = "is missing" if named is None else f"is {named[:64]!r}, which is not configured"
        raise RequestError(
            400,
            "invalid_value",
            f"The tenant {problem}.",
            param="tenant",
            hint=f"Send {sagemaker.ATTRIBUTES}: tenant=NAME.",
        )
    return named
