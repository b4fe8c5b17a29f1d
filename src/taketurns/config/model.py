# SPDX-License-Identifier: Apache-2.0
"""The configuration file as pydantic models: server, tiers, tenants, store, and the whole.

The models of the ``models`` section stand in :mod:`taketurns.config.served`.
Durations are seconds here, sizes bytes, percentages whole numbers.
"""

import ipaddress
import re
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic import field_validator as check_field

from taketurns.config.coordinator import LOCAL, parse_address
from taketurns.config.limits import LimitConfig, TimeZone, limit_rules, zone
from taketurns.config.quantities import (
    HASH_PATTERN,
    PUBLIC_ID_PATTERN,
    Count,
    Duration,
    Flag,
    Name,
    Percent,
    Size,
    Text,
    Whole,
    between,
    duration_text,
    fault,
    percent_between,
    spans,
)
from taketurns.config.section import Section
from taketurns.config.served import ModelConfig
from taketurns.core.limits import LimitRule
from taketurns.core.model import PRIORITY_MAX, WEIGHT_MAX
from taketurns.errors import ConfigError

SQLITE = "sqlite://"
POSTGRES = ("postgresql://", "postgres://")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServerConfig(Section):
    """``server``: where the gateway listens, and what it takes on."""

    host: Text = "127.0.0.1"
    """Address for clients. Default 127.0.0.1: this machine only; 0.0.0.0 is every interface."""

    port: Annotated[Whole, between(0, 65_535)] = 8080
    """TCP port for clients; 0: any free one. Default 8080."""

    admin_host: Text = "127.0.0.1"
    """Address for health, metrics and the state of the pools. Default 127.0.0.1."""

    admin_port: Annotated[Whole, between(0, 65_535)] = 8081
    """TCP port for health, metrics and the pools; 0: any free one. Default 8081."""

    admin_token: Text | None = None
    """Bearer token for the admin port; write ``"${VAR}"``. Needed unless admin_host is loopback."""

    secret: Text | None = None
    """What tenants' cache salts are made from; write ``"${VAR}"``, the same on all gateways of a
    fleet. Default: a new one at each start, after which engines' caches are cold."""

    body_bytes_max: Annotated[Size, between(1024, 1024**3)] = 8 * 1024**2
    """Largest request body, in bytes; above it 413. Default 8M."""

    queued_bytes_max: Annotated[Size, between(1024, 1024**4)] = 1024**3
    """Most bytes of bodies of all requests that wait, of all models; above it 503. Default 1G."""

    drain: Annotated[Duration, spans(0, 86_400)] = 30.0
    """Longest that a stopping gateway serves what is queued or running. Default 30s."""

    drain_delay: Annotated[Duration, spans(0, 600)] = 0.0
    """How long it keeps accepting after it is told to stop. Default 0s."""

    ping: Annotated[Duration, spans(0, 86_400)] = 15.0
    """Silence in a stream after which a comment is sent, so that nobody between takes it for
    dead; 0: none is. Default 15s."""

    unread_timeout: Annotated[Duration, spans(0.01, 86_400)] = 60.0
    """How long a client may leave its answer unread; then it's cut off, and the engine's work for
    it, where the answer is a stream, ends. Default 60s."""

    connections_max: Annotated[Count, between(1, 1_000_000)] = 10_000
    """Most connections of clients at once; more are answered 503. Default 10k."""

    address_connections_max: Annotated[Count, between(1, 1_000_000)] | None = None
    """Most connections from one address; a balancer in front is one address. Default: no limit."""

    auth_failures_max: Annotated[Count, between(1, 1_000_000)] | None = 100
    """Most wrong keys from one address in a minute; further ones are 429. null: no limit.
    Default 100."""

    head_timeout: Annotated[Duration, spans(0.01, 600)] = 10.0
    """How long the head of a request may take to come; then 408. Default 10s."""

    body_timeout: Annotated[Duration, spans(0.01, 3_600)] = 30.0
    """How long its body may take after that; then 408. Default 30s."""

    idle_timeout: Annotated[Duration, spans(0.01, 86_400)] = 75.0
    """How long a connection is kept on which nothing comes: longer than clients and balancers keep
    theirs. Default 75s."""

    head_bytes_max: Annotated[Size, between(1024, 1024**2)] = 16 * 1024
    """Largest head of a request, in bytes; above it 431. Default 16K."""

    headers_max: Annotated[Count, between(8, 10_000)] = 100
    """Most headers of a request; above it 431. Default 100."""

    target_bytes_max: Annotated[Size, between(256, 1024**2)] = 8 * 1024
    """Longest path of a URL with its query, in bytes, less than head_bytes_max; above it 414.
    Default 8K."""

    sagemaker: Flag = False
    """Serve SageMaker's ``/ping`` and ``/invocations`` too. Whoever reaches ``/invocations`` names
    the tenant and needs no key: only the platform may. Default false."""

    log: Text = "-"
    """Where one JSON line a request goes: ``-`` (stdout), ``off`` or a file. Default ``-``."""

    @check_field("admin_port")
    @classmethod
    def _ports_differ(cls, admin_port: int, info: ValidationInfo) -> int:
        if admin_port != 0 and admin_port == info.data.get("port"):
            raise fault("is the same as server.port", "Give the admin side a port of its own.")
        return admin_port

    @check_field("target_bytes_max")
    @classmethod
    def _target_fits_the_head(cls, target_bytes_max: int, info: ValidationInfo) -> int:
        head_bytes_max = info.data.get("head_bytes_max")
        if head_bytes_max is not None and target_bytes_max >= head_bytes_max:
            raise fault("must be less than server.head_bytes_max", "It's a part of the head.")
        return target_bytes_max

    @check_field("admin_token")
    @classmethod
    def _token_fits_a_header(cls, token: str | None) -> str | None:
        if token is None or all("!" <= character <= "~" for character in token):
            return token
        raise fault("must be printable ASCII without blanks", "Make one: openssl rand -hex 32.")


class TierConfig(Section):
    """``tiers.NAME``: a service level."""

    rank: Annotated[Whole, between(0, 1_000)]
    """Order of service: 0 is the best; each tier has a rank of its own."""

    queue_timeout: Annotated[Duration, spans(0.001, 86_400)] = 60.0
    """Longest that a request waits in the queue; then 429. Default 60s."""

    wait_target: Annotated[Duration, spans(0.001, 86_400)] | None = None
    """Wait within which its requests should start: one that can't is refused at once, with the
    time at which to retry. At most queue_timeout. Default null: none is refused for that."""

    floor: Annotated[Percent, percent_between(0, 50)] = 0
    """Share of the work the tier gets even while better tiers are busy. Default 0%."""

    slot_share: Annotated[Percent, percent_between(1, 100)] = 100
    """Share of a model's slots the tier may hold at once; at least one slot. Default 100%."""

    @check_field("wait_target")
    @classmethod
    def _refused_before_it_expires(
        cls, wait_target: float | None, info: ValidationInfo
    ) -> float | None:
        queue_timeout = info.data.get("queue_timeout")
        if wait_target is None or queue_timeout is None or wait_target <= queue_timeout:
            return wait_target
        raise fault(
            f"must be at most queue_timeout, {duration_text(queue_timeout)}",
            "Lower it, or raise queue_timeout.",
        )


def _key_line(line: str) -> str:
    if re.fullmatch(f"{PUBLIC_ID_PATTERN}:{HASH_PATTERN}", line):
        return line
    raise fault(
        "must be PUBLIC_ID:SHA256, 12 and 64 characters",
        "Write the line that `taketurns keys create` prints; never the key itself.",
    )


KeyLine = Annotated[str, AfterValidator(_key_line)]


def _weight(weight: int) -> int:
    if 1 <= weight <= WEIGHT_MAX:
        return weight
    hint = "To stop a tenant, set suspended: true." if weight < 1 else ""
    raise fault(f"must be 1 to {WEIGHT_MAX:,}", hint)


class TenantConfig(Section):
    """``tenants.NAME``: an organisation among whom the engines are shared."""

    tier: Name
    """Service level: one of the names under ``tiers``."""

    weight: Annotated[Whole, AfterValidator(_weight)] = 1
    """Share against the other tenants of its tier, 1 to 1,000. Default 1."""

    parallel: Annotated[Count, between(1, 1_000_000)] | None = None
    """Most requests running at once, per generation model; more wait. Default: no limit."""

    min_priority: Annotated[Whole, between(0, PRIORITY_MAX)] = 0
    """Most urgent priority its requests may have, 0 to 999; lower numbers become it. Default 0."""

    keys: tuple[KeyLine, ...] = ()
    """API keys as ``PUBLIC_ID:SHA256``, beside those in the store. Default: none."""

    suspended: Flag = False
    """Refuse all its keys. Default false."""


def store_setting(value: str) -> str:
    """Check where keys, months and usage are kept."""
    if value == "memory" or (value.startswith(SQLITE) and not value.endswith("/")):
        return value
    if value.startswith(POSTGRES) and " " not in value:
        if urlsplit(value).path.strip("/"):
            return value
        raise fault("names no database", 'Write "postgresql://USER@HOST/NAME".')
    raise fault(
        "is not a store that is known here",
        'Write memory, "sqlite:///DIRECTORY/taketurns.db" or "postgresql://USER@HOST/NAME".',
    )


def _coordinator(value: str) -> str:
    if value != LOCAL:
        try:
            parse_address(value)
        except ConfigError as error:
            raise fault(error.faults[0].problem, error.faults[0].hint) from None
    return value


class Config(Section):
    """The whole file.

    References between its parts are checked by :func:`taketurns.config.load.parse`.
    """

    server: ServerConfig = ServerConfig()
    """Where the gateway listens, and what it takes on."""

    tiers: Annotated[dict[Name, TierConfig], Field(min_length=1)]
    """The service levels by name."""

    models: Annotated[dict[Name, ModelConfig], Field(min_length=1)]
    """The models by the name that clients use."""

    tenants: Annotated[dict[Name, TenantConfig], Field(min_length=1)]
    """The tenants by name."""

    limits: tuple[LimitConfig, ...] = ()
    """Rate limits and quotas. Of those with the same unit, per and scope the most specific holds
    alone: one that names the tenant before one that names the tier, then the model, then the
    endpoint. Default: none."""

    time_zone: TimeZone = "UTC"
    """Where months begin that limits count: a name such as ``Europe/Berlin``. Default UTC."""

    store: Annotated[str, AfterValidator(store_setting)] = "memory"
    """Where API keys, month quotas and usage are kept: ``memory`` (keys only in this file), a
    SQLite file as ``sqlite:///absolute/path.db`` or ``sqlite://./relative/path.db``, for one
    gateway, or a PostgreSQL database as ``postgresql://USER:PASSWORD@HOST/NAME``, for any number
    of them. Default memory."""

    coordinator: Annotated[str, AfterValidator(_coordinator)] = LOCAL
    """Who decides whose turn it is: ``local``, this process alone, or Redis 7 or later or Valkey
    for a whole fleet: ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://`` for TLS,
    ``unix:///PATH``, ``redis+sentinel://HOST:PORT,HOST:PORT/NAME``, ``redis+cluster://HOST:PORT``.
    Default local."""

    on_store_error: Literal["local", "closed", "open"] = "local"
    """What a gateway does while the coordinator doesn't answer: ``local`` goes on with its share
    of slots and limits, ``closed`` refuses, ``open`` goes on with all of them. Default local."""

    expected_gateways: Annotated[Count, between(1, 1_000)] | None = None
    """How many gateways there are at least. With it a gateway serves its share even if the
    coordinator doesn't answer at the start. Default null: as many as were last known."""

    gateway_id: Name | None = None
    """This gateway's name in the fleet; what follows it makes it unique. Default null: the
    machine's name."""

    usage_days: Annotated[Whole, between(0, 10_000)] = 400
    """How many days the store keeps what tenants used, today included; 0: it isn't kept.
    Default 400."""

    @property
    def store_path(self) -> Path | None:
        """The SQLite file, or None where the store is none."""
        return Path(self.store.removeprefix(SQLITE)) if self.store.startswith(SQLITE) else None

    @property
    def zone(self) -> tzinfo:
        """The time zone of calendar months."""
        return zone(self.time_zone)

    def limit_rules(self) -> tuple[LimitRule, ...]:
        """Return the limits as the core reads them, in the order of the file. Pure."""
        return limit_rules(self.limits)

    @check_field("coordinator")
    @classmethod
    def _store_is_shared(cls, coordinator: str, info: ValidationInfo) -> str:
        if coordinator != LOCAL and str(info.data.get("store")).startswith(SQLITE):
            raise fault(
                "is for several gateways, and the SQLite file under store is for one",
                'Write store: "postgresql://USER@HOST/NAME", or store: memory.',
            )
        months = any(limit.per == "month" for limit in info.data.get("limits", ()))
        if coordinator != LOCAL and months and info.data.get("store") == "memory":
            raise fault(
                "is for several gateways, and a limit per month needs a store that they share",
                'Write store: "postgresql://USER@HOST/NAME".',
            )
        return coordinator

    @check_field("server")
    @classmethod
    def _admin_is_guarded(cls, server: ServerConfig) -> ServerConfig:
        if server.admin_token is None and not _is_loopback(server.admin_host):
            raise fault(
                "opens the admin side to the network without a token",
                'Set server.admin_token: "${TAKETURNS_ADMIN_TOKEN}", or admin_host: 127.0.0.1.',
            )
        return server
